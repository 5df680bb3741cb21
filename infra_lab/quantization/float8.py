"""Weights as 8-bit floats: e4m3 (three bits of mantissa, up to 448) and e5m2 (two, up to 57344).

Answers "why does fp8 need a scale, when it has an exponent?" (Micikevicius et al. 2022). An
exponent keeps the relative error at 2^-4 (e4m3) or 2^-3 over the whole range, so outliers cost
their neighbours nothing; but from 2^-6 down to 2^-9 e4m3 loses its bits, and a scale puts the
numbers at the upper end. Weights and activations take e4m3, gradients e5m2, for its range.

Rounding is to nearest, ties to even; what lies beyond the largest number becomes that (PTX's
satfinite), never infinite or NaN; NaN stays NaN.
"""

from __future__ import annotations

from typing import Literal

import torch

from infra_lab.errors import UsageError
from infra_lab.formats.quantized_weight import QuantizedWeight
from infra_lab.quantization.integer import by_groups, require_weight, storable
from infra_lab.quantization.settings import FP8_BLOCK

Float8 = Literal["e4m3", "e5m2"]
TYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
LARGEST = {kind: torch.finfo(dtype).max for kind, dtype in TYPES.items()}


def float8_codes(numbers: torch.Tensor, kind: Float8 = "e4m3") -> torch.Tensor:
    """uint8, the bits of the nearest number of that type."""
    largest = LARGEST[kind]
    return numbers.clamp(-largest, largest).to(TYPES[kind]).view(torch.uint8)


def float8_table(kind: Float8 = "e4m3") -> torch.Tensor:
    """fp32 [256], the number of each code; e4m3 has two that are NaN, e5m2 six, and infinities."""
    return torch.arange(256, dtype=torch.uint8).view(TYPES[kind]).float()


def quantize_float8(
    weight: torch.Tensor,
    kind: Float8 = "e4m3",
    granularity: Literal["tensor", "channel", "block"] = "channel",
    scale_dtype: torch.dtype = torch.float32,
) -> QuantizedWeight:
    """A weight [out, in] as 8-bit floats, each scale the largest magnitude over the type's.

    granularity: what shares a scale: "tensor", "channel" (a row), or "block", a square of 128 by
    128 (DeepSeek-V3), those at the edges smaller. Scales are rounded to `scale_dtype` first.
    Raises UsageError for NaN, infinity or no matrix, and for another type or granularity.
    """
    if kind not in TYPES:
        raise UsageError(f"8-bit floats are e4m3 or e5m2, not {kind!r}")
    if granularity not in ("tensor", "channel", "block"):
        raise UsageError(f"fp8 scales are for a tensor, channel or block, not {granularity!r}")
    weight = require_weight(weight)
    in_features = weight.shape[1]
    group_size = FP8_BLOCK if granularity == "block" else in_features
    largest = by_groups(weight, group_size).abs().amax(-1)
    if granularity == "tensor":
        largest = largest.amax().expand(largest.shape)
    elif granularity == "block":
        squares = [rows.amax(0).expand(rows.shape) for rows in torch.split(largest, FP8_BLOCK)]
        largest = torch.cat(squares)
    scales = storable(largest.double() / LARGEST[kind], scale_dtype).float().contiguous()
    spread = scales.repeat_interleave(group_size, 1)[:, :in_features]
    codes = float8_codes(weight / spread, kind)
    return QuantizedWeight(codes, float8_table(kind), scales, 8, group_size)
