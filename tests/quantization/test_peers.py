"""What we write, as the packages read it that the formats come from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from infra_lab.formats.bitsandbytes import FourBitFormat, RowInt8Format
from infra_lab.formats.compressed_tensors import (
    FloatQuantizedFormat,
    IntQuantizedFormat,
    MXFP4Format,
    PackQuantizedFormat,
)
from infra_lab.formats.fp8_block import FP8BlockFormat
from infra_lab.formats.layouts import quantization_values
from infra_lab.formats.quantized_weight import ActivationFormat, QuantizedWeight
from infra_lab.formats.weight_format import WeightFormat, integer_table
from infra_lab.models.gguf_checkpoint import GGUFCheckpoint
from infra_lab.models.hf_checkpoint import HFCheckpoint
from infra_lab.models.tokenizer import load_tokenizer
from infra_lab.quantization.writer import write_folder
from tests.formats.quantized_weights import integer_weight, weight_for
from tests.models.test_families import our_logprobs
from tests.quantization.conftest import ForAll

TOKEN_IDS = torch.randint(96, (1, 24), generator=torch.Generator().manual_seed(0))
COMPRESSED: list[WeightFormat] = [
    *(PackQuantizedFormat(bits, 32) for bits in (2, 3, 4, 8)),
    *(PackQuantizedFormat(bits, 32, symmetric=False) for bits in (2, 3, 4, 8)),
    PackQuantizedFormat(4, None, symmetric=False),
    IntQuantizedFormat(),
    IntQuantizedFormat(symmetric=False),
    FloatQuantizedFormat(),
    MXFP4Format(),
]
Write = Callable[..., tuple[Path, HFCheckpoint]]


@pytest.fixture
def write(tiny: Any, weights_for: ForAll, tmp_path: Path) -> Write:
    """A tiny Llama in some format, everything else in fp32: the folder, and it as we read it."""

    def make(
        weight_format: WeightFormat, activation: ActivationFormat | None = None
    ) -> tuple[Path, HFCheckpoint]:
        config = tiny.config("llama", hidden_size=128, intermediate_size=192, head_dim=32)
        source = HFCheckpoint(tiny.hf(tmp_path / "source", config, tiny.weights(config)))
        weights = weights_for(source, weight_format)
        out = tmp_path / "out"
        write_folder(
            source, out, weights, weight_format, activation=activation, dtype=torch.float32
        )
        return out, HFCheckpoint(out)

    return make


def logits_of(folder: Path) -> torch.Tensor:
    """As transformers loads it, with whatever package the format asks for."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        found: torch.Tensor = model(TOKEN_IDS).logits
    return found


def exact_logits(checkpoint: HFCheckpoint) -> torch.Tensor:
    """Of transformers' plain model with the numbers that we read."""
    plain = AutoModelForCausalLM.from_pretrained(
        checkpoint.path.parent / "source", dtype=torch.float32
    )
    numbers = {name: checkpoint.tensor(name, torch.float32) for name in checkpoint.names()}
    missing = plain.load_state_dict(numbers, strict=False)
    assert missing.missing_keys == []
    with torch.no_grad():
        found: torch.Tensor = plain(TOKEN_IDS).logits
    return found


@pytest.mark.parametrize("weight_format", COMPRESSED, ids=repr)
def test_compressed_tensors_decompresses_to_the_same_bits(weight_format: WeightFormat) -> None:
    compressors = pytest.importorskip("compressed_tensors.compressors")
    quantization = pytest.importorskip("compressed_tensors.quantization")
    values = quantization_values(weight_format, None)
    group = quantization.QuantizationConfig(**values).config_groups["group_0"]
    weight = weight_for(weight_format, 64, 128)
    if isinstance(weight_format, MXFP4Format):
        weight.scales.clamp_(2.0**-10, 2.0**10)  # it decompresses in bfloat16
    tensors = weight_format.write(weight)
    if "weight_scale" in tensors and tensors["weight_scale"].dtype == torch.float16:
        tensors["weight_scale"] = tensors["weight_scale"].float()  # it computes in the scales' type
    compressor = compressors.BaseCompressor.get_value_from_registry(values["format"])
    theirs = compressor.decompress(tensors, group)["weight"]
    assert torch.equal(theirs.float(), weight_format.as_stored(weight).dequantize())


@pytest.mark.parametrize("weight_format", COMPRESSED, ids=repr)
def test_what_compressed_tensors_compresses_is_read_and_written_as_it_was(
    weight_format: WeightFormat,
) -> None:
    compressors = pytest.importorskip("compressed_tensors.compressors")
    quantization = pytest.importorskip("compressed_tensors.quantization")
    values = quantization_values(weight_format, None)
    group = quantization.QuantizationConfig(**values).config_groups["group_0"]
    weight = weight_for(weight_format, 64, 128)
    if isinstance(weight_format, MXFP4Format):
        weight.scales.clamp_(2.0**-10, 2.0**10)
    stored = weight_format.as_stored(weight)
    given = {"weight": stored.dequantize(), "weight_scale": stored.scales.clone()}
    if stored.zeros is not None:
        given["weight_zero_point"] = (stored.zeros - 2 ** (stored.bits - 1)).to(torch.int8)
    compressor = compressors.BaseCompressor.get_value_from_registry(values["format"])
    theirs = compressor.compress(given, group)
    read = weight_format.read(theirs, 64, 128)
    assert torch.equal(read.dequantize(), stored.dequantize())
    ours = weight_format.write(read)
    assert set(ours) == set(theirs)
    for name in set(ours) - {"weight_scale"}:
        if isinstance(weight_format, MXFP4Format):  # zero has two codes
            continue
        assert torch.equal(ours[name].float(), theirs[name].float()), name


