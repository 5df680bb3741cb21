"""NF4 and int8 as bitsandbytes itself makes and reads them."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infra_lab.errors import ModelLoadError, UsageError
from infra_lab.formats.bitsandbytes import (
    FourBitFormat,
    RowInt8Format,
    double_quantization,
    undo_double_quantization,
)
from infra_lab.formats.nested_scales import recovered
from infra_lab.formats.quantized_weight import QuantizedWeight
from infra_lab.formats.tables import dynamic_table, nf4_table
from tests.formats.quantized_weights import integer_weight, random_codes, same, weight_for

STATE = "weight.quant_state.bitsandbytes__nf4"


@pytest.fixture
def functional() -> Any:
    return pytest.importorskip("bitsandbytes.functional")


def quantized(functional: Any, matrix: torch.Tensor, nested: bool, kind: str = "nf4") -> Any:
    """What a checkpoint of bitsandbytes has for a matrix, and the matrix it dequantizes to."""
    packed, state = functional.quantize_4bit(matrix, quant_type=kind, compress_statistics=nested)
    tensors = {f"weight.{name}": value for name, value in state.as_dict(packed=True).items()}
    return tensors | {"weight": packed}, dequantized(functional, packed, state)


def dequantized(functional: Any, packed: torch.Tensor, state: Any) -> torch.Tensor:
    """As one row: its CPU code begins a new block with every row, though it quantizes straight
    on (bitsandbytes 0.50), which differs where rows are no multiple of 64."""
    shape, state.shape = state.shape, torch.Size([1, math.prod(state.shape)])
    found: torch.Tensor = functional.dequantize_4bit(packed, state)
    return found.view(shape)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("shape", [(16, 64), (40, 576), (7, 96), (5, 30)])
def test_its_tensors_dequantize_to_its_own_bits(
    functional: Any, shape: tuple[int, int], kind: str, nested: bool
) -> None:
    """Rows that are no multiple of 64 have blocks that run on into the next row."""
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 0.02
    tensors, theirs = quantized(functional, matrix, nested, kind)
    weight = FourBitFormat(kind, nested).read(tensors, *shape)
    assert torch.equal(weight.dequantize(), theirs)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("shape", [(16, 64), (40, 576), (6, 32)])
def test_it_reads_what_was_to_be_stored(
    functional: Any, shape: tuple[int, int], nested: bool
) -> None:
    weight_format = FourBitFormat("nf4", nested)
    generator = torch.Generator().manual_seed(1)
    codes = random_codes(generator, *shape, nf4_table())
    blocks = torch.rand(-(-codes.numel() // 64), generator=generator)
    size = min(64, shape[1])
    scales = blocks.repeat_interleave(64 // size).view(shape[0], -1)
    weight = QuantizedWeight(codes, nf4_table(), scales, 4, size)
    tensors = weight_format.write(weight)
    packed = tensors.pop("weight")
    named = {name.removeprefix("weight."): tensor for name, tensor in tensors.items()}
    state = functional.QuantState.from_dict(named, device=torch.device("cpu"))
    state.dtype = torch.float32
    theirs = dequantized(functional, packed, state)
    assert torch.equal(theirs, weight_format.as_stored(weight).dequantize())


@pytest.mark.parametrize("nested", [False, True])
def test_what_it_wrote_is_written_as_it_was(functional: Any, nested: bool) -> None:
    """All but the settings' dtype: the type that the matrix had before."""
    matrix = torch.randn(40, 576, generator=torch.Generator().manual_seed(0)) * 0.02
    tensors, _ = quantized(functional, matrix, nested=False)
    written = FourBitFormat("nf4", nested).write(FourBitFormat("nf4").read(tensors, 40, 576))
    theirs, _ = quantized(functional, matrix, nested)
    assert set(written) == set(theirs)
    for name in set(theirs) - {STATE}:
        if nested and name == "weight.absmax":
            # Near the middle between two codes, its CPU code is not exact: see below.
            off = (written[name].int() - theirs[name].int()).abs()
            assert off.max() <= 1
            assert off.sum() <= 0.01 * len(off)
        else:
            assert torch.equal(written[name], theirs[name]), name
    ours, expected = (json.loads(bytes(found[STATE].tolist())) for found in (written, theirs))
    assert ours | {"dtype": "float32"} == expected


def test_the_tables_are_its_own(functional: Any) -> None:
    assert torch.equal(functional.get_4bit_type("nf4", device="cpu"), nf4_table())
    assert torch.equal(functional.create_dynamic_map(), dynamic_table())


@settings(max_examples=20)
@given(st.integers(1, 700), st.integers(0, 99))
def test_double_quantization_takes_the_nearest_code(count: int, seed: int) -> None:
    """bitsandbytes' CPU code takes the other neighbour now and then, close to the middle."""
    magnitudes = torch.rand(count, generator=torch.Generator().manual_seed(seed))
    codes, nested, table, offset, block = double_quantization(magnitudes)
    fractions = (magnitudes - offset) / nested.repeat_interleave(block)[:count]
    distances = (fractions[:, None] - table).abs()
    chosen = distances.gather(1, codes.long()[:, None])[:, 0]
    if count > 1:
        assert torch.equal(chosen, distances.min(dim=1).values)


