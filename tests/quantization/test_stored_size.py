"""Bits a weight as files have them: by hand, for files whose layout is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType

from infra_lab.errors import ModelLoadError
from infra_lab.models.loader import open_checkpoint
from infra_lab.quantization.modules import linear_modules, num_linear_weights
from infra_lab.quantization.quantize import quantize_model
from infra_lab.quantization.settings import choose_settings
from infra_lab.quantization.stored_size import (
    safetensors_sizes,
    stored_bits_per_weight,
    stored_bytes,
)
from infra_lab.quantization.targets import target_format, write_model
from tests.models.conftest import make_config, make_weights, write_gguf
from tests.quantization.tiny_models import tiny_model


@pytest.mark.parametrize(("kind", "bits"), [("F32", 32), ("Q4_0", 4.5), ("Q4_1", 5), ("Q8_0", 8.5)])
def test_a_gguf_files_blocks_have_their_scales_counted(
    tmp_path: Path, kind: str, bits: float
) -> None:
    config = make_config("llama")
    path = write_gguf(tmp_path / "m.gguf", config, make_weights(config), GGMLQuantizationType[kind])
    assert stored_bits_per_weight(path, config) == bits
    assert stored_bytes(path) == path.stat().st_size


@pytest.mark.parametrize(
    ("method", "given", "bits", "bits_a_matrix"),
    [
        # A scale of 16 bits for 32 weights, a zero of 4; of each matrix its shape, twice 64 bits.
        ("rtn", {"format": "compressed-tensors", "symmetric": True}, 4 + 16 / 32, 128),
        ("rtn", {"format": "awq"}, 4 + (16 + 4) / 32, 0),
        ("mxfp4", {}, 4 + 8 / 32, 0),
    ],
)
def test_a_folder_has_scales_and_zeros_counted(
    tmp_path: Path, method: str, given: dict[str, Any], bits: float, bits_a_matrix: int
) -> None:
    tiny_model(tmp_path / "m")
    checkpoint = open_checkpoint(tmp_path / "m")
    settings = choose_settings(method, checkpoint.config, given)
    target, out = target_format(settings), tmp_path / "out"
    quantized = quantize_model(checkpoint, settings, weight_format=target)
    write_model(quantized, out, target, torch.float16)
    config = checkpoint.config
    bits += bits_a_matrix * len(linear_modules(config)) / num_linear_weights(config)
    assert stored_bits_per_weight(out, config) == pytest.approx(bits)
    assert stored_bytes(out) == sum(file.stat().st_size for file in out.glob("*.safetensors"))


def test_a_folder_as_it_was_has_the_bits_of_its_type(tmp_path: Path) -> None:
    tiny_model(tmp_path, "qwen2")  # biases are not counted
    assert stored_bits_per_weight(tmp_path, open_checkpoint(tmp_path).config) == 32


def test_a_damaged_header_is_named(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    for content in (b"", b"\xff" * 8, b"\x02\0\0\0\0\0\0\0[]", b'\x09\0\0\0\0\0\0\0{"a": {}}'):
        file.write_bytes(content)
        with pytest.raises(ModelLoadError, match=r"model\.safetensors: damaged or truncated"):
            safetensors_sizes(file)
