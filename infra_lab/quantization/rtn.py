"""Round-to-nearest: every weight to the nearest point of its group's grid, and nothing else.

The baseline of every method's table: no data, one pass, the error of each weight at most half a
scale. What it ignores is that errors of weights whose inputs go together add up (gptq.py).
"""

from __future__ import annotations

import torch

from infra_lab.formats.quantized_weight import QuantizedWeight
from infra_lab.quantization.clipping import ClippingSearch, clipped_grid
from infra_lab.quantization.integer import (
    IntegerGrid,
    IntegerScheme,
    by_groups,
    integer_weight,
    require_weight,
)


def round_to_nearest(
    weight: torch.Tensor, scheme: IntegerScheme, clipping: ClippingSearch | None = None
) -> QuantizedWeight:
    """A weight [out, in] as integers. With `clipping` each group's range is shrunk to where the
    sum of its squared errors is least. Raises UsageError for NaN, infinity or no matrix."""
    weight = require_weight(weight)
    grid = clipped_grid(weight, scheme, clipping)
    return integer_weight(nearest_codes(weight, grid, scheme), grid, scheme)


def nearest_codes(weight: torch.Tensor, grid: IntegerGrid, scheme: IntegerScheme) -> torch.Tensor:
    """The codes [out, in] of a weight on grids [out, groups]."""
    return grid_codes(weight, grid, scheme).flatten(1)[:, : weight.shape[1]]


def grid_codes(weight: torch.Tensor, grid: IntegerGrid, scheme: IntegerScheme) -> torch.Tensor:
    """The same by groups, [out, groups, group_size], the last one filled up."""
    groups = by_groups(weight, scheme.group_size(weight.shape[1]))
    return grid[..., None].encode(groups)
