"""Every method on the shapes of the default model, twice: it runs, is right, and is the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from infra_lab.formats.quantized_weight import QuantizedWeight
from infra_lab.quantization.awq import awq, search_scales
from infra_lab.quantization.clipping import ClippingSearch
from infra_lab.quantization.float8 import quantize_float8
from infra_lab.quantization.gptq import GptqOptions, gptq
from infra_lab.quantization.hessian import InputStatistics, proxy_loss
from infra_lab.quantization.integer import IntegerScheme
from infra_lab.quantization.ldlq import ldlq
from infra_lab.quantization.llm_int8 import quantize_llm_int8
from infra_lab.quantization.mxfp4 import quantize_mxfp4
from infra_lab.quantization.nf4 import quantize_nf4
from infra_lab.quantization.rtn import round_to_nearest
from tests.quantization.inputs import correlated_inputs, random_weight

SCHEME = IntegerScheme(4, granularity=64, scale_dtype=torch.float16)
# 576 and 1536 do not divide by 128 alike: 4.5 groups, and 12.
UNEVEN = IntegerScheme(4, granularity=128, scale_dtype=torch.float16)
CLIPPING = ClippingSearch()

Method = Callable[[torch.Tensor, InputStatistics], QuantizedWeight]


def scaled_and_clipped(weight: torch.Tensor, seen: InputStatistics) -> QuantizedWeight:
    scales = search_scales([weight], seen.hessian, seen.mean_magnitude, SCHEME, 5).scales
    return awq(weight, scales, seen.hessian, SCHEME, CLIPPING)


METHODS: dict[str, Method] = {
    "rtn": lambda w, seen: round_to_nearest(w, SCHEME, CLIPPING),
    "gptq": lambda w, seen: gptq(w, seen.hessian, UNEVEN),
    "gptq act-order": lambda w, seen: gptq(w, seen.hessian, UNEVEN, GptqOptions(act_order=True)),
    "ldlq": lambda w, seen: ldlq(w, seen.hessian, UNEVEN, clipping=CLIPPING),
    "awq": scaled_and_clipped,
    "nf4": lambda w, seen: quantize_nf4(w, double=True),
    "mxfp4": lambda w, seen: quantize_mxfp4(w, "even"),
    "fp8": lambda w, seen: quantize_float8(w, granularity="block"),
    "llm_int8": lambda w, seen: quantize_llm_int8(w),
}


@pytest.fixture(scope="module", params=[(192, 576), (32, 1536)], ids=["k_proj", "down_proj"])
def layer(request: pytest.FixtureRequest) -> tuple[torch.Tensor, InputStatistics]:
    out_features, in_features = request.param
    seen = InputStatistics(in_features)
    seen.add(correlated_inputs(512, in_features, 1).float())
    return random_weight(out_features, in_features, 0, torch.float32), seen


@pytest.mark.parametrize("name", METHODS)
def test_a_layer_is_quantized_twice_alike(
    name: str, layer: tuple[torch.Tensor, InputStatistics]
) -> None:
    weight, seen = layer
    first, second = (METHODS[name](weight, seen) for _ in range(2))
    assert first.codes.shape == weight.shape
    assert torch.equal(first.codes, second.codes)
    assert torch.equal(first.scales, second.scales)
    assert first.dequantize().isfinite().all()
    if name in ("gptq", "gptq act-order", "ldlq"):
        plain = proxy_loss(weight, round_to_nearest(weight, UNEVEN), seen.hessian)
        assert proxy_loss(weight, first, seen.hessian) < 0.5 * plain
