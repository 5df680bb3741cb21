"""Every code decodes to its value, every value rounds to its nearest code, once."""

from __future__ import annotations

from bisect import bisect
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.testing.float_codecs import (
    FLOAT_FORMATS,
    FloatFormat,
    decode,
    encode,
    float_format,
    round_to_odd,
    round_to_tf32,
)

EIGHT_BIT = [value for value in FLOAT_FORMATS.values() if value.numpy_type.itemsize == 1]
NARROW = [value for value in FLOAT_FORMATS.values() if value.narrow]
TORCH_TYPES = {
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
    "fp8e4b8": torch.float8_e4m3fnuz,
    "fp8e5b16": torch.float8_e5m2fnuz,
}
by_name = pytest.mark.parametrize("float_type", NARROW, ids=lambda value: value.name)
eight_bit = pytest.mark.parametrize("float_type", EIGHT_BIT, ids=lambda value: value.name)


def all_codes(float_type: FloatFormat) -> np.ndarray:
    return np.arange(2 ** (8 * float_type.code_type.itemsize)).astype(float_type.code_type)


def nearest_of(value: float, ladder: list[tuple[float, int]]) -> float:
    """The nearest of sorted (value, code), ties to the even code, in exact arithmetic."""
    place = bisect(ladder, (value, -1))
    return min(
        ladder[max(0, place - 1) : place + 1],
        key=lambda step: (abs(Fraction(step[0]) - Fraction(value)), step[1] & 1),
    )[0]


@by_name
def test_every_code_decodes_as_torch_reads_it(float_type: FloatFormat) -> None:
    codes = all_codes(float_type)
    theirs = torch.from_numpy(codes.copy()).view(TORCH_TYPES[float_type.name]).float().numpy()
    np.testing.assert_array_equal(decode(codes, float_type), theirs)


@by_name
def test_every_code_survives_the_way_out_and_back(float_type: FloatFormat) -> None:
    codes = all_codes(float_type)
    values = decode(codes, float_type)
    kept = np.isfinite(values)
    np.testing.assert_array_equal(encode(values, float_type)[kept], codes[kept])
    assert np.isnan(decode(encode(values, float_type), float_type)[np.isnan(values)]).all()


@eight_bit
def test_values_between_two_codes_and_at_the_tie_round_to_nearest_even(
    float_type: FloatFormat,
) -> None:
    codes = all_codes(float_type)
    values = decode(codes, float_type).astype(np.float64)
    finite = np.isfinite(values)
    steps = sorted(zip(values[finite].tolist(), codes[finite].tolist(), strict=True))
    ladder = np.unique(values[finite])
    ties = (ladder[:-1] + ladder[1:]) / 2
    probes = np.concatenate([ties, np.nextafter(ties, -np.inf), np.nextafter(ties, np.inf)])
    expected = np.array([nearest_of(float(value), steps) for value in probes])
    np.testing.assert_array_equal(decode(encode(probes, float_type), float_type), expected)


def test_bfloat16_ties_go_to_the_even_code() -> None:
    positive = np.arange(0x7F7F, dtype=np.uint32) << 16
    ties = (positive | 0x8000).view(np.float32)
    up = (positive >> 16) + ((positive >> 16) & 1)
    np.testing.assert_array_equal(encode(ties, float_format("bf16")), up)
    np.testing.assert_array_equal(encode(-ties, float_format("bf16")), up | 0x8000)


@eight_bit
@pytest.mark.parametrize("value", [1e9, 3e38, np.inf])
def test_the_8_bit_formats_saturate_at_their_largest_value(
    float_type: FloatFormat, value: float
) -> None:
    both = np.array([value, -value], dtype=np.float32)
    expected = [float_type.largest, -float_type.largest]
    assert decode(encode(both, float_type), float_type).tolist() == expected


def test_the_edges_of_e4m3_are_those_of_the_conversion_instruction() -> None:
    float_type = float_format("fp8e4nv")
    values = np.array([447.0, 448.0, 464.0, 464.1, 480.0, np.inf, -0.0, 2.0**-10], np.float32)
    codes = encode(values, float_type)
    assert codes.tolist() == [0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0x80, 0x00]
    assert encode(np.array([np.nan], np.float32), float_type) & 0x7F == 0x7F


