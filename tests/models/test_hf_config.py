from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infra_lab.errors import ModelLoadError
from infra_lab.models.config import ModelConfig, RopeScaling
from infra_lab.models.hf_config import hf_config

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
OPTIONAL_KEYS = (
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "tie_word_embeddings",
    "sliding_window",
    "torch_dtype",
)
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.fixture
def read(tiny: Any, tmp_path: Path) -> Any:
    """Writes a config.json for a family with some keys changed, and reads it."""

    def write_and_read(family: str, **changes: Any) -> ModelConfig:
        settings = tiny.hf_settings(tiny.config(family), **changes)
        (tmp_path / "config.json").write_text(json.dumps(settings))
        return hf_config(tmp_path)

    return write_and_read


@pytest.mark.parametrize("family", FAMILIES)
def test_every_number_is_read(family: str, read: Any, tiny: Any) -> None:
    assert read(family) == tiny.config(family)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_transformers_saves_is_read_back(family: str, tiny: Any, tmp_path: Path) -> None:
    from transformers import AutoConfig

    config = tiny.config(family, dtype="bfloat16", rope_theta=12345.0)
    settings = tiny.hf_settings(config)
    AutoConfig.for_model(**settings).save_pretrained(tmp_path)
    assert hf_config(tmp_path) == config


@pytest.mark.parametrize("family", FAMILIES)
def test_missing_settings_have_the_family_default_of_transformers(family: str, read: Any) -> None:
    from transformers import AutoConfig

    theirs = AutoConfig.for_model(
        family, hidden_size=64, num_attention_heads=32, num_hidden_layers=2
    )
    absent = dict.fromkeys(OPTIONAL_KEYS, "absent")
    ours = read(family, num_attention_heads=32, **absent)
    assert ours.num_key_value_heads == theirs.num_key_value_heads
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or 64 // 32)
    assert ours.max_position_embeddings == theirs.max_position_embeddings
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings
    assert ours.sliding_window == (theirs.sliding_window if family == "mistral" else None)
    assert ours.dtype == "float32"


@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_rope_scaling_is_found_in_its_old_and_new_places(place: str, key: str, read: Any) -> None:
    assert read("llama", **{place: {key: "default"}}).rope_scaling == RopeScaling()
    linear = read("llama", **{place: {key: "linear", "factor": 2.0}})
    assert linear.rope_scaling == RopeScaling("linear", 2.0)
    llama3 = read("llama", **{place: {key: "llama3"} | LLAMA3})
    assert llama3.rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 64)


def test_rope_theta_is_found_in_its_old_and_new_places(read: Any) -> None:
    assert read("llama", rope_theta=777.0).rope_theta == 777.0
    new = read("llama", rope_theta="absent", rope_parameters={"rope_theta": 888.0})
    assert new.rope_theta == 888.0


@pytest.mark.parametrize("kind", ["dynamic", "yarn", "longrope", "su"])
def test_other_rope_scaling_is_refused_by_name(kind: str, read: Any) -> None:
    with pytest.raises(ModelLoadError, match=f"rope scaling '{kind}' is not supported"):
        read("llama", rope_scaling={"rope_type": kind, "factor": 2.0})


def test_llama3_scaling_without_a_number_is_refused_by_key(read: Any) -> None:
    incomplete = {key: value for key, value in LLAMA3.items() if key != "low_freq_factor"}
    with pytest.raises(ModelLoadError, match="'low_freq_factor' is missing"):
        read("llama", rope_scaling={"rope_type": "llama3"} | incomplete)


def test_qwen2_has_biases_and_mistral_none_whatever_the_file_says(read: Any) -> None:
    assert read("qwen2", attention_bias="absent").attention_bias
    assert not read("mistral", attention_bias=True).attention_bias
    assert read("llama", attention_bias=True).attention_bias
    assert read("qwen3", attention_bias=True).attention_bias


def test_mistral_may_have_a_window_or_none(read: Any) -> None:
    assert read("mistral", sliding_window=4096).sliding_window == 4096
    assert read("mistral", sliding_window=None).sliding_window is None


def test_qwen_has_a_window_only_where_it_is_used_in_all_layers(read: Any) -> None:
    window = {"sliding_window": 32}
    assert read("qwen2", use_sliding_window=False, **window).sliding_window is None
    every = read("qwen2", use_sliding_window=True, max_window_layers=0, **window)
    assert every.sliding_window == 32
    none = read("qwen2", use_sliding_window=True, max_window_layers=2, **window)
    assert none.sliding_window is None
    with pytest.raises(ModelLoadError, match="some layers only"):
        read("qwen2", use_sliding_window=True, max_window_layers=1, **window)
    with pytest.raises(ModelLoadError, match="some layers only"):
        read(
            "qwen3",
            use_sliding_window=True,
            layer_types=["full_attention", "sliding_attention"],
            **window,
        )


@pytest.mark.parametrize(
    ("own", "generation", "wanted"),
    [
        (2, None, (2,)),
        ([2, 3], None, (2, 3)),
        (2, [5, 2], (2, 5)),
        (None, 7, (7,)),
        (None, None, ()),
        (0, 0, (0,)),
    ],
)
def test_end_tokens_of_both_files_are_joined(
    own: Any, generation: Any, wanted: tuple[int, ...], read: Any, tmp_path: Path
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    assert read("llama", eos_token_id=own).eos_token_ids == wanted


def test_both_spellings_of_dtype_are_read(read: Any) -> None:
    assert read("llama", torch_dtype="bfloat16").dtype == "bfloat16"
    assert read("llama", torch_dtype="absent", dtype="float16").dtype == "float16"
    assert read("llama", torch_dtype="torch.float16").dtype == "float16"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt_neox"}, "'gpt_neox' is not supported; supported are llama, mistral"),
        ({"model_type": None}, "model type None is not supported"),
        (
            {"quantization_config": {"quant_method": "quip"}},
            "with quip are not supported; supported are gptq, awq",
        ),
        ({"hidden_act": "gelu"}, "activation 'gelu' is not supported"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        ({"hidden_size": None}, "'hidden_size' is missing"),
        ({"hidden_size": "64"}, "'hidden_size' is '64'; a positive integer"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3 KV heads evenly"),
        ({"head_dim": 7}, "head_dim is 7; rotation needs an even one"),
        ({"num_attention_heads": 0}, "'num_attention_heads' is 0; a positive integer"),
        ({"rms_norm_eps": -1}, "'rms_norm_eps' is -1; a positive number"),
        ({"tie_word_embeddings": "yes"}, "'tie_word_embeddings' is 'yes'; true or false"),
        ({"eos_token_id": "</s>"}, "'eos_token_id' is '</s>'; a token id"),
        ({"torch_dtype": "int8"}, "dtype 'int8' is not supported"),
        ({"rope_scaling": {"full_attention": {}}}, "for some layers are not supported"),
        ({"rope_scaling": "linear"}, "rope settings"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    changes: dict[str, Any], message: str, read: Any
) -> None:
    with pytest.raises(ModelLoadError, match=message):
        read("llama", **changes)


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", "\x00"])
def test_a_damaged_config_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        hf_config(tmp_path)
