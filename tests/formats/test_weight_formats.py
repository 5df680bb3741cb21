"""What all formats promise: what is read is what was stored, in the tensors that are listed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infra_lab.errors import ModelLoadError, UsageError
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
from infra_lab.formats.quantized_weight import QuantizedWeight
from infra_lab.formats.weight_format import WeightFormat
from tests.formats.quantized_weights import integer_weight, same, weight_for

SAFETENSORS_NAMES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.float8_e4m3fn: "F8_E4M3",
}
FORMATS: list[WeightFormat] = [
    *(GPTQFormat(bits, 32, symmetric=False) for bits in (2, 3, 4, 8)),
    GPTQFormat(4, None),
    GPTQFormat(4, 32, act_order=True),
    GPTQFormat(3, 64, symmetric=False, act_order=True, version=2),
    AWQFormat(32),
    AWQFormat(None, symmetric=True),
    *(PackQuantizedFormat(bits, 32) for bits in range(2, 9)),
    *(PackQuantizedFormat(bits, 32, symmetric=False) for bits in (2, 3, 4, 8)),
    PackQuantizedFormat(4, None),
    PackQuantizedFormat(4, 32, act_order=True),
    IntQuantizedFormat("channel"),
    IntQuantizedFormat("tensor"),
    IntQuantizedFormat("channel", symmetric=False),
    IntQuantizedFormat("tensor", symmetric=False),
    FloatQuantizedFormat("channel"),
    FloatQuantizedFormat("tensor"),
    MXFP4Format(),
    FourBitFormat(),
    FourBitFormat(double_quantization=True),
    RowInt8Format(),
    FP8BlockFormat((16, 32)),
    FP8BlockFormat((128, 128), "weight_scale"),
]
SIZES = st.tuples(st.integers(1, 3).map(lambda n: 32 * n), st.integers(1, 3).map(lambda n: 64 * n))


@pytest.mark.parametrize("weight_format", FORMATS, ids=repr)
@settings(max_examples=5)
@given(SIZES, st.integers(0, 99))
def test_what_is_read_is_what_was_to_be_stored(
    weight_format: WeightFormat, size: tuple[int, int], seed: int
) -> None:
    weight = weight_for(weight_format, *size, seed)
    read = weight_format.read(weight_format.write(weight), *size)
    assert same(read, weight_format.as_stored(weight))


@pytest.mark.parametrize("weight_format", FORMATS, ids=repr)
def test_what_is_written_is_what_is_listed(weight_format: WeightFormat) -> None:
    written = weight_format.write(weight_for(weight_format, 32, 192))
    listed = weight_format.tensors(32, 192)
    assert set(written) == set(listed)
    for name, tensor in written.items():
        wanted = listed[name].shapes[0]
        assert len(tensor.shape) == len(wanted), name
        assert all(size in (None, found) for found, size in zip(tensor.shape, wanted, strict=True))
        assert SAFETENSORS_NAMES[tensor.dtype] in listed[name].dtypes


@pytest.mark.parametrize("weight_format", FORMATS, ids=repr)
@settings(max_examples=5)
@given(SIZES, st.integers(0, 99))
def test_what_was_read_is_written_as_it_was(
    weight_format: WeightFormat, size: tuple[int, int], seed: int
) -> None:
    tensors = weight_format.write(weight_for(weight_format, *size, seed))
    read = weight_format.read(tensors, *size)
    assert same(weight_format.as_stored(read), read)
    again = weight_format.write(read)
    for name, tensor in tensors.items():
        # Two neighbouring fp32 numbers may have the same 127th, or do the same to all scales.
        if name not in ("SCB", "weight.nested_absmax"):
            assert torch.equal(again[name].view(torch.uint8), tensor.view(torch.uint8)), name


@pytest.mark.parametrize("weight_format", FORMATS, ids=repr)
def test_codes_do_not_change(weight_format: WeightFormat) -> None:
    weight = weight_for(weight_format, 64, 128)
    stored = weight_format.as_stored(weight)
    assert torch.equal(stored.codes, weight.codes)
    error = (stored.dequantize() - weight.dequantize()).abs()
    nested = getattr(weight_format, "double_quantization", False)
    allowed = 0.1 if nested else 2.0**-11  # a scale rounded to fp16; 8 bits of its largest
    assert torch.all(error <= allowed * weight.dequantize().abs().max() + 1e-30)


@pytest.mark.parametrize(
    ("weight_format", "changed", "message"),
    [
        (GPTQFormat(4, 32), {"bits": 8}, "8 bits in groups of 32"),
        (GPTQFormat(4, 32), {"group_size": 64}, "4 bits in groups of 64"),
        (GPTQFormat(4, 32), {"symmetric": False}, "is symmetric, and this weight has zero points"),
        (GPTQFormat(4, 32), {"act_order": True}, "consecutive columns"),
        (GPTQFormat(4, 32), {"rows": 12}, "12 codes make none"),
        (AWQFormat(32), {"columns": 48}, "32 rows of 48"),
        (AWQFormat(32, symmetric=True), {"symmetric": False}, "no zero points"),
        (PackQuantizedFormat(4, 32), {"act_order": True}, "consecutive columns"),
        (PackQuantizedFormat(4, 32), {"symmetric": False}, "symmetric"),
        (IntQuantizedFormat(), {"bits": 8}, "8 bits in groups of 32"),
        (IntQuantizedFormat("tensor"), {"bits": 8, "group_size": None}, "for the whole matrix"),
        (RowInt8Format(), {"bits": 8, "group_size": None, "symmetric": False}, "symmetric"),
        (FloatQuantizedFormat(), {"bits": 8, "group_size": None}, "codes stand for others"),
        (FP8BlockFormat(), {"bits": 8}, "codes stand for others"),
        (FourBitFormat(), {}, "codes stand for others"),
        (MXFP4Format(), {"symmetric": False}, "neither zero points nor offsets"),
    ],
    ids=repr,
)
def test_a_weight_that_a_format_cannot_hold_is_refused(
    weight_format: WeightFormat, changed: dict[str, Any], message: str
) -> None:
    settings: dict[str, Any] = {"rows": 32, "columns": 64, "bits": 4, "group_size": 32}
    weight = integer_weight(**(settings | changed))
    with pytest.raises(UsageError, match=message):
        weight_format.as_stored(weight)
    with pytest.raises(UsageError, match=message):
        weight_format.write(weight)


@pytest.mark.parametrize("weight_format", [GPTQFormat(4, 32), AWQFormat(32, True)], ids=repr)
@pytest.mark.parametrize("scale", [1e5, float("nan"), float("inf")])
def test_a_scale_beyond_fp16_is_refused(weight_format: WeightFormat, scale: float) -> None:
    weight = integer_weight(32, 64, 4, 32)
    weight.scales[3, 1] = scale
    with pytest.raises(UsageError, match="keeps scales in float16"):
        weight_format.as_stored(weight)


@pytest.mark.parametrize("weight_format", FORMATS, ids=repr)
def test_a_tiny_group_becomes_zeros_and_never_nan(weight_format: WeightFormat) -> None:
    """A group of weights near 1e-30 has a scale that fp16 has not."""
    weight = weight_for(weight_format, 32, 128)
    if isinstance(weight_format, MXFP4Format):
        weight.scales[:] = 2.0**-100
    else:
        weight.scales[:] = 1e-30
    stored = weight_format.read(weight_format.write(weight), 32, 128)
    assert torch.all(stored.dequantize().abs() <= 1e-25)


@pytest.mark.parametrize(
    "weight_format",
    [
        GPTQFormat(4, 32, symmetric=False),
        GPTQFormat(4, 256),
        PackQuantizedFormat(4, 32, symmetric=False),
        PackQuantizedFormat(3, 256),
    ],
    ids=repr,
)
def test_the_last_group_may_be_shorter(weight_format: WeightFormat) -> None:
    """4304 columns in groups of 128 are a real model's; here 336 in groups of 32 and of 256."""
    weight = weight_for(weight_format, 32, 336)
    assert weight.num_groups * weight.group_size > 336
    read = weight_format.read(weight_format.write(weight), 32, 336)
    assert same(read, weight_format.as_stored(weight))


