from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, quants

from infra_lab.errors import ModelLoadError
from infra_lab.models.gguf_checkpoint import GGUFCheckpoint

FAMILIES = ("llama", "qwen2", "qwen3")
WRITABLE = [
    GGMLQuantizationType[name]
    for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
]


def round_trip(weight: torch.Tensor, kind: GGMLQuantizationType) -> torch.Tensor:
    """What is left of a weight after quantizing, by the official package."""
    if weight.ndim == 1:
        return weight
    packed = quants.quantize(weight.numpy(), kind)
    return torch.from_numpy(np.ascontiguousarray(quants.dequantize(packed, kind), np.float32))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", WRITABLE, ids=lambda kind: kind.name)
def test_tensors_are_as_in_hugging_face_after_quantization(
    family: str, kind: GGMLQuantizationType, tiny: Any, tmp_path: Path
) -> None:
    config = tiny.config(family)
    weights = tiny.weights(config)
    checkpoint = GGUFCheckpoint(tiny.gguf(tmp_path / "m.gguf", config, weights, kind))
    assert sorted(checkpoint.names()) == sorted(weights)
    for name, weight in weights.items():
        assert torch.equal(checkpoint.tensor(name, torch.float32), round_trip(weight, kind)), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_cast_rounds_once_from_float32(dtype: torch.dtype, tiny: Any, tmp_path: Path) -> None:
    config = tiny.config("llama")
    path = tiny.gguf(tmp_path / "m.gguf", config, tiny.weights(config), GGMLQuantizationType.Q4_1)
    checkpoint = GGUFCheckpoint(path)
    for name in checkpoint.names():
        exact = checkpoint.tensor(name, torch.float32)
        assert torch.equal(checkpoint.tensor(name, dtype), exact.to(dtype))


@pytest.mark.parametrize("chunk", [1, 100, 1000])
def test_the_chunk_size_changes_nothing(
    chunk: int, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny.config("llama")
    path = tiny.gguf(tmp_path / "m.gguf", config, tiny.weights(config), GGMLQuantizationType.Q8_0)
    checkpoint = GGUFCheckpoint(path)
    wanted = {name: checkpoint.tensor(name, torch.float32) for name in checkpoint.names()}
    monkeypatch.setattr("infra_lab.models.gguf_checkpoint._CHUNK_ELEMENTS", chunk)
    for name, tensor in wanted.items():
        assert torch.equal(checkpoint.tensor(name, torch.float32), tensor)


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_reads_the_same_weights_from_the_same_file(
    family: str, tiny: Any, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    # transformers takes Qwen3's head_dim to be 128 whatever the file says.
    config = tiny.config(family, head_dim=128 if family == "qwen3" else 16)
    path = tiny.gguf(
        tmp_path / "m.gguf", config, tiny.weights(config), GGMLQuantizationType.Q4_1, add_tokens
    )
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=path.name, dtype=torch.float32, local_files_only=True
    )
    checkpoint = GGUFCheckpoint(path)
    state = model.state_dict()
    assert sorted(state) == sorted(checkpoint.names())
    for name, tensor in state.items():
        assert torch.equal(checkpoint.tensor(name, torch.float32), tensor), name


def add_tokens(writer: GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{index}" for index in range(96)])
    writer.add_token_merges([])


@pytest.mark.slow
@pytest.mark.model
def test_the_default_model_is_read_as_transformers_reads_it(smollm2_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    checkpoint = GGUFCheckpoint(smollm2_path)
    model = AutoModelForCausalLM.from_pretrained(
        smollm2_path.parent, gguf_file=smollm2_path.name, dtype=torch.float32
    )
    state = model.state_dict()
    for name in checkpoint.names():
        assert torch.equal(checkpoint.tensor(name, torch.float32), state[name]), name


def test_an_unsupported_quantization_is_named_with_its_tensor(tiny: Any, tmp_path: Path) -> None:
    config = tiny.config("llama", hidden_size=256, head_dim=64)
    weights = tiny.weights(config)
    del weights["model.layers.1.mlp.up_proj.weight"]
    block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType.IQ2_XXS][1]

    def add(writer: GGUFWriter) -> None:
        writer.add_tensor(
            "blk.1.ffn_up.weight",
            np.zeros((96, block_bytes), np.uint8),
            raw_dtype=GGMLQuantizationType.IQ2_XXS,
        )

    path = tiny.gguf(tmp_path / "m.gguf", config, weights, add=add)
    with pytest.raises(ModelLoadError, match=r"'blk\.1\.ffn_up\.weight'.* IQ2_XXS.*not supported"):
        GGUFCheckpoint(path)


def test_a_missing_tensor_is_named_on_opening(tiny: Any, tmp_path: Path) -> None:
    config = tiny.config("qwen3")
    weights = tiny.weights(config)
    del weights["model.layers.1.self_attn.k_norm.weight"]
    path = tiny.gguf(tmp_path / "m.gguf", config, weights)
    with pytest.raises(ModelLoadError, match=r"layers\.1\.self_attn\.k_norm\.weight' is missing"):
        GGUFCheckpoint(path)


def test_a_misshapen_tensor_is_named_with_both_shapes(tiny: Any, tmp_path: Path) -> None:
    config = tiny.config("llama")
    weights = tiny.weights(config)
    weights["model.layers.0.mlp.up_proj.weight"] = torch.zeros(95, 64)
    path = tiny.gguf(tmp_path / "m.gguf", config, weights)
    with pytest.raises(ModelLoadError, match=r"up_proj\.weight' has shape \[95, 64\].*\[96, 64\]"):
        GGUFCheckpoint(path)


def test_a_tensor_without_a_place_is_refused(tiny: Any, tmp_path: Path) -> None:
    config = tiny.config("llama")
    path = tiny.gguf(
        tmp_path / "m.gguf",
        config,
        tiny.weights(config),
        add=lambda writer: writer.add_tensor("blk.0.ffn_gate_exps.weight", np.zeros((2, 32), "f")),
    )
    with pytest.raises(ModelLoadError, match=r"'blk\.0\.ffn_gate_exps\.weight' has no place"):
        GGUFCheckpoint(path)


def test_an_unknown_tensor_name_is_refused_when_read(tiny: Any, tmp_path: Path) -> None:
    config = tiny.config("llama")
    checkpoint = GGUFCheckpoint(tiny.gguf(tmp_path / "m.gguf", config, tiny.weights(config)))
    with pytest.raises(ModelLoadError, match=r"'model\.nothing' is missing"):
        checkpoint.tensor("model.nothing", torch.float32)


def test_a_file_truncated_after_opening_is_refused_by_tensor(tiny: Any, tmp_path: Path) -> None:
    config = tiny.config("llama")
    path = tiny.gguf(tmp_path / "m.gguf", config, tiny.weights(config))
    checkpoint = GGUFCheckpoint(path)
    path.write_bytes(path.read_bytes()[:-64])
    last = max(checkpoint.header.tensors.values(), key=lambda info: info.offset_bytes).name
    broken = next(name for name in checkpoint.names() if tiny.gguf_name(name) == last)
    with pytest.raises(ModelLoadError, match="truncated"):
        checkpoint.tensor(broken, torch.float32)
