"""Quantized folders: every method read, and damage named before anything is computed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from infra_lab.errors import ModelLoadError
from infra_lab.formats.awq import AWQFormat
from infra_lab.formats.bitsandbytes import FourBitFormat, RowInt8Format
from infra_lab.formats.compressed_tensors import (
    FloatQuantizedFormat,
    IntQuantizedFormat,
    MXFP4Format,
    PackQuantizedFormat,
)
from infra_lab.formats.fp8_block import FP8BlockFormat
from infra_lab.formats.gptq import GPTQFormat
from infra_lab.formats.layouts import quantization_values
from infra_lab.formats.quantized_weight import ActivationFormat, QuantizedWeight
from infra_lab.formats.weight_format import WeightFormat
from infra_lab.models.hf_checkpoint import HFCheckpoint
from infra_lab.models.loader import read_config
from tests.formats.quantized_weights import same, weight_for

Q_PROJ = "model.layers.0.self_attn.q_proj"
FORMATS: list[tuple[WeightFormat, ActivationFormat | None]] = [
    (GPTQFormat(4, 32), None),
    (GPTQFormat(3, 32, symmetric=False, act_order=True, version=2), None),
    (AWQFormat(32), None),
    (PackQuantizedFormat(4, 32, symmetric=False), None),
    (IntQuantizedFormat(), ActivationFormat()),
    (FloatQuantizedFormat(), ActivationFormat(kind="fp8")),
    (MXFP4Format(), None),
    (FourBitFormat(block_size=32, double_quantization=True), None),
    (RowInt8Format(), ActivationFormat(outlier_threshold=6.0)),
    (FP8BlockFormat((32, 64)), None),
]
Folder = Callable[..., tuple[Path, dict[str, QuantizedWeight]]]


@pytest.fixture
def folder(tiny: Any, tmp_path: Path) -> Folder:
    """A tiny Qwen3 whose linear layers are all in one format; and what was stored of each."""

    def make(
        weight_format: WeightFormat,
        activation: ActivationFormat | None = None,
        change: Callable[[dict[str, torch.Tensor]], object] = lambda tensors: None,
        **settings: Any,
    ) -> tuple[Path, dict[str, QuantizedWeight]]:
        config = tiny.config("qwen3", num_hidden_layers=1)
        tensors, stored = {}, {}
        for name, tensor in tiny.weights(config).items():
            module = name.removesuffix(".weight")
            if "_proj" not in name:
                tensors[name] = tensor
                continue
            weight = weight_for(weight_format, *tensor.shape, seed=len(stored))
            stored[name] = weight_format.as_stored(weight)
            for suffix, part in weight_format.write(weight).items():
                tensors[f"{module}.{suffix}"] = part
        change(tensors)
        values = quantization_values(weight_format, activation) | settings
        path = tiny.hf(tmp_path / "model", config, tensors, quantization_config=values)
        return path, stored

    return make


@pytest.mark.parametrize(("weight_format", "activation"), FORMATS, ids=repr)
def test_every_format_gives_its_codes_and_its_numbers(
    weight_format: WeightFormat, activation: ActivationFormat | None, folder: Folder
) -> None:
    path, stored = folder(weight_format, activation)
    checkpoint = HFCheckpoint(path)
    assert len(stored) == 7
    for name in checkpoint.names():
        found = checkpoint.quantized(name)
        if name not in stored:
            assert found is None
            assert checkpoint.activation_format(name) is None
            continue
        assert found is not None
        assert same(found, stored[name])
        assert checkpoint.activation_format(name) == activation
        exact = stored[name].dequantize()
        assert torch.equal(checkpoint.tensor(name, torch.float32), exact)
        out = torch.empty(exact.shape, dtype=torch.bfloat16)
        assert checkpoint.tensor(name, torch.bfloat16, out) is out
        assert torch.equal(out, exact.bfloat16())


def test_a_file_in_shards_is_read(folder: Folder) -> None:
    path, stored = folder(GPTQFormat(4, 32))
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    # Even the tensors of one layer may lie in two files.
    files = {name: f"model-{index % 3}.safetensors" for index, name in enumerate(tensors)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in tensors if files[name] == file}, path / file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    checkpoint = HFCheckpoint(path)
    for name, weight in stored.items():
        found = checkpoint.quantized(name)
        assert found is not None
        assert same(found, weight)


def test_a_layer_that_was_left_as_it_is_is_read_so(folder: Folder) -> None:
    plain = torch.randn(64, 128)

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if name.startswith("model.layers.0.self_attn.o_")]:
            del tensors[name]
        tensors["model.layers.0.self_attn.o_proj.weight"] = plain

    path, _ = folder(PackQuantizedFormat(4, 32), change=change)
    checkpoint = HFCheckpoint(path)
    name = "model.layers.0.self_attn.o_proj.weight"
    assert checkpoint.quantized(name) is None
    assert torch.equal(checkpoint.tensor(name, torch.float32), plain)


def test_a_scale_of_inputs_that_lies_beside_the_weight_is_read(folder: Folder) -> None:
    scales: dict[str, float] = {}

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if name.endswith("weight_scale")]:
            scales[name.removesuffix("_scale")] = 0.5 + len(scales)
            tensors[name.removesuffix("weight_scale") + "input_scale"] = torch.tensor(
                [scales[name.removesuffix("_scale")]]
            )

    settings = {"quant_method": "fp8", "activation_scheme": "static"}
    path, _ = folder(FloatQuantizedFormat("tensor"), None, change, **settings)
    checkpoint = HFCheckpoint(path)
    for name, scale in scales.items():
        found = checkpoint.activation_format(name)
        assert found == ActivationFormat(kind="fp8", granularity="tensor", scale=scale)


def without(name: str) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda tensors: tensors.pop(f"{Q_PROJ}.{name}")


def replaced(name: str, tensor: torch.Tensor) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda tensors: tensors.update({f"{Q_PROJ}.{name}": tensor})


@pytest.mark.parametrize(
    ("weight_format", "change", "message"),
    [
        (GPTQFormat(4, 32), without("qweight"), r"q_proj\.qweight' is missing, which GPTQ int4"),
        (GPTQFormat(4, 32), without("scales"), r"q_proj\.scales' is missing"),
        (GPTQFormat(4, 32, act_order=True), without("g_idx"), r"q_proj\.g_idx' is missing"),
        (
            GPTQFormat(4, 32),
            replaced("qzeros", torch.zeros(3, 16, dtype=torch.int32)),
            r"q_proj\.qzeros' has shape \[3, 16\], but .* ask for \[2, 16\]",
        ),
        (
            AWQFormat(32),
            replaced("qweight", torch.zeros(64, 16)),
            r"q_proj\.qweight' is of type F32, but AWQ int4.* keeps I32",
        ),
        (PackQuantizedFormat(4, 32), without("weight_packed"), r"q_proj\.weight_packed' is miss"),
        (
            PackQuantizedFormat(4, 32),
            replaced("weight_shape", torch.tensor([64, 128])),
            r"layer 'model\.layers\.0\.self_attn\.q_proj': weight_shape says \[64, 128\]",
        ),
        (IntQuantizedFormat(), without("weight_scale"), r"q_proj\.weight_scale' is missing"),
        (
            IntQuantizedFormat(),
            replaced("weight", torch.zeros(128, 32, dtype=torch.int8)),
            r"q_proj\.weight' has shape \[128, 32\]",
        ),
        (
            FloatQuantizedFormat(),
            replaced("weight", torch.zeros(128, 64, dtype=torch.int8)),
            r"q_proj\.weight' is of type I8, but fp8 e4m3.* keeps F8_E4M3",
        ),
        (FourBitFormat(block_size=32), without("weight.absmax"), r"weight\.absmax' is missing"),
        (
            FourBitFormat(block_size=32),
            replaced("weight.absmax", torch.ones(3)),
            "absmax has 3 blocks; 256 of 32",
        ),
        (FP8BlockFormat(), without("weight_scale_inv"), r"weight_scale_inv' is missing"),
        (
            GPTQFormat(4, 32, act_order=True),
            replaced("g_idx", torch.full((64,), 9, dtype=torch.int32)),
            r"layer 'model\.layers\.0\.self_attn\.q_proj': g_idx names groups from 9 to 9",
        ),
        (
            GPTQFormat(4, 32),
            replaced("qweight_2", torch.zeros(2, dtype=torch.int32)),
            r"q_proj\.qweight_2' is of type I32, which is not supported",
        ),
    ],
    ids=lambda value: "change" if callable(value) else repr(value),
)
def test_damage_is_named(
    weight_format: WeightFormat,
    change: Callable[[dict[str, torch.Tensor]], object],
    message: str,
    folder: Folder,
) -> None:
    activation = ActivationFormat() if isinstance(weight_format, IntQuantizedFormat) else None
    path, _ = folder(weight_format, activation, change)
    with pytest.raises(ModelLoadError, match=message):
        HFCheckpoint(path).quantized(f"{Q_PROJ}.weight")


def test_a_file_that_was_cut_short_is_named(folder: Folder) -> None:
    path, _ = folder(GPTQFormat(4, 32))
    checkpoint = HFCheckpoint(path)
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors: damaged or truncated"):
        checkpoint.quantized(f"{Q_PROJ}.weight")


def test_settings_that_are_not_supported_are_refused_with_the_file(folder: Folder) -> None:
    path, _ = folder(GPTQFormat(4, 32), bits=5)
    with pytest.raises(ModelLoadError, match=r"config\.json: quantization_config: GPTQ has 2, 3"):
        HFCheckpoint(path)
    path, _ = folder(GPTQFormat(4, 32), quant_method="aqlm")
    for reader in (HFCheckpoint, read_config):
        with pytest.raises(ModelLoadError, match=r"config\.json: .* with aqlm are not supported"):
            reader(path)  # type: ignore[operator]


def test_a_quantization_config_that_is_no_object_is_refused(tiny: Any, tmp_path: Path) -> None:
    config = tiny.config("llama")
    path = tiny.hf(tmp_path, config, tiny.weights(config), quantization_config="gptq")
    with pytest.raises(ModelLoadError, match="'quantization_config' must be an object"):
        HFCheckpoint(path)