def test_zero_points_between_codes_are_refused() -> None:
    weight = integer_weight(32, 64, 4, 32, symmetric=False)
    assert weight.zeros is not None
    for zero in (0.5, -1.0, 16.0):
        weight.zeros[0, 0] = zero
        with pytest.raises(UsageError, match="zero points as integers from 0 to 15"):
            GPTQFormat(4, 32, symmetric=False).as_stored(weight)


def test_offsets_are_refused_where_zero_points_are_meant() -> None:
    weight = replace(integer_weight(32, 64, 4, 32), offsets=torch.ones(32, 2))
    with pytest.raises(UsageError, match="this weight has offsets"):
        AWQFormat(32).as_stored(weight)


def test_nan_codes_of_fp8_are_refused() -> None:
    weight = weight_for(FloatQuantizedFormat(), 4, 64)
    weight.codes[0, 0] = 0x7F
    with pytest.raises(UsageError, match="NaN"):
        FloatQuantizedFormat().as_stored(weight)


def test_mxfp4_scales_that_are_no_powers_of_two_are_refused() -> None:
    weight = weight_for(MXFP4Format(), 4, 64)
    weight.scales[0, 0] = 0.75
    with pytest.raises(UsageError, match="powers of two"):
        MXFP4Format().as_stored(weight)


