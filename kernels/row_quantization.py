"""A row of numbers as codes of one byte and one scale: what a kernel does with a row it holds.

How small can a cached key be? With a scale for every token and head, one byte an element and
four bytes a row: symmetric, scale = max |x| / 127 (int8) or / 448 (e4m3), and code * scale gives
the value back to within half a step. The row never leaves the registers.

Zeros have the scale 0 and codes 0. So have rows so small that their scale would be subnormal
(max |x| below 2^-116 or so), because GPUs differ in what they do with subnormal numbers. A row
that holds a NaN or an infinity gets a scale that is none (NaN or infinity) and codes 0: all of it
reads back as NaN, so a fault shows at the token where it arose and is not clipped away.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

from typing import Final, Literal

import torch
import triton
import triton.language as tl

from kernels.devices import Device
from kernels.e4m3 import E4M3_ARCHITECTURES, convert_to_e4m3

# How a kernel writes a row: as it is, or as codes; e4m3 by the GPU's own conversion or without.
Coding = Literal["as it is", "int8", "e4m3", "native e4m3"]

LARGEST_CODE: Final = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
SMALLEST_SCALE: Final = torch.finfo(torch.float32).smallest_normal


def coding_of(cache_dtype: torch.dtype, device: Device) -> Coding:
    """How a kernel writes a cache of that type on that GPU."""
    if cache_dtype == torch.int8:
        return "int8"
    if cache_dtype == torch.float8_e4m3fn:
        return "native e4m3" if device.arch in E4M3_ARCHITECTURES else "e4m3"
    return "as it is"


@triton.jit
def largest_magnitude(values):
    """max |x| of each row [rows, columns], as bits of fp32.

    Magnitudes are ordered as their bits are, and NaN comes last, where tl.max would lose it.
    """
    return tl.max(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1)


@triton.jit
def scale_of(magnitude, CODING: tl.constexpr):
    """The scale of a row whose largest magnitude is given as bits; rounded as torch rounds it."""
    largest_code = 127.0 if CODING == "int8" else 448.0
    scale = tl.div_rn(magnitude.to(tl.float32, bitcast=True), largest_code)
    return tl.where(scale < 1.1754943508222875e-38, 0.0, scale)


@triton.jit
def codes_of(values, scale, CODING: tl.constexpr):
    """Codes of rows [rows, columns], fp32, by their scales [rows]: one product an element."""
    usable = (scale > 0.0) & (scale < float("inf"))  # no NaN either
    inverse = tl.div_rn(1.0, tl.where(usable, scale, 1.0))[:, None]
    values = tl.where(usable[:, None], values, 0.0)
    if CODING == "int8":
        # 1.5 * 2^23 has the unit in the last place 1: the sum is rounded to a whole number, ties
        # to even, and its low byte is that number in two's complement.
        codes = tl.fma(values, inverse, 12582912.0).to(tl.int32, bitcast=True).to(tl.int8)
    else:
        codes = convert_to_e4m3(values * inverse, CODING == "native e4m3")
    return codes


def quantize_rows_reference(
    rows: torch.Tensor, code_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and fp32 scales of the last dimension of `rows`, as the kernels make them."""
    values = rows.float()
    # amax keeps NaN. By a tensor, as torch on a GPU multiplies by the inverse of a number.
    scales = values.abs().amax(-1) / values.new_tensor(LARGEST_CODE[code_dtype])
    scales = torch.where(scales < SMALLEST_SCALE, 0.0, scales)
    usable = (scales > 0) & scales.isfinite()
    inverses = 1 / torch.where(usable, scales, 1.0)
    values = torch.where(usable[..., None], values, 0.0)
    if code_dtype == torch.int8:
        # fp64 holds the product exactly, so that it is rounded once.
        return (values.double() * inverses[..., None].double()).round().to(torch.int8), scales
    return (values * inverses[..., None]).to(code_dtype), scales


def dequantize_rows_reference(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """code * scale in float64: [..., columns] from [...]."""
    return codes.double() * scales.double()[..., None]
