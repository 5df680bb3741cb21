"""e4m3 codes to numbers where the GPU has no instruction for it.

How does an A100 read an fp8 cache? e4m3 (Micikevicius et al. 2022, "FP8 Formats for Deep
Learning", table 1) and fp16 differ in width only: four bits of exponent against five, three of
mantissa against ten. Shifted into place the bits of a code are an fp16 whose exponent is meant
with bias 7 and read with bias 15, so it is 2^8 too small, subnormals included. One product with
256, which rounds nothing, puts it right.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

import triton
import triton.language as tl

# Ampere has no conversion from e4m3, CDNA3 only one from another e4m3 (bias 8).
ARCHITECTURES_THAT_CONVERT = frozenset({"sm_89", "sm_90", "sm_100"})


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
