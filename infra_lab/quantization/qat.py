"""Quantization-aware training: round in the forward pass, and learn as if one had not.

Answers "what does the straight-through estimator do?" (Bengio et al. 2013; Jacob et al. 2018).
Rounding has the derivative zero almost everywhere, and nothing would be learnt through it. So the
backward pass takes it for the identity: a gradient passes unchanged where the number lies within
the grid, and not at all where it was clipped, since there a small step changes nothing. What is
trained are the full-precision weights behind the rounded ones; they drift until the rounded ones
work. With LSQ (Esser et al. 2020) the scales are learnt too: d w_q / d s = round(w/s) - w/s inside,
and the clipped code outside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn

from infra_lab.errors import UsageError
from infra_lab.formats.quantized_weight import ActivationFormat, QuantizedWeight
from infra_lab.layers.quantized_input import require_supported, rounded_input
from infra_lab.quantization.integer import (
    IntegerGrid,
    IntegerScheme,
    by_groups,
    integer_weight,
    storable,
    weight_grid,
)
from infra_lab.quantization.rtn import nearest_codes, round_to_nearest


class _FakeQuantize(torch.autograd.Function):
    """The nearest points of a grid; see `fake_quantize`."""

    @staticmethod
    def forward(ctx: Any, numbers: torch.Tensor, scales: torch.Tensor, grid: IntegerGrid) -> Any:
        ctx.save_for_backward(numbers, scales)
        ctx.grid = grid
        return grid.nearest(numbers)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        numbers, scales = ctx.saved_tensors
        grid, gradient = ctx.grid, gradients[0]
        ratios = numbers / scales
        codes = ratios.round() + grid.zeros
        clipped = codes.clamp(grid.lowest_code, 2**grid.bits - 1)
        inside = codes == clipped
        of_scales = None
        if ctx.needs_input_grad[1]:
            step = torch.where(inside, codes - grid.zeros - ratios, clipped - grid.zeros)
            of_scales = (gradient * step).sum_to_size(scales.shape)
        return gradient * inside, of_scales, None


def fake_quantize(numbers: torch.Tensor, grid: IntegerGrid) -> torch.Tensor:
    """The nearest points of the grid, through which gradients pass as if nothing were rounded: 1
    where the code lies on the grid, 0 where it was clipped. `grid.scales` may want one as well."""
    result: torch.Tensor = _FakeQuantize.apply(numbers, grid.scales, grid)  # type: ignore[no-untyped-call]
    return result


class QATLinear(nn.Module):
    """A linear layer whose weight is rounded whenever it is used.

    Without learnt scales the grid follows the weight's range at every step, and nothing is
    clipped. With them the grid begins at that range, or, of 2 and 3 bits symmetric, at LSQ's
    2 mean|w| / sqrt(largest code), and is then learnt; its zero points stay.
    """

    zeros: torch.Tensor

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        scheme: IntegerScheme,
        learn_scales: bool = False,
        activation: ActivationFormat | None = None,
    ) -> None:
        """weight: [out, in]; it is copied. activation: what is done to inputs first, whose
        gradients pass straight through."""
        super().__init__()
        if learn_scales and scheme.granularity == "tensor":
            raise UsageError("scales are learnt a channel or a group, not a whole tensor")
        if activation is not None:
            require_supported(activation)
        self.scheme = scheme
        self.activation = activation
        self.weight = nn.Parameter(weight.detach().clone().float())
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone().float())
        self.log_scales: nn.Parameter | None = None
        if learn_scales:
            grid = weight_grid(self.weight.detach(), scheme)
            self.register_buffer("zeros", grid.zeros)
            self.log_scales = nn.Parameter(self._first_scales(grid).log())

    def _first_scales(self, grid: IntegerGrid) -> torch.Tensor:
        if not self.scheme.symmetric or self.scheme.bits > 3:
            return grid.scales
        groups = by_groups(self.weight.detach(), self.scheme.group_size(self.weight.shape[1]))
        largest_code = 2 ** (self.scheme.bits - 1) - 1
        scales = 2 * groups.abs().mean(-1) / math.sqrt(largest_code)
        return torch.where(scales > 0, torch.minimum(scales, grid.scales), grid.scales)

    def grid(self) -> IntegerGrid:
        """The grids [out, groups] of this step; scales are those that a file will store."""
        if self.log_scales is None:
            return weight_grid(self.weight.detach(), self.scheme)
        scales = self.log_scales.exp()
        stored = storable(scales.detach().double(), self.scheme.scale_dtype).float()
        scales = _straight_through(scales, stored)
        return IntegerGrid(self.scheme.bits, scales, self.zeros, int(self.scheme.narrow))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.activation is not None:
            tokens = x.detach().reshape(-1, x.shape[-1])
            x = _straight_through(x, rounded_input(tokens, self.activation).view_as(x))
        groups = by_groups(self.weight, self.scheme.group_size(self.weight.shape[1]))
        rounded = fake_quantize(groups, self.grid()[..., None])
        weight = rounded.flatten(1)[:, : self.weight.shape[1]]
        return nn.functional.linear(x, weight, self.bias)

    @torch.no_grad()
    def quantized(self) -> QuantizedWeight:
        """The weight that `forward` multiplies by, to the bit."""
        grid = self.grid()
        return integer_weight(nearest_codes(self.weight, grid, self.scheme), grid, self.scheme)


class _StraightThrough(torch.autograd.Function):
    """The second of two, with the gradient of the first; a sum of both and their difference
    would be off by a rounding."""

    @staticmethod
    def forward(ctx: Any, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return second.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None


def _straight_through(numbers: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = _StraightThrough.apply(numbers, rounded)  # type: ignore[no-untyped-call]
    return result


def prepare_qat(
    model: nn.Module,
    scheme: IntegerScheme,
    skip: Collection[str] = ("lm_head",),
    learn_scales: bool = False,
    activation: ActivationFormat | None = None,
) -> list[str]:
    """Puts a QATLinear in the place of every nn.Linear of the model but those whose last name is
    in `skip`; returns their names. Raises UsageError if there is none."""

    def prepared(linear: nn.Linear) -> nn.Module:
        return QATLinear(linear.weight, linear.bias, scheme, learn_scales, activation)

    return _replace_linears(model, prepared, skip)


def round_linears(
    model: nn.Module, scheme: IntegerScheme, skip: Collection[str] = ("lm_head",)
) -> list[str]:
    """Rounds the same layers to nearest, in place: what QAT is compared with."""

    def rounded(linear: nn.Linear) -> nn.Module:
        dense = round_to_nearest(linear.weight.detach(), scheme).dequantize()
        linear.weight.data.copy_(dense)
        return linear

    return _replace_linears(model, rounded, skip)


def quantized_weights(model: nn.Module) -> dict[str, QuantizedWeight]:
    """The weights of every QATLinear, under the names of their parameters."""
    return {
        f"{name}.weight": module.quantized()
        for name, module in model.named_modules()
        if isinstance(module, QATLinear)
    }


def _replace_linears(
    model: nn.Module, replacement: Callable[[nn.Linear], nn.Module], skip: Collection[str]
) -> list[str]:
    found = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name.rpartition(".")[2] not in skip
    ]
    if not found:
        raise UsageError("the model has no linear layer to quantize")
    for name, module in found:
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, replacement(module))
    return [name for name, _ in found]
