"""SmoothQuant: what makes activations hard to round moves into the weights, which bear it.

Answers "why does W8A8 fail on large models, and what cures it?" (Xiao et al. 2023). A few input
channels are a hundred times the others, token after token. A scale a token is set by them: with
one at 100, numbers within +-3 have 9 of the 255 codes left, 3.17 of 8 bits. A scale a channel
would help, but cannot leave the sum of a product. So channel j is divided by
s_j = max|X_j|^a / max|W_j|^(1-a), and column j of the weights multiplied: the product is the same,
and at a = 0.5 both have the same largest magnitude in every channel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from infra_lab.errors import UsageError
from infra_lab.formats.quantized_weight import ActivationFormat
from infra_lab.layers.quantized_input import rounded_input
from infra_lab.quantization.integer import IntegerScheme, require_weight
from infra_lab.quantization.rtn import round_to_nearest

ALPHAS = tuple(step / 20 for step in range(6, 19))  # what a search tries: 0.3 to 0.9


def smoothing_scales(
    max_magnitude: torch.Tensor, weights: Sequence[torch.Tensor], alpha: float = 0.5
) -> torch.Tensor:
    """s, fp32 [in_features]: inputs are divided by it, columns of the weights multiplied.

    max_magnitude: [in_features], the largest |x| of each channel in calibration. weights: all
    matrices [out, in] of that input (q, k and v; gate and up): one s serves them, from the largest
    |w| of any. A channel that was always zero, or whose weights are, is left alone.
    Raises UsageError for an alpha outside 0 to 1, and for shapes that do not fit.
    """
    if not 0 <= alpha <= 1:
        raise UsageError(f"alpha is the share that moves into the weights, from 0 to 1: {alpha}")
    largest = torch.stack([require_weight(weight).abs().amax(0) for weight in weights]).amax(0)
    inputs = max_magnitude.to(largest.dtype)
    if inputs.shape != largest.shape or not inputs.isfinite().all():
        raise UsageError(
            f"largest magnitudes are {largest.shape[0]} finite numbers, one an input, not "
            f"{list(inputs.shape)}"
        )
    scales = inputs.pow(alpha) / largest.pow(1 - alpha)
    usable = (inputs > 0) & (largest > 0) & scales.isfinite() & (scales > 0)
    return torch.where(usable, scales, 1.0)


class SmoothingLoss:
    """What scales cost the outputs of some inputs.

    Too small an alpha leaves outliers in the inputs, too large a one makes outliers of the
    weights: where the least lies between differs from layer to layer.
    """

    def __init__(
        self,
        inputs: torch.Tensor,
        weights: Sequence[torch.Tensor],
        scheme: IntegerScheme,
        activation: ActivationFormat | None,
    ) -> None:
        """inputs: [num_tokens, in]. activation: how they will be rounded; None for not at all."""
        self._inputs = inputs
        self._weights = weights
        self._scheme = scheme
        self._activation = activation
        self._outputs = inputs @ torch.cat(list(weights)).T

    def __call__(self, scales: torch.Tensor) -> float:
        """Sum of the squared errors of all outputs when inputs are divided by `scales`, columns
        of the weights multiplied, and both rounded."""
        inputs = self._inputs / scales
        if self._activation is not None:
            inputs = rounded_input(inputs, self._activation)
        rounded = [round_to_nearest(one * scales, self._scheme) for one in self._weights]
        errors = inputs @ torch.cat([one.dequantize() for one in rounded]).T - self._outputs
        return float(errors.square().sum(dtype=torch.float64))


@dataclass(frozen=True, slots=True)
class LevelsInUse:
    """What is left to numbers that share a scale with a larger one.

    Attributes:
        levels: codes that they take.
        bits: log2 of that.
        coarser: how many times wider their step is than with a scale of their own.
    """

    levels: int
    bits: float
    coarser: float


def levels_in_use(reach: float, largest: float, bits: int = 8) -> LevelsInUse:
    """Numbers within +-reach, rounded by the symmetric scale of one as large as `largest`."""
    if not 0 < reach <= largest:
        raise UsageError(f"{largest} sets the scale of numbers up to {reach}: it must be larger")
    codes = 2 ** (bits - 1) - 1
    levels = 2 * round(reach / (largest / codes)) + 1
    return LevelsInUse(levels, math.log2(levels), largest / reach)
