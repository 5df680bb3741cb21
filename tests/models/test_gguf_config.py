from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter

from infra_lab.errors import ModelLoadError
from infra_lab.models.config import RopeScaling
from infra_lab.models.gguf_checkpoint import GGUFCheckpoint
from infra_lab.models.gguf_config import llama3_factors

FAMILIES = ("llama", "qwen2", "qwen3")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_the_config_is_recovered(family: str, tied: bool, tiny: Any, tmp_path: Path) -> None:
    config = tiny.config(family, tie_word_embeddings=tied, rms_norm_eps=1e-6, rope_theta=500000.0)
    path = tiny.gguf(tmp_path / "m.gguf", config, tiny.weights(config))
    assert GGUFCheckpoint(path).config == config


@pytest.mark.parametrize("kind", [GGMLQuantizationType.F16, GGMLQuantizationType.BF16])
def test_the_dtype_is_that_of_the_matrices(
    kind: GGMLQuantizationType, tiny: Any, tmp_path: Path
) -> None:
    config = tiny.config("llama")
    path = tiny.gguf(tmp_path / "m.gguf", config, tiny.weights(config), kind)
    wanted = {"F16": "float16", "BF16": "bfloat16"}[kind.name]
    assert GGUFCheckpoint(path).config.dtype == wanted


@pytest.mark.model
def test_the_default_model_has_the_shape_it_is_known_for(smollm2_path: Path) -> None:
    config = GGUFCheckpoint(smollm2_path).config
    assert (config.num_hidden_layers, config.hidden_size, config.head_dim) == (30, 576, 64)
    assert (config.num_attention_heads, config.num_key_value_heads) == (9, 3)
    assert (config.vocab_size, config.max_position_embeddings) == (49152, 8192)
    assert config.tie_word_embeddings
    assert config.eos_token_ids == (2,)
    assert (config.rope_theta, config.rms_norm_eps) == (100000.0, 1e-5)


def test_an_unsupported_architecture_is_named(tiny: Any, tmp_path: Path) -> None:
    config = tiny.config("mamba", num_hidden_layers=0)
    path = tiny.gguf(tmp_path / "m.gguf", config, tiny.weights(config))
    with pytest.raises(ModelLoadError, match="'mamba' is not supported; supported are llama"):
        GGUFCheckpoint(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0; at least 1"),
        ({"num_attention_heads": 3, "head_dim": 16}, "3 attention heads cannot share 2"),
        ({"num_attention_heads": 0}, "0 attention heads"),
    ],
)
def test_numbers_that_make_no_decoder_are_refused(
    changes: dict[str, int], message: str, tiny: Any, tmp_path: Path
) -> None:
    config = tiny.config("qwen2", **changes)
    path = tiny.gguf(tmp_path / "m.gguf", config, tiny.weights(config))
    with pytest.raises(ModelLoadError, match=message):
        GGUFCheckpoint(path)


def test_a_mixture_of_experts_is_refused(tiny: Any, tmp_path: Path) -> None:
    config = tiny.config("llama")
    path = tiny.gguf(
        tmp_path / "m.gguf",
        config,
        tiny.weights(config),
        add=lambda writer: writer.add_expert_count(8),
    )
    with pytest.raises(ModelLoadError, match="mixture of 8 experts"):
        GGUFCheckpoint(path)


def test_a_missing_number_is_named(tiny: Any, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_head_count(4)
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelLoadError, match=r"no 'llama\.embedding_length'"):
        GGUFCheckpoint(path)


def test_linear_rope_scaling_is_read(tiny: Any, tmp_path: Path) -> None:
    config = tiny.config("llama", rope_scaling=RopeScaling("linear", 4.0))

    def add(writer: GGUFWriter) -> None:
        writer.add_string("llama.rope.scaling.type", "linear")
        writer.add_float32("llama.rope.scaling.factor", 4.0)

    path = tiny.gguf(tmp_path / "m.gguf", config, tiny.weights(config), add=add)
    assert GGUFCheckpoint(path).config == config


def test_other_rope_scaling_is_refused_by_name(tiny: Any, tmp_path: Path) -> None:
    config = tiny.config("qwen2")
    path = tiny.gguf(
        tmp_path / "m.gguf",
        config,
        tiny.weights(config),
        add=lambda writer: writer.add_string("qwen2.rope.scaling.type", "yarn"),
    )
    with pytest.raises(ModelLoadError, match="rope scaling 'yarn' is not supported"):
        GGUFCheckpoint(path)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_rope_scaling_is_recovered_from_its_factors(
    factor: float, tiny: Any, tmp_path: Path
) -> None:
    scaling = RopeScaling("llama3", factor, 1.0, 4.0, 8192)
    config = tiny.config("llama", head_dim=64, rope_theta=500000.0, rope_scaling=scaling)
    factors = np.array(llama3_factors(scaling, 64, 500000.0), np.float32)
    path = tiny.gguf(
        tmp_path / "m.gguf",
        config,
        tiny.weights(config),
        add=lambda writer: writer.add_tensor("rope_freqs.weight", factors),
    )
    checkpoint = GGUFCheckpoint(path)
    assert checkpoint.config == config
    assert "rope_freqs.weight" not in checkpoint.names()


def test_llama3_factors_are_those_of_transformers() -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)
    parameters = {"rope_type": "llama3", "rope_theta": 500000.0} | {
        key: value for key, value in dataclasses.asdict(scaling).items() if key != "kind"
    }
    config = LlamaConfig(hidden_size=128, num_attention_heads=1, rope_parameters=parameters)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 500000.0 ** (-torch.arange(0, 128, 2, dtype=torch.float64) / 128)
    ours = plain / torch.tensor(llama3_factors(scaling, 128, 500000.0), dtype=torch.float64)
    torch.testing.assert_close(scaled.double(), ours, rtol=1e-5, atol=0)


def test_unknown_rope_factors_are_refused(tiny: Any, tmp_path: Path) -> None:
    config = tiny.config("llama")
    factors = np.linspace(1, 5, 8, dtype=np.float32)
    path = tiny.gguf(
        tmp_path / "m.gguf",
        config,
        tiny.weights(config),
        add=lambda writer: writer.add_tensor("rope_freqs.weight", factors),
    )
    with pytest.raises(ModelLoadError, match=r"'rope_freqs\.weight' holds rope factors"):
        GGUFCheckpoint(path)
