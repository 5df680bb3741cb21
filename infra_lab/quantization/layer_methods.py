"""How each method goes about one decoder layer: what it looks at, and in which order.

The arithmetic is in the methods' own files; here is what only a whole layer shows. GPTQ and LDLQ
quantize a group as soon as its input is there, so that the next group's input already has the
error of the ones before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from infra_lab.formats.quantized_weight import QuantizedWeight
from infra_lab.layers.linear import Linear
from infra_lab.quantization.clipping import ClippingSearch
from infra_lab.quantization.gptq import GptqOptions, gptq
from infra_lab.quantization.hessian import InputStatistics
from infra_lab.quantization.integer import IntegerScheme
from infra_lab.quantization.layer_result import LayerResult
from infra_lab.quantization.layer_view import LayerView
from infra_lab.quantization.modules import GROUPS, LinearGroup
from infra_lab.quantization.rtn import round_to_nearest
from infra_lab.quantization.settings import QuantizationSettings

LayerMethod = Callable[[LayerView, QuantizationSettings], LayerResult]
Round = Callable[[torch.Tensor], QuantizedWeight]
RoundByHessian = Callable[[torch.Tensor, torch.Tensor], QuantizedWeight]


def integer_scheme(settings: QuantizationSettings) -> IntegerScheme:
    """Scales are fp16 in every integer format that is written here."""
    return IntegerScheme(
        settings.bits,
        settings.symmetric,
        settings.group_size or "channel",
        scale_dtype=torch.float16,
    )


def rtn_layer(layer: LayerView, settings: QuantizationSettings) -> LayerResult:
    scheme, clipping = integer_scheme(settings), _clipping(settings)
    return _each(layer, lambda weight: round_to_nearest(weight, scheme, clipping))


def gptq_layer(layer: LayerView, settings: QuantizationSettings) -> LayerResult:
    scheme = integer_scheme(settings)
    options = GptqOptions(settings.damping, settings.act_order, clipping=_clipping(settings))
    return _in_order(layer, lambda weight, hessian: gptq(weight, hessian, scheme, options))


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
    }
)
