"""Rounding activations that have a few large channels, and what is done about them.

The measuring half of the experiment `activation-quantization`: matrices that are made up, where
every part is known, and what the default model's layers really receive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from infra_lab.quantization.distance import relative_error

if TYPE_CHECKING:
    import torch

    from infra_lab.models.checkpoint import Checkpoint

Shared = Literal["tensor", "token", "channel"]


@dataclass(frozen=True, slots=True)
class LevelsLeft:
    """Of numbers within +-3 that share a scale with one of 100: codes they take, and their
    relative error."""

    levels: int
    error: float


def levels_left(reach: float, largest: float, seed: int) -> LevelsLeft:
    """Normal numbers cut at +-`reach`, with `largest` beside them, as int8 by one scale."""
    import torch

    from infra_lab.quantization.integer import quantize_numbers

    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(65536, generator=generator).clamp(-reach, reach)
    normal[:2] = torch.tensor([reach, -reach])
    kept = quantize_numbers(torch.cat((normal, torch.tensor([largest]))), 8, granularity="tensor")
    rounded = kept.dequantize()[:-1]
    return LevelsLeft(
        int(kept.codes[:-1].bincount().count_nonzero()),
        relative_error(rounded, normal),
    )


@dataclass(frozen=True, slots=True)
class Product:
    """Inputs [tokens, in] and a weight [out, in], float64."""

    inputs: torch.Tensor
    weight: torch.Tensor

    def smoothed(self, alpha: float = 0.5) -> Product:
        """The same product, with outliers moved into the weight."""
        from infra_lab.quantization.smoothquant import smoothing_scales

        scales = smoothing_scales(self.inputs.abs().amax(0), [self.weight], alpha).double()
        return Product(self.inputs / scales, self.weight * scales)

    def error(self, shared: Shared, bits: int = 8) -> float:
        """Of the product when both sides are rounded: inputs by scales shared as told, the weight
        by one scale a row; relative."""
        from infra_lab.quantization.integer import quantize_numbers

        inputs = quantize_numbers(self.inputs, bits, granularity=shared).dequantize().double()
        weight = quantize_numbers(self.weight, bits, granularity="token").dequantize().double()
        return relative_error(inputs @ weight.T, self.value)

    @property
    def value(self) -> torch.Tensor:
        return self.inputs @ self.weight.T


def made_up_product(seed: int, factor: float, num_large: int = 4) -> Product:
    """256 tokens of 512 channels, a few of them `factor` times the others in every token."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(256, 512, generator=generator, dtype=torch.float64)
    weight = torch.randn(256, 512, generator=generator, dtype=torch.float64)
    large = torch.randperm(512, generator=generator)[:num_large]
    inputs[:, large] *= factor
    return Product(inputs, weight)


def channel_ratios(checkpoint: Checkpoint, sequences: torch.Tensor) -> Mapping[str, float]:
    """What the layers' norms give: the largest channel's largest magnitude over the median
    channel's, at most over layers, and the share of channels above 20 medians."""
    from infra_lab.quantization.layer_stream import LayerStream
    from infra_lab.quantization.layer_view import LayerView
    from infra_lab.quantization.modules import GROUPS

    stream = LayerStream(checkpoint, sequences)
    largest, large, channels = 0.0, 0, 0
    for layer in range(checkpoint.config.num_hidden_layers):
        seen = LayerView(checkpoint, layer, stream).inputs()
        for group in GROUPS:
            if group.norm is None:
                continue
            reach = seen[group].abs().amax(0)
            ratios = reach / reach.median()
            largest = max(largest, float(ratios.max()))
            large += int((ratios > 20).sum())
            channels += len(ratios)
        stream.advance(checkpoint)
    return {"channel_ratio": largest, "large_share": large / channels}