@pytest.mark.parametrize(
    "weight_format",
    [PackQuantizedFormat(3, 32), FloatQuantizedFormat()],
    ids=repr,
)
def test_transformers_loads_a_compressed_tensors_folder(
    weight_format: WeightFormat, write: Write
) -> None:
    """Symmetric ones: compressed-tensors 0.20.1 makes no room for packed zero points when
    transformers has it prepare a model."""
    pytest.importorskip("compressed_tensors")
    folder, checkpoint = write(weight_format)
    assert torch.equal(logits_of(folder), exact_logits(checkpoint))


@pytest.mark.parametrize(
    ("weight_format", "activation"),
    [
        (IntQuantizedFormat(), ActivationFormat()),
        (FloatQuantizedFormat(), ActivationFormat(kind="fp8")),
    ],
    ids=repr,
)
def test_inputs_that_are_quantized_are_so_in_transformers(
    weight_format: WeightFormat, activation: ActivationFormat, write: Write
) -> None:
    """Not the exact logits, but near them."""
    pytest.importorskip("compressed_tensors")
    folder, checkpoint = write(weight_format, activation)
    theirs, exact = logits_of(folder), exact_logits(checkpoint)
    error = (theirs - exact).abs().max() / exact.abs().max()
    assert 0 < error < 0.05


@pytest.mark.parametrize("nested", [False, True])
def test_bitsandbytes_loads_an_nf4_folder(nested: bool, write: Write) -> None:
    """The same weights bit for bit; its CPU code multiplies in less than fp32."""
    functional = pytest.importorskip("bitsandbytes.functional")
    folder, checkpoint = write(FourBitFormat("nf4", nested))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    count = 0
    for name, module in model.named_modules():
        if type(module).__name__ == "Linear4bit":
            state = module.weight.quant_state
            assert state.dtype == torch.float32
            theirs = functional.dequantize_4bit(module.weight.data, state)
            assert torch.equal(theirs, checkpoint.tensor(f"{name}.weight", torch.float32))
            count += 1
    assert count == 14
    exact = exact_logits(checkpoint)
    with torch.no_grad():
        error = (model(TOKEN_IDS).logits - exact).abs().max() / exact.abs().max()
    assert error < 0.02


def test_bitsandbytes_loads_an_int8_folder(write: Write) -> None:
    pytest.importorskip("bitsandbytes")
    activation = ActivationFormat(outlier_threshold=6.0)
    folder, checkpoint = write(RowInt8Format(), activation)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    name = "model.layers.1.mlp.up_proj"
    module = model.get_submodule(name)
    assert type(module).__name__ == "Linear8bitLt"
    assert module.state.threshold == 6.0
    exact = exact_logits(checkpoint)
    with torch.no_grad():
        error = (model(TOKEN_IDS).logits - exact).abs().max() / exact.abs().max()
    assert 0 < error < 0.05


def test_transformers_loads_an_fp8_folder(write: Write) -> None:
    """Which it dequantizes where there is no GPU."""
    folder, checkpoint = write(FP8BlockFormat((64, 64)))
    assert torch.equal(logits_of(folder), exact_logits(checkpoint))


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_torchao_dequantizes_the_same_codes_to_the_same_bits(bits: int, symmetric: bool) -> None:
    primitives = pytest.importorskip("torchao.quantization.quant_primitives")
    weight = integer_weight(16, 64, bits, 32, symmetric=symmetric)
    zeros = torch.full((16, 2), 2.0 ** (bits - 1)) if weight.zeros is None else weight.zeros
    theirs = primitives.dequantize_affine(
        weight.codes,
        (1, 32),
        weight.scales,
        zeros.int(),
        torch.uint8,
        0,
        2**bits - 1,
        output_dtype=torch.float32,
    )
    assert torch.equal(theirs, weight.dequantize())


def rounded_to_nearest(matrix: torch.Tensor, group_size: int) -> QuantizedWeight:
    """Symmetric int4, the largest magnitude of each group at 7 steps."""
    groups = matrix.view(len(matrix), -1, group_size)
    scales = groups.abs().amax(dim=2) / 7
    codes = (groups / scales[:, :, None]).round().clamp(-8, 7) + 8
    return QuantizedWeight(
        codes.view(matrix.shape).to(torch.uint8), integer_table(4, True), scales, 4, group_size
    )


@pytest.mark.slow
@pytest.mark.model
def test_the_default_model_quantized_gives_our_logits(smollm2_path: Path, tmp_path: Path) -> None:
    """transformers with compressed-tensors, beside our engine on the same folder."""
    pytest.importorskip("compressed_tensors")
    source, weight_format = GGUFCheckpoint(smollm2_path), PackQuantizedFormat(4, 64)
    weights = {
        name: rounded_to_nearest(source.tensor(name, torch.float32), 64)
        for name in source.names()
        if "_proj.weight" in name
    }
    out = tmp_path / "out"
    write_folder(source, out, weights, weight_format, dtype=torch.float32)
    text = "The capital of France is Paris. The capital of Italy is"
    token_ids = load_tokenizer(source).encode(text)
    ours = our_logprobs(out, token_ids, [len(token_ids)])
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    with torch.no_grad():
        theirs = model(torch.tensor([token_ids])).logits.log_softmax(-1)[0, :-1]
    chosen = ours.isfinite()
    assert (ours - theirs)[chosen].abs().max() < 1e-3