def test_rows_of_one_block_with_several_scales_are_refused() -> None:
    weight = weight_for(FP8BlockFormat(), 4, 128)
    weight.scales[1, 0] *= 2
    with pytest.raises(UsageError, match="rows of one block differ"):
        FP8BlockFormat().as_stored(weight)


@pytest.mark.parametrize(
    "make",
    [
        lambda: GPTQFormat(5),
        lambda: GPTQFormat(version=3),
        lambda: GPTQFormat(group_size=0),
        lambda: AWQFormat(group_size=0),
        lambda: PackQuantizedFormat(9),
        lambda: PackQuantizedFormat(group_size=-1),
        lambda: FourBitFormat("int4"),
        lambda: FP8BlockFormat((0, 128)),
    ],
)
def test_formats_that_do_not_exist_are_refused(make: Any) -> None:
    with pytest.raises(UsageError):
        make()


def test_a_group_that_is_not_there_is_refused_when_read() -> None:
    weight_format = GPTQFormat(4, 32, act_order=True)
    tensors = weight_format.write(integer_weight(32, 64, 4, 32, act_order=True))
    tensors["g_idx"][7] = 2
    with pytest.raises(ModelLoadError, match="names groups from 0 to 2; there are 2"):
        weight_format.read(tensors, 32, 64)


def test_groups_in_their_order_say_nothing_new() -> None:
    weight_format = GPTQFormat(4, 32)
    tensors = weight_format.write(integer_weight(32, 64, 4, 32))
    assert tensors["g_idx"].tolist() == [0] * 32 + [1] * 32
    assert weight_format.read(tensors, 32, 64).g_idx is None


def test_gptq_and_awq_decode_by_their_published_formulas() -> None:
    """Element by element from the words, as a kernel's author would."""
    weight = integer_weight(16, 64, 4, 32, symmetric=False)
    gptq = GPTQFormat(4, 32, symmetric=False).write(weight)
    awq = AWQFormat(32).write(weight)
    stored = AWQFormat(32).as_stored(weight).dequantize()
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    for n in range(16):
        for k in range(64):
            g = k // 32
            code = int(gptq["qweight"][k // 8, n]) >> (4 * (k % 8)) & 15
            zero = (int(gptq["qzeros"][g, n // 8]) >> (4 * (n % 8)) & 15) + 1 & 15
            assert (code - zero) * float(gptq["scales"][g, n]) == stored[n, k]
            nibble = order.index(n % 8)
            code = int(awq["qweight"][k, n // 8]) >> (4 * nibble) & 15
            zero = int(awq["qzeros"][g, n // 8]) >> (4 * nibble) & 15
            assert (code - zero) * float(awq["scales"][g, n]) == stored[n, k]


@settings(max_examples=15)
@given(st.integers(1, 200), st.integers(1, 200), st.integers(0, 99))
def test_ragged_fp8_blocks_have_a_scale_each(rows: int, columns: int, seed: int) -> None:
    weight_format = FP8BlockFormat()
    weight = weight_for(weight_format, rows, columns, seed)
    tensors = weight_format.write(weight)
    assert tensors["weight_scale_inv"].shape == (-(-rows // 128), -(-columns // 128))
    numbers = tensors["weight"].float()
    for row in range(0, rows, 128):
        for column in range(0, columns, 128):
            part = numbers[row : row + 128, column : column + 128]
            part *= tensors["weight_scale_inv"][row // 128, column // 128]
    assert torch.equal(weight_format.read(tensors, rows, columns).dequantize(), numbers)


def plain_integers(weight: QuantizedWeight) -> bool:
    return weight.zeros is None and weight.values[0] == -(2.0 ** (weight.bits - 1))


def test_a_symmetric_weight_has_a_signed_table_and_no_zero_points() -> None:
    """The one form that kernels for symmetric weights look for, whoever wrote the file."""
    for weight_format in (GPTQFormat(4, 32), AWQFormat(32, True), PackQuantizedFormat(4, 32)):
        weight = integer_weight(32, 64, 4, 32)
        assert plain_integers(weight_format.read(weight_format.write(weight), 32, 64))
