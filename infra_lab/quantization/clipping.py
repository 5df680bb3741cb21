"""Ranges narrower than the numbers: clip a few that lie far out, round all the others finer.

Answers "why can a smaller range lose less?". A range shrunk to a ratio r costs the outliers what
is cut off and gives the rest a step r times as wide. Each group takes the ratio at which its error
is least; 1 is among those tried, so no group does worse than unclipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from infra_lab.errors import UsageError
from infra_lab.quantization.integer import (
    IntegerGrid,
    IntegerScheme,
    by_groups,
    fit_grid,
    weight_grid,
)

Loss = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class ClippingSearch:
    """Ratios 1, 1 - 1/steps, ... down to `smallest` of the range, as AWQ tries them (n_grid 20,
    max_shrink 0.5)."""

    smallest: float = 0.5
    steps: int = 20

    def __post_init__(self) -> None:
        if not 0 < self.smallest < 1 or self.steps < 1:
            raise UsageError(
                f"clipping tries ratios between 0 and 1 in at least one step, not down to "
                f"{self.smallest} in steps of 1/{self.steps}"
            )

    def ratios(self) -> list[float]:
        tried = [1 - step / self.steps for step in range(self.steps)]
        return [ratio for ratio in tried if ratio >= self.smallest - 1e-9]


def squared_error(errors: torch.Tensor) -> torch.Tensor:
    """[out, groups, columns] -> the sum of squares [out, groups]."""
    return errors.square().sum(-1)


def clipped_grid(
    weight: torch.Tensor,
    scheme: IntegerScheme,
    search: ClippingSearch | None,
    loss: Loss = squared_error,
) -> IntegerGrid:
    """The grids [out, groups] of a weight [out, in], each at the ratio of its least loss.

    loss: what errors [out, groups, group_size] cost each group, [out, groups]. Of a scale for the
    whole tensor all groups take one ratio. Without a search ranges stay whole.
    """
    whole = weight_grid(weight, scheme)
    if search is None:
        return whole
    groups = by_groups(weight, scheme.group_size(weight.shape[1]))
    low, high = groups.amin(-1), groups.amax(-1)
    if scheme.granularity == "tensor":
        low, high = low.amin().expand(low.shape), high.amax().expand(high.shape)
    best = torch.full(whole.scales.shape, float("inf"), dtype=weight.dtype, device=weight.device)
    scales, zeros = whole.scales.clone(), whole.zeros.clone()
    for ratio in search.ratios():
        grid = fit_grid(low * ratio, high * ratio, scheme)
        cost = loss(groups - grid[..., None].nearest(groups))
        if scheme.granularity == "tensor":
            cost = cost.sum().expand(cost.shape)
        better = cost < best
        best = torch.where(better, cost, best)
        scales = torch.where(better, grid.scales, scales)
        zeros = torch.where(better, grid.zeros, zeros)
    return IntegerGrid(whole.bits, scales, zeros, whole.lowest_code)
