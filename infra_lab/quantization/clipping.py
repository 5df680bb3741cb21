"""Ranges narrower than the numbers: clip a few that lie far out, round all the others finer.

Answers "why can a smaller range lose less?". A range shrunk to a ratio r costs the outliers what
is cut off and gives the rest a step r times as wide. Each group takes the ratio of a grid at which
the loss is least; 1 is among those tried, so nothing is lost against the whole range. Without data
the loss is the sum of squared errors. With the Hessian of the inputs it is that of the outputs,
where errors of one group may cancel those of another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from infra_lab.errors import UsageError
from infra_lab.quantization.integer import (
    IntegerGrid,
    IntegerScheme,
    by_groups,
    fit_grid,
    weight_grid,
)

SWEEPS = 3


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


def clipped_grid(
    weight: torch.Tensor,
    scheme: IntegerScheme,
    search: ClippingSearch | None,
    hessian: torch.Tensor | None = None,
) -> IntegerGrid:
    """The grids [out, groups] of a weight [out, in], shrunk to where they cost least.

    hessian: of the inputs, [in, in]: then tr(E H E^T) of the errors E counts, otherwise their
    squares. With a scale for the whole tensor all groups take one ratio. Without a search ranges
    stay whole.
    """
    if search is None:
        return weight_grid(weight, scheme)
    if scheme.granularity == "tensor":
        return _one_ratio_for_all(weight, scheme, search, hessian)
    ranges = _Ranges(weight, scheme)
    if hessian is None:
        ranges.improve(slice(None), search.ratios(), lambda errors: errors.square().sum(-1))
        return ranges.grid()
    size = scheme.group_size(weight.shape[1])
    rest = -weight.shape[1] % size
    hessian = torch.nn.functional.pad(hessian.to(weight.dtype), (0, rest, 0, rest))
    # Coordinate descent: one group after the other goes to its best ratio, the others as they are.
    for _ in range(SWEEPS):
        for start in range(0, hessian.shape[0], size):
            own, group = hessian[start : start + size, start : start + size], start // size
            of_all = ranges.errors.flatten(1) @ hessian[:, start : start + size]
            of_others = of_all[:, None] - ranges.errors[:, group : group + 1] @ own
            cost = partial(_cost_beside_others, own=own, of_others=of_others)
            ranges.improve(slice(group, group + 1), search.ratios(), cost)
    return ranges.grid()


def _cost_beside_others(
    errors: torch.Tensor, own: torch.Tensor, of_others: torch.Tensor
) -> torch.Tensor:
    """What of e H e^T, [out, 1], depends on the errors of one group, [out, 1, size]."""
    return ((errors @ own + 2 * of_others) * errors).sum(-1)


class _Ranges:
    """The best grids so far of every group of every row."""

    def __init__(self, weight: torch.Tensor, scheme: IntegerScheme) -> None:
        self._scheme = scheme
        self._groups = by_groups(weight, scheme.group_size(weight.shape[1]))
        self._low, self._high = self._groups.amin(-1), self._groups.amax(-1)
        self._grid = weight_grid(weight, scheme)
        self.errors = self._groups - self._grid[..., None].nearest(self._groups)

    def grid(self) -> IntegerGrid:
        return self._grid

    def improve(
        self, groups: slice, ratios: list[float], cost: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        """Shrinks the range of each of these groups to the ratio that costs least, unless it
        costs less as it is. cost: of errors [out, groups, size], [out, groups]."""
        at = (slice(None), groups)
        numbers, grid = self._groups[at], self._grid
        best = cost(self.errors[at])
        for ratio in ratios:
            tried = fit_grid(self._low[at] * ratio, self._high[at] * ratio, self._scheme)
            errors = numbers - tried[..., None].nearest(numbers)
            costs = cost(errors)
            better = costs < best
            best = torch.where(better, costs, best)
            self.errors[at] = torch.where(better[..., None], errors, self.errors[at])
            grid.scales[at] = torch.where(better, tried.scales, grid.scales[at])
            grid.zeros[at] = torch.where(better, tried.zeros, grid.zeros[at])


def _one_ratio_for_all(
    weight: torch.Tensor,
    scheme: IntegerScheme,
    search: ClippingSearch,
    hessian: torch.Tensor | None,
) -> IntegerGrid:
    best: tuple[float, IntegerGrid] | None = None
    for ratio in search.ratios():
        grid = weight_grid(weight * ratio, scheme)
        errors = weight - grid.nearest(weight)
        products = errors if hessian is None else errors @ hessian.to(weight.dtype)
        cost = float((products * errors).sum(dtype=torch.float64))
        if best is None or cost < best[0]:
            best = cost, grid
    assert best is not None
    return best[1]
