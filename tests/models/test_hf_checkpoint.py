from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from infra_lab.errors import ModelLoadError
from infra_lab.models.hf_checkpoint import HFCheckpoint

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_read_as_they_were_written(
    family: str, tied: bool, tiny: Any, tmp_path: Path
) -> None:
    config = tiny.config(family, tie_word_embeddings=tied)
    weights = tiny.weights(config)
    checkpoint = HFCheckpoint(tiny.hf(tmp_path, config, weights))
    assert checkpoint.config == config
    assert sorted(checkpoint.names()) == sorted(weights)
    for name, weight in weights.items():
        assert torch.equal(checkpoint.tensor(name, torch.float32), weight)
        assert torch.equal(checkpoint.tensor(name, torch.bfloat16), weight.bfloat16())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_that_transformers_saved_in_shards_is_read(
    family: str, tiny: Any, tmp_path: Path
) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = tiny.hf_settings(tiny.config(family))
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings))
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    checkpoint = HFCheckpoint(tmp_path)
    state = model.state_dict()
    assert sorted(checkpoint.names()) == sorted(state)
    for name, tensor in state.items():
        assert torch.equal(checkpoint.tensor(name, torch.float32), tensor), name


def test_a_tied_model_may_repeat_its_embedding(tiny: Any, tmp_path: Path) -> None:
    config = tiny.config("llama", tie_word_embeddings=True)
    weights = tiny.weights(config)
    repeated = weights | {"lm_head.weight": weights["model.embed_tokens.weight"].clone()}
    assert sorted(HFCheckpoint(tiny.hf(tmp_path, config, repeated)).names()) == sorted(weights)


def test_old_rotary_buffers_are_passed_over(tiny: Any, tmp_path: Path) -> None:
    config = tiny.config("llama")
    weights = tiny.weights(config)
    old = weights | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    assert sorted(HFCheckpoint(tiny.hf(tmp_path, config, old)).names()) == sorted(weights)


def test_a_missing_tensor_is_named_on_opening(tiny: Any, tmp_path: Path) -> None:
    config = tiny.config("qwen2")
    weights = tiny.weights(config)
    del weights["model.layers.1.self_attn.q_proj.bias"]
    with pytest.raises(ModelLoadError, match=r"layers\.1\.self_attn\.q_proj\.bias' is missing"):
        HFCheckpoint(tiny.hf(tmp_path, config, weights))


def test_a_misshapen_tensor_is_named_with_both_shapes(tiny: Any, tmp_path: Path) -> None:
    config = tiny.config("llama")
    weights = tiny.weights(config) | {"model.norm.weight": torch.ones(63)}
    with pytest.raises(ModelLoadError, match=r"'model\.norm\.weight' has shape \[63\].*\[64\]"):
        HFCheckpoint(tiny.hf(tmp_path, config, weights))


def test_a_tensor_of_integers_is_refused(tiny: Any, tmp_path: Path) -> None:
    config = tiny.config("llama")
    weights = tiny.weights(config)
    weights["model.norm.weight"] = torch.ones(64, dtype=torch.int8)
    with pytest.raises(ModelLoadError, match=r"'model\.norm\.weight' is of type I8"):
        HFCheckpoint(tiny.hf(tmp_path, config, weights))


@pytest.mark.parametrize("keep", [0, 4, 100, 5000, -1])
def test_a_truncated_file_is_named(keep: int, tiny: Any, tmp_path: Path) -> None:
    config = tiny.config("llama")
    tiny.hf(tmp_path, config, tiny.weights(config))
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors: damaged or truncated"):
        HFCheckpoint(tmp_path)


def test_a_shard_that_is_not_there_is_named(tiny: Any, tmp_path: Path) -> None:
    config = tiny.config("llama")
    weights = tiny.weights(config)
    tiny.hf(tmp_path, config, weights)
    (tmp_path / "model.safetensors").unlink()
    halves = {name: f"model-{index % 2}.safetensors" for index, name in enumerate(weights)}
    index_file = tmp_path / "model.safetensors.index.json"
    index_file.write_text(json.dumps({"weight_map": halves}))
    first = {name: weights[name] for name, file in halves.items() if file.startswith("model-0")}
    save_file(first, tmp_path / "model-0.safetensors")
    with pytest.raises(ModelLoadError, match=r"model-1\.safetensors: named by"):
        HFCheckpoint(tmp_path)


@pytest.mark.parametrize("content", ["{", "{}", '{"weight_map": {"a": 1}}'])
def test_a_damaged_index_is_named(content: str, tiny: Any, tmp_path: Path) -> None:
    config = tiny.config("llama")
    tiny.hf(tmp_path, config, tiny.weights(config))
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ModelLoadError, match=r"index\.json"):
        HFCheckpoint(tmp_path)


def test_pickled_weights_are_refused_with_the_way_out(tiny: Any, tmp_path: Path) -> None:
    config = tiny.config("llama")
    tiny.hf(tmp_path, config, tiny.weights(config))
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match=r"pytorch_model\.bin only.*save_pretrained"):
        HFCheckpoint(tmp_path)


def test_a_folder_without_weights_is_refused(tiny: Any, tmp_path: Path) -> None:
    config = tiny.config("llama")
    tiny.hf(tmp_path, config, tiny.weights(config))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match="has no weights"):
        HFCheckpoint(tmp_path)
