"""How each method goes about one decoder layer: what it looks at, and in which order.

The arithmetic is in the methods' own files; here is what only a whole layer shows. GPTQ and LDLQ
quantize a group as soon as its input is there, so that the next group's input already has the
error of the ones before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Literal

import torch

from infra_lab.formats.quantized_weight import QuantizedWeight
from infra_lab.layers.linear import Linear
from infra_lab.quantization.awq import awq, search_scales
from infra_lab.quantization.clipping import ClippingSearch
from infra_lab.quantization.float8 import quantize_float8
from infra_lab.quantization.gptq import GptqOptions, gptq
from infra_lab.quantization.hessian import InputStatistics
from infra_lab.quantization.integer import IntegerScheme
from infra_lab.quantization.layer_result import LayerResult
from infra_lab.quantization.layer_view import LayerView
from infra_lab.quantization.ldlq import ldlq
from infra_lab.quantization.llm_int8 import quantize_llm_int8
from infra_lab.quantization.modules import GROUPS, LinearGroup
from infra_lab.quantization.mxfp4 import quantize_mxfp4
from infra_lab.quantization.nf4 import quantize_nf4
from infra_lab.quantization.rtn import round_to_nearest
from infra_lab.quantization.scaled_layer import ScaledLayer
from infra_lab.quantization.settings import QuantizationSettings
from infra_lab.quantization.smoothquant import ALPHAS, SmoothingLoss, smoothing_scales

LayerMethod = Callable[[LayerView, QuantizationSettings], LayerResult]
Round = Callable[[torch.Tensor], QuantizedWeight]
SAMPLED_TOKENS = 1024  # on which SmoothQuant tries its alphas
RoundByHessian = Callable[[torch.Tensor, torch.Tensor], QuantizedWeight]


def integer_scheme(settings: QuantizationSettings) -> IntegerScheme:
    """Scales are fp16 in every integer format that is written here; only GGUF's may be negative."""
    return IntegerScheme(
        settings.bits,
        settings.symmetric,
        settings.group_size or "channel",
        exact_extreme=settings.format == "gguf" and settings.symmetric and settings.bits == 4,
        scale_dtype=torch.float16,
    )


def rtn_layer(layer: LayerView, settings: QuantizationSettings) -> LayerResult:
    scheme, clipping = integer_scheme(settings), _clipping(settings)
    return _each(layer, lambda weight: round_to_nearest(weight, scheme, clipping))


def gptq_layer(layer: LayerView, settings: QuantizationSettings) -> LayerResult:
    scheme = integer_scheme(settings)
    options = GptqOptions(
        settings.damping,
        settings.act_order,
        settings.static_groups,
        clipping=_clipping(settings),
    )
    return _in_order(layer, lambda weight, hessian: gptq(weight, hessian, scheme, options))


def quip_layer(layer: LayerView, settings: QuantizationSettings) -> LayerResult:
    scheme, damping = integer_scheme(settings), settings.damping
    return _in_order(layer, lambda weight, hessian: ldlq(weight, hessian, scheme, damping))


def awq_layer(layer: LayerView, settings: QuantizationSettings) -> LayerResult:
    """Scales and clipped ranges by the inputs of the layer as it was."""
    scheme, seen, scaled = integer_scheme(settings), _statistics(layer), ScaledLayer(layer)
    for group in GROUPS:
        weights, inputs = [layer.weight(module) for module in group.modules], seen[group]
        best = search_scales(
            weights,
            inputs.hessian,
            inputs.mean_magnitude,
            scheme,
            possible=partial(scaled.possible, group),
        )
        scaled.divide_input(group, best.scales)
    return LayerResult(
        {
            layer.name(module): awq(
                scaled.rows(module),
                scaled.scales[group],
                seen[group].hessian,
                scheme,
                ClippingSearch(),
            )
            for group in GROUPS
            for module in group.modules
        },
        scaled.changed,
    )


