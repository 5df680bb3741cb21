"""Narrow floats as numpy has them not: bf16 and the 8-bit formats, to and from their bits.

How does a GPU round to fp8, and what becomes of 1e9, infinity and NaN there? Decoding is a
table of the format (ml_dtypes); encoding rounds once, to nearest even, and overflows as the
GPU's conversion does:

- bf16 and fp16 overflow to infinity (`cvt.rn.bf16.f32`, `cvt.rn.f16.f32`);
- the 8-bit formats saturate at their largest finite value, infinities too. NVIDIA converts with
  `cvt.rn.satfinite.e4m3x2.f32` and `.e5m2x2.f32` (PTX ISA, "cvt"); on CDNA3 Triton sets the
  FP16_OVFL mode bit, under which the fnuz conversions clamp;
- NaN stays NaN everywhere.

Plain torch and ml_dtypes differ from this (float8_e5m2 of 1e9 is inf there), so tests compare
kernels with these functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Rounding = Literal["nearest_even", "toward_zero"]


@dataclass(frozen=True)
class FloatFormat:
    """A float type: its name in Triton, its numpy type, and how its conversion overflows."""

    name: str
    numpy_type: np.dtype[Any]
    saturates: bool

    @property
    def code_type(self) -> np.dtype[Any]:
        """The unsigned integer that holds one value's bits."""
        return np.dtype(f"u{self.numpy_type.itemsize}")

    @property
    def narrow(self) -> bool:
        """Whether numpy itself cannot compute with it, so that its data is carried as bits."""
        return self.numpy_type.kind == "V" or self.numpy_type.type.__module__ == "ml_dtypes"

    @property
    def largest(self) -> float:
        limits = ml_dtypes.finfo(self.numpy_type)  # type: ignore[no-untyped-call]
        return float(limits.max)

    @property
    def nan_code(self) -> int:
        return int(np.array(np.nan).astype(self.numpy_type).view(self.code_type))


FLOAT_FORMATS: dict[str, FloatFormat] = {
    name: FloatFormat(name, np.dtype(numpy_type), saturates)
    for name, numpy_type, saturates in (
        ("fp64", np.float64, False),
        ("fp32", np.float32, False),
        ("fp16", np.float16, False),
        ("bf16", ml_dtypes.bfloat16, False),
        ("fp8e4nv", ml_dtypes.float8_e4m3fn, True),
        ("fp8e5", ml_dtypes.float8_e5m2, True),
        ("fp8e4b8", ml_dtypes.float8_e4m3fnuz, True),
        ("fp8e5b16", ml_dtypes.float8_e5m2fnuz, True),
    )
}


def float_format(name: str) -> FloatFormat:
    """The format that Triton calls `name`; NotImplementedError for those without a reference."""
    try:
        return FLOAT_FORMATS[name]
    except KeyError:
        known = ", ".join(FLOAT_FORMATS)
        raise NotImplementedError(
            f"no reference for Triton's type {name!r}; the interpreter knows {known}"
        ) from None


def decode(codes: Array, float_type: FloatFormat) -> Array:
    """Values of `codes`: float32 for narrow formats, which it holds exactly; else unchanged."""
    if not float_type.narrow:
        return codes
    if codes.dtype != float_type.code_type:
        raise TypeError(f"{float_type.name} is held in {float_type.code_type}, not {codes.dtype}")
    return np.ascontiguousarray(codes).view(float_type.numpy_type).astype(np.float32)


def encode(values: Array, float_type: FloatFormat, rounding: Rounding = "nearest_even") -> Array:
    """`values` (float32 or float64, or any integers) in `float_type`, rounded once.

    Narrow formats come back as their codes, the others as numpy floats.
    """
    wide = values if values.dtype in (np.float32, np.float64) else values.astype(np.float64)
    if float_type.numpy_type == wide.dtype:
        return wide
    with np.errstate(all="ignore"):
        nearest = _encode_nearest(wide, float_type)
        if rounding == "nearest_even":
            return nearest
        return _step_towards_zero(nearest, wide, float_type)


def round_to_odd(values: Array) -> Array:
    """float64 to float32 such that a later rounding to fewer bits is as if done at once.

    An inexact result gets its last bit set (Boldo and Melquiond, "When double rounding is odd",
    2005): it then lies strictly on the right side of every tie of a format that has at least
    two bits less.
    """
    with np.errstate(all="ignore"):
        rounded = values.astype(np.float32)
        back = rounded.astype(np.float64)
    inexact = (back != values) & np.isfinite(values)
    if not inexact.any():
        return rounded
    # Truncate: where rounding went away from zero, one code back. Then set the last bit.
    bits = rounded.view(np.uint32) - (inexact & (np.abs(back) > np.abs(values)))
    odd: Array = np.where(inexact, bits | 1, bits).astype(np.uint32)
    return odd.view(np.float32)


def round_to_tf32(values: Array) -> Array:
    """float32 as the tensor cores read it in TF32 mode: the last 13 bits are not looked at."""
    return (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def _encode_nearest(values: Array, float_type: FloatFormat) -> Array:
    if not float_type.narrow:
        return values.astype(float_type.numpy_type)
    # ml_dtypes takes some float64 through float32, which would round twice.
    single = round_to_odd(values) if values.dtype == np.float64 else values
    if float_type.saturates:
        largest = np.float32(float_type.largest)
        single = np.clip(single, -largest, largest)  # clip keeps NaN
    return single.astype(float_type.numpy_type).view(float_type.code_type)


def _step_towards_zero(nearest: Array, values: Array, float_type: FloatFormat) -> Array:
    """Codes count magnitudes upward, infinity last: one less is the next value towards zero."""
    rounded = decode(nearest, float_type).astype(np.float64)
    codes = nearest.view(float_type.code_type)
    too_far = np.abs(rounded) > np.abs(values.astype(np.float64))
    return (codes - too_far).astype(float_type.code_type).view(nearest.dtype)
