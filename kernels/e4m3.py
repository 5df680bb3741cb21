"""The 8-bit float e4m3 where the GPU has no instruction for it: fp32 to codes, codes to fp16.

How are numbers of 8 bits made and read on an A100? By hand: four bits of exponent (bias 7), three
of mantissa, no infinities, 448 the largest (Micikevicius et al. 2022, "FP8 Formats for Deep
Learning", table 1). Making one rounds to nearest even, saturates as
`cvt.rn.satfinite.e4m3x2.f32` does, and keeps NaN: about ten integer instructions an element,
while the bytes moved are halved.

Reading one is three: e4m3 and fp16 differ in width only, four bits of exponent against five,
three of mantissa against ten. Shifted into place the bits of a code are an fp16 whose exponent is
meant with bias 7 and read with bias 15, so it is 2^8 too small, subnormals included. One product
with 256, which rounds nothing, puts it right.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

import triton
import triton.language as tl

# GPUs that convert float8_e4m3fn, and multiply it: Ampere has no fp8, CDNA3 another e4m3 (bias 8).
E4M3_ARCHITECTURES = ("sm_89", "sm_90", "sm_100")


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


@triton.jit
def e4m3_values(codes):
    """The fp16 numbers of e4m3 codes (uint8), exactly; 0x7F and 0xFF are NaN."""
    bits = codes.to(tl.uint16)
    magnitude = bits & 0x7F
    shifted = (magnitude << 7) | ((bits & 0x80) << 8)
    # The sum carries 0x7F, and nothing less, into bit 7: from there to all exponent bits of fp16.
    is_nan = magnitude == 0x7F
    values = tl.where(is_nan, 0x7FFF, shifted).to(tl.uint16).to(tl.float16, bitcast=True)
    return values * 256.0