def smoothquant_layer(layer: LayerView, settings: QuantizationSettings) -> LayerResult:
    """Largest magnitudes, and what an alpha costs, are those of the layer as it was."""
    scheme, scaled = integer_scheme(settings), ScaledLayer(layer)
    for group, (largest, sample) in _extremes(layer).items():
        weights = [layer.weight(module) for module in group.modules]
        alphas = ALPHAS if settings.alpha == "auto" else (settings.alpha,)
        smoothed = (smoothing_scales(largest, weights, alpha) for alpha in alphas)
        possible = [scaled.possible(group, scales) for scales in smoothed]
        if len(possible) > 1:
            loss = SmoothingLoss(sample, weights, scheme, layer.activation)
            possible.sort(key=loss)
        scaled.divide_input(group, possible[0])
    return LayerResult(
        {
            layer.name(module): round_to_nearest(scaled.rows(module) * scaled.scales[group], scheme)
            for group in GROUPS
            for module in group.modules
        },
        scaled.changed,
    )


def nf4_layer(layer: LayerView, settings: QuantizationSettings) -> LayerResult:
    return _each(layer, lambda weight: quantize_nf4(weight, double=True))


def mxfp4_layer(layer: LayerView, settings: QuantizationSettings) -> LayerResult:
    return _each(layer, quantize_mxfp4)


def fp8_layer(layer: LayerView, settings: QuantizationSettings) -> LayerResult:
    granularity: Literal["block", "channel"] = "block" if settings.format == "fp8" else "channel"
    return _each(layer, lambda weight: quantize_float8(weight, granularity=granularity))


def llm_int8_layer(layer: LayerView, settings: QuantizationSettings) -> LayerResult:
    return _each(layer, quantize_llm_int8)


def _statistics(layer: LayerView) -> dict[LinearGroup, InputStatistics]:
    """Of every group's input while nothing in the layer is quantized."""
    seen: dict[LinearGroup, InputStatistics] = {}

    def visit(group: LinearGroup, inputs: torch.Tensor) -> None:
        seen[group] = InputStatistics(inputs.shape[1])
        seen[group].add(inputs)

    layer.visit(visit)
    return seen


def _extremes(layer: LayerView) -> dict[LinearGroup, tuple[torch.Tensor, torch.Tensor]]:
    """Of every group's input while nothing in the layer is quantized: the largest magnitude of
    each channel, and some tokens spread over the text."""
    seen: dict[LinearGroup, tuple[torch.Tensor, torch.Tensor]] = {}

    def visit(group: LinearGroup, inputs: torch.Tensor) -> None:
        step = -(-len(inputs) // SAMPLED_TOKENS)
        seen[group] = inputs.abs().amax(0), inputs[::step].clone()

    layer.visit(visit)
    return seen


def _each(layer: LayerView, round_weight: Round) -> LayerResult:
    """Every matrix for itself."""
    return LayerResult(
        {
            layer.name(module): round_weight(layer.weight(module))
            for group in GROUPS
            for module in group.modules
        }
    )


def _in_order(layer: LayerView, round_weight: RoundByHessian) -> LayerResult:
    """Each group by the inputs that the groups quantized before it give it."""
    weights: dict[str, QuantizedWeight] = {}

    def visit(group: LinearGroup, inputs: torch.Tensor) -> Linear:
        statistics = InputStatistics(inputs.shape[1])
        statistics.add(inputs)
        own = layer.split(group, round_weight(layer.stacked(group), statistics.hessian))
        weights.update(own)
        return layer.linear(group, own)

    layer.visit(visit)
    return LayerResult(weights)


def _clipping(settings: QuantizationSettings) -> ClippingSearch | None:
    return ClippingSearch() if settings.clip else None


LAYER_METHODS: Mapping[str, LayerMethod] = MappingProxyType(
    {
        "rtn": rtn_layer,
        "gptq": gptq_layer,
        "awq": awq_layer,
        "smoothquant": smoothquant_layer,
        "rotation": rtn_layer,  # of a model that is rotated already
        "quip": quip_layer,
        "nf4": nf4_layer,
        "mxfp4": mxfp4_layer,
        "fp8": fp8_layer,
        "llm_int8": llm_int8_layer,
    }
)