@by_name
def test_nan_stays_nan(float_type: FloatFormat) -> None:
    for value in (np.float32(np.nan), -np.float32(np.nan)):
        codes = encode(np.array([value]), float_type)
        assert np.isnan(decode(codes, float_type)).all()
    assert np.isnan(decode(np.array([float_type.nan_code], float_type.code_type), float_type))


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_the_16_bit_formats_overflow_to_infinity(name: str) -> None:
    values = np.array([3.4e38, -3.4e38], dtype=np.float32)
    float_type = float_format(name)
    assert decode(encode(values, float_type), float_type).tolist() == [np.inf, -np.inf]
    cut = decode(encode(values, float_type, "toward_zero"), float_type)
    assert cut.tolist() == [float_type.largest, -float_type.largest]


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.sampled_from(EIGHT_BIT))
def test_rounding_toward_zero_never_grows_a_value(value: float, float_type: FloatFormat) -> None:
    cut = decode(encode(np.array([value]), float_type, "toward_zero"), float_type)[0]
    assert abs(cut) <= abs(value)
    nearest = decode(encode(np.array([value]), float_type), float_type)[0]
    assert cut == nearest or abs(nearest) > abs(value)


@given(st.floats(allow_nan=False))
def test_a_double_rounds_to_bfloat16_once(value: float) -> None:
    """Against exact arithmetic: float32 in between would move some ties."""
    float_type = float_format("bf16")
    got = float(decode(encode(np.array([value]), float_type), float_type)[0])
    if not np.isfinite(got):
        # Half a step above the largest value and beyond.
        assert abs(value) >= 2.0**127 * (2 - 2.0**-8)
        return
    code = int(encode(np.array([got]), float_type)[0])
    wanted = abs(Fraction(got) - Fraction(value))
    for other in (code - 1, code + 1):
        if not 0 <= other <= 0xFFFF:
            continue
        neighbour = float(decode(np.array([other], np.uint16), float_type)[0])
        if np.isfinite(neighbour):
            distance = abs(Fraction(neighbour) - Fraction(value))
            assert wanted < distance or (wanted == distance and code % 2 == 0)


def test_float32_in_between_would_have_rounded_twice() -> None:
    value = np.array([1 + 2.0**-8 + 2.0**-40])  # just above a tie of bf16
    float_type = float_format("bf16")
    assert decode(encode(value, float_type), float_type)[0] == 1 + 2.0**-7
    through_float32 = encode(value.astype(np.float32), float_type)
    assert decode(through_float32, float_type)[0] == 1.0


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_an_inexact_value_becomes_odd_and_stays_within_one_step(value: float) -> None:
    odd = round_to_odd(np.array([value]))
    if float(odd[0]) == value:
        return
    assert odd.view(np.uint32)[0] & 1
    with np.errstate(over="ignore"):
        nearest = np.array([value]).astype(np.float32)
    steps = abs(int(odd.view(np.int32)[0]) - int(nearest.view(np.int32)[0]))
    assert steps <= 1


def test_tf32_keeps_ten_bits_of_mantissa() -> None:
    values = np.array([1 + 2.0**-10, 1 + 2.0**-11, -(1 + 2.0**-11), np.inf], dtype=np.float32)
    assert round_to_tf32(values).tolist() == [1 + 2.0**-10, 1.0, -1.0, np.inf]


def test_a_format_without_a_reference_is_named() -> None:
    with pytest.raises(NotImplementedError, match="fp8e4b15"):
        float_format("fp8e4b15")


def test_codes_of_the_wrong_width_are_refused() -> None:
    with pytest.raises(TypeError, match="uint8"):
        decode(np.zeros(2, np.uint16), float_format("fp8e5"))


def test_numpy_types_are_the_ones_ml_dtypes_documents() -> None:
    assert float_format("fp8e4nv").largest == 448
    assert float_format("fp8e5").largest == 57344
    assert float_format("fp8e4b8").largest == 240
    assert float_format("fp8e5b16").largest == 57344
    assert float_format("bf16").numpy_type == np.dtype(ml_dtypes.bfloat16)
