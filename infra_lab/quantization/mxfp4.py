"""MXFP4: 4-bit floats (E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6), 32 of them under one power of two.

Answers "how is an MX scale chosen, and what do the modes differ in?" (OCP Microscaling Formats,
section 6.3). With the largest magnitude m of a block the scale is 2 to the power of

- floor: floor(log2 m) - 2, the standard's own. m / scale lies in [4, 8): above 6 it saturates.
- even: the same of m rounded to E2M1's one bit of mantissa: only what 6 is nearest to saturates.
- ceil: ceil(log2 m) - 2. m / scale lies in (2, 4]: nothing saturates, 6 is never used.
- rceil: ceil(log2(m / 6)), the smallest at which nothing saturates.

A power of two costs nothing to multiply by, and 8 bits a block: 4.25 bits a weight in all.
"""

from __future__ import annotations

from typing import Literal

import torch

from infra_lab.errors import UsageError
from infra_lab.formats.quantized_weight import QuantizedWeight
from infra_lab.formats.tables import e2m1_table
from infra_lab.quantization.integer import by_groups, require_weight

BLOCK_SIZE = 32
LARGEST = 6.0
LARGEST_EXPONENT = 2  # of E2M1: 6 = 1.5 * 2^2
E8M0_LIMIT = 127
ScaleMode = Literal["floor", "even", "ceil", "rceil"]
MODES = ("floor", "even", "ceil", "rceil")


def scale_exponents(largest: torch.Tensor, mode: ScaleMode = "floor") -> torch.Tensor:
    """The powers of two, int32, for blocks of those largest magnitudes; -127 for zero."""
    if mode not in MODES:
        raise UsageError(f"MX scales are chosen by {', '.join(MODES)}, not {mode!r}")
    if mode == "rceil":
        # As torchao and cuBLAS: the quotient is rounded to fp32 first.
        largest = largest.float() / LARGEST
    mantissas, exponents = torch.frexp(largest.double())  # in [0.5, 1): the power is one less
    if mode == "even":
        exponents = exponents + (mantissas >= 0.875)
    elif mode in ("ceil", "rceil"):
        exponents = exponents + (mantissas > 0.5)
    powers = exponents - 1 - (0 if mode == "rceil" else LARGEST_EXPONENT)
    return torch.where(largest == 0, -E8M0_LIMIT, powers.clamp(-E8M0_LIMIT, E8M0_LIMIT))


def e2m1_codes(numbers: torch.Tensor) -> torch.Tensor:
    """uint8 from 0 to 15, of the nearest number: ties to even, beyond 6 that; -0 keeps its sign."""
    table = e2m1_table()[:8].double()
    magnitudes = numbers.double().abs()
    codes = torch.bucketize(magnitudes, (table[1:] + table[:-1]) / 2)  # a tie is the lower
    # Every other tie belongs to the upper, whose mantissa is even.
    ties = (table[1:] + table[:-1])[1::2] / 2
    codes += (magnitudes[..., None] == ties).any(-1)
    return (codes + 8 * numbers.signbit()).to(torch.uint8)


def quantize_mxfp4(weight: torch.Tensor, mode: ScaleMode = "floor") -> QuantizedWeight:
    """A weight [out, in] as MXFP4, in blocks along its rows; a shorter last one is possible.

    Raises UsageError for NaN, infinity or no matrix, and for an unknown mode.
    """
    weight = require_weight(weight)
    blocks = by_groups(weight, BLOCK_SIZE)
    exponents = scale_exponents(blocks.abs().amax(-1), mode)
    scales = torch.ldexp(torch.ones(exponents.shape, dtype=torch.float64), exponents)
    codes = e2m1_codes(blocks.double() / scales[..., None])
    return QuantizedWeight(
        codes.flatten(1)[:, : weight.shape[1]].contiguous(),
        e2m1_table(),
        scales.float(),
        4,
        BLOCK_SIZE,
    )
