"""AWQ: columns whose inputs are large are scaled up before rounding, and their inputs down.

Answers "which 1 % of the weights matter, and how are they kept without mixed precision?" (Lin et
al. 2023). (W diag(s)) (diag(s)^-1 x) is W x; but where s is large, the rounding error of W s,
divided by s again, is small. s = |x|^r / |w|^(1-r) from mean magnitudes, with the one ratio r on a
grid that costs the outputs least; 1/s goes into whatever makes x (folding.py). What an output
costs follows from the Hessian of the inputs, so no input has to be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from infra_lab.errors import UsageError
from infra_lab.formats.quantized_weight import QuantizedWeight
from infra_lab.quantization.clipping import ClippingSearch, clipped_grid
from infra_lab.quantization.hessian import require_hessian
from infra_lab.quantization.integer import (
    IntegerScheme,
    by_groups,
    integer_weight,
    require_weight,
    weight_grid,
)
from infra_lab.quantization.rtn import grid_codes, nearest_codes

SMALLEST_SCALE = 1e-4


@dataclass(frozen=True, slots=True)
class AwqScales:
    """Attributes:
    scales: fp32 [in_features], what columns are multiplied by, and inputs divided.
    ratio: the exponent r that they come from; None for all ones, which no ratio improved on.
    losses: what each ratio of the grid costs; first that of ones.
    """

    scales: torch.Tensor
    ratio: float | None
    losses: tuple[float, ...]


def candidate_scales(
    weights: Sequence[torch.Tensor],
    mean_magnitude: torch.Tensor,
    ratio: float,
    group_size: int,
    duo_scaling: bool = True,
) -> torch.Tensor:
    """s of one ratio, fp32 [in_features], its largest times its smallest 1.

    With `duo_scaling` (AutoAWQ) columns of large weights, each relative to the largest of its
    group, are scaled up less; without (the paper) inputs decide alone. An input that was always
    zero counts as the smallest that was not.
    """
    relative = _relative_magnitude(weights, group_size) if duo_scaling else None
    return _scales_of_ratio(mean_magnitude, relative, ratio)


def _scales_of_ratio(
    mean_magnitude: torch.Tensor, relative: torch.Tensor | None, ratio: float
) -> torch.Tensor:
    inputs = mean_magnitude.float()
    alive = inputs > 0
    if not alive.any():
        return torch.ones_like(inputs)
    scales = torch.where(alive, inputs, inputs[alive].min()).pow(ratio)
    if relative is not None:
        scales /= relative.pow(1 - ratio).add_(1e-4)
    scales.clamp_(min=SMALLEST_SCALE)
    return scales / (scales.max() * scales.min()).sqrt()


def _relative_magnitude(weights: Sequence[torch.Tensor], group_size: int) -> torch.Tensor:
    """Mean over the rows of |w| / the largest of its group, fp32 [in_features]."""
    rows = torch.cat([weight.float().abs() for weight in weights])
    groups = by_groups(rows, group_size)
    largest = groups.amax(-1, keepdim=True)
    relative = groups / torch.where(largest > 0, largest, 1.0)
    return relative.flatten(1)[:, : rows.shape[1]].mean(0)


def search_scales(
    weights: Sequence[torch.Tensor],
    hessian: torch.Tensor,
    mean_magnitude: torch.Tensor,
    scheme: IntegerScheme,
    num_ratios: int = 20,
    duo_scaling: bool = True,
    possible: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> AwqScales:
    """The scales that cost the outputs of all `weights` together least.

    weights: matrices [out, in] of one input (q, k and v, or gate and up). hessian: [in, in] of
    that input. mean_magnitude: [in]. possible: makes of scales the nearest that can be folded into
    what makes the input; of none in particular none. The ratios are 0, 1/n, ... (n - 1)/n, and no
    scaling.
    Raises UsageError for inputs that do not fit or are not finite.
    """
    if not weights or num_ratios < 1:
        raise UsageError("a search wants at least one weight and one ratio")
    weights = [require_weight(weight) for weight in weights]
    in_features = weights[0].shape[1]
    hessian = require_hessian(hessian, in_features).to(weights[0].dtype)
    if mean_magnitude.shape != (in_features,) or not mean_magnitude.isfinite().all():
        raise UsageError(f"mean magnitudes are {in_features} finite numbers, one an input")
    group_size = scheme.group_size(in_features)
    relative = _relative_magnitude(weights, group_size) if duo_scaling else None
    best = ones = torch.ones(in_features, device=hessian.device)
    losses, best_ratio = [_loss_of(ones, weights, hessian, scheme)], None
    for ratio in (step / num_ratios for step in range(num_ratios)):
        scales = _scales_of_ratio(mean_magnitude, relative, ratio)
        scales = scales if possible is None else possible(scales)
        losses.append(_loss_of(scales, weights, hessian, scheme))
        if losses[-1] < min(losses[:-1]):
            best, best_ratio = scales, ratio
    return AwqScales(best, best_ratio, tuple(losses))


def _loss_of(
    scales: torch.Tensor,
    weights: Sequence[torch.Tensor],
    hessian: torch.Tensor,
    scheme: IntegerScheme,
) -> float:
    """Sum of tr((W - Q) H (W - Q)^T), where Q = rounded(W s) / s."""
    total = 0.0
    for weight in weights:
        scaled = weight * scales
        grid = weight_grid(scaled, scheme)
        # In fp32, as the weight will be read; codes of their own would only be looked up again.
        rounded = grid[..., None].decode(grid_codes(scaled, grid, scheme).float())
        error = weight - rounded.flatten(1)[:, : weight.shape[1]].to(weight.dtype) / scales
        total += float(((error @ hessian) * error).sum(dtype=torch.float64))
    return total


def awq(
    weight: torch.Tensor,
    scales: torch.Tensor,
    hessian: torch.Tensor,
    scheme: IntegerScheme,
    clipping: ClippingSearch | None = None,
) -> QuantizedWeight:
    """W diag(s) as integers: what made its input must give x / s from now on (folding.py).

    hessian: of the input as it was. With `clipping` ranges are shrunk to where they cost the
    outputs least. (The authors' code looks at each group's own part of the outputs only, and
    leaves q and k out: there a part that gains may still spoil the whole. Here none can.)
    """
    weight = require_weight(weight)
    hessian = require_hessian(hessian, weight.shape[1]).to(weight.dtype)
    scaled = weight * scales
    grid = clipped_grid(scaled, scheme, clipping, hessian / scales.outer(scales))
    return integer_weight(nearest_codes(scaled, grid, scheme), grid, scheme)
