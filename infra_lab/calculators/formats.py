"""Number formats by the bits that they really take: codes, and their share of scales and zeros.

Answers "how many bits is a 4-bit weight?": 4.125 with one fp16 scale for 128 of them, 4.156 with
a 4-bit zero point too, 4.5 in NVFP4, 5.0 in GGUF's Q4_1. The names of formats with groups are
read, so that any group size works: int4-g128, int4-g32-z4, int3-g64-s32.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from infra_lab.calculators.checks import look_up, require_count, require_not_negative
from infra_lab.errors import UsageError


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """`bits` a code; `scale_bits` and `zero_bits` once for each `group` codes (0: no groups)."""

    name: str
    bits: int
    group: int = 0
    scale_bits: float = 0.0
    zero_bits: float = 0.0

    @property
    def bits_per_element(self) -> float:
        """bits + (scale_bits + zero_bits) / group."""
        return self.bits + ((self.scale_bits + self.zero_bits) / self.group if self.group else 0.0)

    @property
    def bytes_per_element(self) -> float:
        return self.bits_per_element / 8


def grouped(
    bits: int, group: int, scale_bits: float = 16, zero_bits: float = 0, name: str = ""
) -> NumberFormat:
    """Integers of `bits` with one scale, and perhaps one zero point, for each `group` of them."""
    require_count("bits", bits)
    require_count("group", group)
    require_not_negative("scale_bits", scale_bits)
    require_not_negative("zero_bits", zero_bits)
    return NumberFormat(name or f"int{bits}-g{group}", bits, group, scale_bits, zero_bits)


# Blocks and scales as their definitions have them: OCP Microscaling 1.0 (MXFP4: E8M0 for 32),
# NVFP4 (E4M3 for 16; its one fp32 for a tensor is nothing a weight), QLoRA (NF4: fp32 for 64;
# doubly quantized: 8 bits for 64, fp32 for 256 of those), ggml's Q4_0, Q4_1 and Q8_0.
FORMATS: Mapping[str, NumberFormat] = MappingProxyType(
    {
        one.name: one
        for one in (
            NumberFormat("fp32", 32),
            NumberFormat("bf16", 16),
            NumberFormat("fp16", 16),
            NumberFormat("fp8", 8),
            NumberFormat("int8", 8),
            NumberFormat("int4", 4),
            NumberFormat("mxfp4", 4, 32, 8),
            NumberFormat("nvfp4", 4, 16, 8),
            NumberFormat("nf4", 4, 64, 32),
            NumberFormat("nf4-double", 4, 64, 8 + 32 / 256),
            NumberFormat("q4_0", 4, 32, 16),
            NumberFormat("q4_1", 4, 32, 16, 16),
            NumberFormat("q8_0", 8, 32, 16),
        )
    }
)
_ALIASES = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "gptq": "int4-g128",
    "awq": "int4-g128-z4",
}
_GROUPED = re.compile(r"int(\d)-g(\d+)(?:-s(\d+))?(?:-z(\d+))?")


def number_format(name: str) -> NumberFormat:
    """A format by its name, or by its pattern `intB-gGROUP[-sSCALE_BITS][-zZERO_BITS]`."""
    wanted = _ALIASES.get(name.strip().lower(), name.strip().lower())
    if match := _GROUPED.fullmatch(wanted):
        bits, group, scale, zero = match.groups()
        if not 1 <= int(bits) <= 8:
            raise UsageError(f"{name!r}: a grouped integer has 1 to 8 bits")
        return grouped(int(bits), int(group), int(scale or 16), int(zero or 0), wanted)
    return look_up("number format", wanted, FORMATS)


def per_head_vector(bits: int, head_dim: int, scale_bits: float = 16) -> NumberFormat:
    """A KV cache with a scale of its own for every token and head: bits + scale_bits / head_dim."""
    require_count("head_dim", head_dim)
    return grouped(bits, head_dim, scale_bits, name=f"int{bits}-token-head")
