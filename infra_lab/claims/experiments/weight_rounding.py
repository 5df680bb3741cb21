"""Rounding one layer's weights: errors by bits and by who shares a scale, and what methods add.

The measuring half of the experiment `weight-quantization`, on matrices of the default model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from infra_lab.quantization.distance import relative_error

if TYPE_CHECKING:
    import torch

    from infra_lab.models.checkpoint import Checkpoint
    from infra_lab.quantization.integer import IntegerScheme

Granularity = Literal["tensor", "channel"] | int
GRANULARITIES: tuple[Granularity, ...] = ("tensor", "channel", 192, 64, 32)
BITS = (8, 4, 3, 2)


def scheme_of(bits: int, granularity: Granularity, symmetric: bool = True) -> IntegerScheme:
    from infra_lab.quantization.integer import IntegerScheme

    return IntegerScheme(bits, symmetric, granularity)


def mean_error(
    weights: Iterable[torch.Tensor], bits: int, granularity: Granularity, symmetric: bool = True
) -> float:
    """|Q - W| / |W| of rounding each weight to nearest, on average over the matrices."""
    from infra_lab.quantization.rtn import round_to_nearest

    scheme = scheme_of(bits, granularity, symmetric)
    errors = [
        relative_error(round_to_nearest(weight, scheme).dequantize(), weight.double())
        for weight in weights
    ]
    return sum(errors) / len(errors)


def most_values_in_a_group(weights: Iterable[torch.Tensor], group_size: int = 32) -> int:
    """The most different numbers that a group of consecutive columns has."""
    most = 0
    for weight in weights:
        ordered = weight.view(-1, group_size).sort(-1).values
        most = max(most, 1 + int((ordered.diff(dim=-1) != 0).sum(-1).max()))
    return most


def matrices(checkpoint: Checkpoint, layers: Iterable[int]) -> list[torch.Tensor]:
    """All projections of some layers, fp32 [out, in]."""
    import torch

    from infra_lab.quantization.modules import GROUPS, layer_prefix

    return [
        checkpoint.tensor(f"{layer_prefix(layer)}{module}.weight", torch.float32)
        for layer in layers
        for group in GROUPS
        for module in group.modules
    ]


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """A matrix with inputs to calibrate on and others to judge by, fp32 [tokens, in]."""

    weight: torch.Tensor
    seen: torch.Tensor
    judged: torch.Tensor

    def output_error(self, rounded: torch.Tensor) -> float:
        """|X Q^T - X W^T| / |X W^T| on the inputs that no method saw."""
        wanted = self.judged.double() @ self.weight.double().T
        found = self.judged.double() @ rounded.double().T
        return relative_error(found, wanted)


def layer_inputs(checkpoint: Checkpoint, layer: int, sequences: torch.Tensor) -> LayerInputs:
    """Gate and up of a layer, stacked, and what reaches them; the last sequence is for judging."""
    from infra_lab.quantization.layer_stream import LayerStream
    from infra_lab.quantization.layer_view import LayerView
    from infra_lab.quantization.modules import GATE_UP

    stream = LayerStream(checkpoint, sequences)
    for _ in range(layer):
        stream.advance(checkpoint)
    view = LayerView(checkpoint, layer, stream)
    inputs = view.inputs()[GATE_UP]
    kept = sequences.shape[1]
    return LayerInputs(view.stacked(GATE_UP), inputs[:-kept], inputs[-kept:])


def method_errors(layer: LayerInputs, bits: int, group_size: int) -> dict[str, float]:
    """The output error of each method, by name."""
    from infra_lab.quantization.awq import awq, search_scales
    from infra_lab.quantization.clipping import ClippingSearch
    from infra_lab.quantization.gptq import gptq
    from infra_lab.quantization.hessian import InputStatistics
    from infra_lab.quantization.ldlq import ldlq
    from infra_lab.quantization.rtn import round_to_nearest

    scheme = scheme_of(bits, group_size, symmetric=False)
    statistics = InputStatistics(layer.weight.shape[1])
    statistics.add(layer.seen)
    hessian, weight = statistics.hessian, layer.weight
    scales = search_scales([weight], hessian, statistics.mean_magnitude, scheme).scales
    scaled = awq(weight, scales, hessian, scheme, ClippingSearch()).dequantize() / scales
    return {
        "rtn": layer.output_error(round_to_nearest(weight, scheme).dequantize()),
        "awq": layer.output_error(scaled),
        "gptq": layer.output_error(gptq(weight, hessian, scheme).dequantize()),
        "ldlq": layer.output_error(ldlq(weight, hessian, scheme).dequantize()),
    }


def salient_columns(
    layer: LayerInputs, bits: int, group_size: int, share: float, seed: int
) -> dict[str, float]:
    """The output error with a share of columns kept whole: those of the largest inputs, and as
    many at random."""
    import torch

    from infra_lab.quantization.rtn import round_to_nearest

    weight = layer.weight
    rounded = round_to_nearest(weight, scheme_of(bits, group_size, symmetric=False)).dequantize()
    count = max(1, round(share * weight.shape[1]))
    by_input = layer.seen.abs().mean(0).topk(count).indices
    generator = torch.Generator().manual_seed(seed)
    at_random = torch.randperm(weight.shape[1], generator=generator)[:count]
    errors = {"none": layer.output_error(rounded)}
    for name, columns in (("salient", by_input), ("random", at_random)):
        mixed = rounded.clone()
        mixed[:, columns] = weight[:, columns]
        errors[name] = layer.output_error(mixed)
    return errors


def straight_through(bits: int = 4) -> tuple[float, float]:
    """The gradient that passes a fake quantizer for numbers inside its range, and for clipped
    ones."""
    import torch

    from infra_lab.quantization.integer import IntegerGrid
    from infra_lab.quantization.qat import fake_quantize

    middle = 2.0 ** (bits - 1)
    grid = IntegerGrid(bits, torch.tensor(0.5), torch.tensor(middle))
    edge = 0.5 * (middle - 1)
    numbers = torch.tensor([0.2, -1.3, edge - 0.1, edge + 2, -edge - 3], requires_grad=True)
    fake_quantize(numbers, grid).sum().backward()  # type: ignore[no-untyped-call]
    assert numbers.grad is not None
    return float(numbers.grad[:3].mean()), float(numbers.grad[3:].mean())