@settings(max_examples=25)
@given(
    st.sampled_from([32, 100, 256, 257, 300, 3000]),
    st.sampled_from(["even", "normal", "heavy"]),
    st.integers(0, 999),
)
def test_double_quantization_is_found_again_from_the_scales_it_left(
    count: int, kind: str, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    if kind == "even":
        magnitudes = torch.rand(count, generator=generator)
    elif kind == "normal":
        magnitudes = torch.randn(count, 64, generator=generator).abs().amax(dim=1)
    else:
        magnitudes = torch.randn(count, generator=generator).exp()
    codes, _, table, _, block = double_quantization(magnitudes)
    scales = undo_double_quantization(*double_quantization(magnitudes))
    found = recovered(scales, table, block)
    assert found is not None
    assert torch.equal(undo_double_quantization(found[0], found[1], table, found[2], block), scales)
    assert recovered(magnitudes, table, block) is None
    if count != 257:  # a last block of one number may be the largest code or another
        assert torch.equal(found[0], codes)


def test_its_own_double_quantization_is_written_as_it_was(functional: Any) -> None:
    matrix = torch.randn(96, 576, generator=torch.Generator().manual_seed(0)) * 0.02
    tensors, _ = quantized(functional, matrix, nested=True)
    weight_format = FourBitFormat("nf4", double_quantization=True)
    written = weight_format.write(weight_format.read(tensors, 96, 576))
    for name in tensors:
        assert torch.equal(written[name], tensors[name]), name


def test_equal_magnitudes_survive_double_quantization() -> None:
    """What is left of them is zero, which nothing can be divided by."""
    weight_format = FourBitFormat(double_quantization=True)
    weight = weight_for(weight_format, 4, 128)
    weight.scales[:] = 0.5
    assert torch.equal(weight_format.as_stored(weight).scales, weight.scales)


def test_an_odd_number_of_weights_ends_in_half_a_byte() -> None:
    weight_format = FourBitFormat(block_size=7)
    weight = weight_for(weight_format, 3, 7)
    tensors = weight_format.write(weight)
    assert tensors["weight"].shape == (11, 1)
    assert same(weight_format.read(tensors, 3, 7), weight_format.as_stored(weight))


def test_int8_rows_multiply_as_its_own_do(functional: Any) -> None:
    matrix = torch.randn(24, 48, generator=torch.Generator().manual_seed(0))
    codes, largest, _ = functional.int8_vectorwise_quant(matrix.half())
    tensors = {"weight": codes, "SCB": largest}
    weight = RowInt8Format().read(tensors, 24, 48)
    theirs = functional.int8_vectorwise_dequant(codes, largest)
    assert torch.allclose(weight.dequantize(), theirs, rtol=2.0**-22, atol=0)  # 1/127, rounded
    written = RowInt8Format().write(weight)
    assert torch.equal(written["weight"], codes)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (b"{", "quant_state is damaged"),
        (b"[]", "quant_state is damaged"),
        (b'{"shape": [4, 64]}', r"says shape \[4, 64\], but the config asks for \[4, 128\]"),
        (b'{"shape": [4, 128], "blocksize": 0}', "blocksize 0; a positive integer"),
        (b'{"shape": [4, 128], "blocksize": 64, "nested_blocksize": 2}', "nested_absmax has 1"),
        (b'{"shape": [4, 128], "blocksize": 64, "nested_blocksize": 256}', "nested_offset None"),
    ],
)
def test_settings_that_make_no_weight_are_refused(state: bytes, message: str) -> None:
    weight_format = FourBitFormat(double_quantization=True)
    tensors = weight_format.write(weight_for(weight_format, 4, 128))
    tensors[STATE] = torch.tensor(list(state), dtype=torch.uint8)
    with pytest.raises(ModelLoadError, match=message):
        weight_format.read(tensors, 4, 128)


def test_a_wrong_number_of_blocks_is_refused() -> None:
    tensors = FourBitFormat().write(weight_for(FourBitFormat(), 4, 128))
    tensors["weight.absmax"] = tensors["weight.absmax"][1:]
    with pytest.raises(ModelLoadError, match="absmax has 7 blocks; 8 of 64 weights"):
        FourBitFormat().read(tensors, 4, 128)


def test_int8_in_the_tiles_of_a_gpu_is_refused() -> None:
    tensors = RowInt8Format().write(integer_weight(4, 64, 8, None))
    tensors["weight_format"] = torch.tensor(1, dtype=torch.uint8)
    with pytest.raises(ModelLoadError, match="weight_format is 1"):
        RowInt8Format().read(tensors, 4, 64)


def test_fp4_is_only_read() -> None:
    with pytest.raises(UsageError, match="fp4 is only read"):
        FourBitFormat("fp4").as_stored(weight_for(FourBitFormat(), 4, 64))


def test_blocks_with_several_scales_are_refused() -> None:
    generator = torch.Generator().manual_seed(0)
    codes = random_codes(generator, 4, 64, nf4_table())
    weight = QuantizedWeight(codes, nf4_table(), torch.arange(8.0).view(4, 2), 4, 32)
    with pytest.raises(UsageError, match="different scales"):
        FourBitFormat().as_stored(weight)
