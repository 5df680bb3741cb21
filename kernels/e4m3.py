"""fp32 to the 8-bit float e4m3 where the GPU has no instruction for it.

How are numbers of 8 bits made on an A100? By hand: four bits of exponent (bias 7), three of
mantissa, no infinities, 448 the largest (Micikevicius et al. 2022, "FP8 Formats for Deep
Learning", table 1). Rounds to nearest even, saturates as `cvt.rn.satfinite.e4m3x2.f32` does, and
keeps NaN: about ten integer instructions an element, while the bytes moved are halved.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

import triton
import triton.language as tl

LARGEST = 448.0


@triton.jit
def e4m3_codes(values):
    """The e4m3 codes (uint8) of fp32 values: infinities become +-448, NaN 0x7F or 0xFF."""
    bits = values.to(tl.int32, bitcast=True)
    sign = (bits >> 24) & 0x80
    magnitude = bits & 0x7FFFFFFF
    finite = tl.minimum(magnitude, 0x43E00000)  # 448: numbers >= 0 are ordered as their bits are
    # From 2^-6 on: 20 of the 23 bits of mantissa go, a tie to the even code; the bias 127 gets 7.
    kept = (finite + 0x7FFFF + ((finite >> 20) & 1)) >> 20
    normal = kept - ((127 - 7) << 3)
    # Below 2^-6 codes count 2^-9, the unit in the last place of 2^14: adding that rounds.
    shifted = finite.to(tl.float32, bitcast=True) + 16384.0
    subnormal = shifted.to(tl.int32, bitcast=True) - 0x46800000
    code = tl.where(finite < 0x3C800000, subnormal, normal)
    code = tl.where(magnitude > 0x7F800000, 0x7F, code)
    return (sign | code).to(tl.uint8)


@triton.jit
def convert_to_e4m3(values, NATIVE: tl.constexpr):
    """The same by the GPU's own conversion where it has one."""
    return values.to(tl.float8e4nv).to(tl.uint8, bitcast=True) if NATIVE else e4m3_codes(values)
