"""Quantized layers on the GPU kernels, interpreted faithfully: the dequantized product, or None."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from infra_lab.formats.quantized_weight import ActivationFormat, QuantizedWeight
from infra_lab.layers.quantized_input import rounded_input
from infra_lab.layers.triton_linear import FP8Linear, W4A16Linear, W8A8Linear, triton_linear
from tests.layers.quantized_weights import quantized_weight

interpreter = pytest.importorskip("kernels.testing.interpreter")

CPU = torch.device("cpu")
INDICES = torch.tensor([3, 0, 39])


@pytest.fixture(autouse=True, scope="module")
def _interpreted() -> Iterator[None]:
    with interpreter.use_faithful_interpreter():
        yield


def act_ordered(weight: QuantizedWeight) -> QuantizedWeight:
    groups = torch.arange(weight.in_features) // weight.group_size
    generator = torch.Generator().manual_seed(1)
    return replace(weight, g_idx=groups[torch.randperm(len(groups), generator=generator)])


def non_negative_zeros(weight: QuantizedWeight) -> QuantizedWeight:
    assert weight.zeros is not None
    return replace(weight, zeros=weight.zeros.clamp(0, 15))


WEIGHTS = {
    "symmetric": quantized_weight("int4", 40, 96, 32),
    "one group": quantized_weight("int4", 40, 80, 80),
    "ragged": quantized_weight("uint4", 40, 80, 32),
    "zeros": non_negative_zeros(quantized_weight("uint4", 40, 96, 32, "zeros")),
    "act-order": act_ordered(quantized_weight("int4", 40, 96, 32)),
}


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_4_bit_layer_runs_on_its_kernel(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight, bias = WEIGHTS[name], torch.randn(40).to(dtype)
    x = torch.randn(3, weight.in_features).to(dtype)
    layer = triton_linear(weight, bias, None, dtype, CPU)
    assert isinstance(layer, W4A16Linear)
    assert_no_further_than_torch(layer(x), x, weight.dequantize(), bias)
    assert torch.equal(layer.rows(INDICES), weight.dequantize()[INDICES].to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_int8_by_int8_runs_on_its_kernel(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight, bias = quantized_weight("int8", 40, 70, 70), torch.randn(40).to(dtype)
    activation, x = ActivationFormat(), torch.randn(3, 70).to(dtype)
    layer = triton_linear(weight, bias, activation, dtype, CPU)
    assert isinstance(layer, W8A8Linear)
    rounded = rounded_input(x.float(), activation)
    assert_no_further_than_torch(layer(x), rounded, weight.dequantize(), bias)
    assert torch.equal(layer.rows(INDICES), weight.dequantize()[INDICES].to(dtype))


@pytest.mark.parametrize(
    "activation",
    [
        ActivationFormat(kind="fp8", granularity="tensor"),
        ActivationFormat(kind="fp8", granularity="tensor", scale=0.01),
        ActivationFormat(kind="fp8"),
    ],
)
def test_fp8_by_fp8_runs_on_its_kernel(activation: ActivationFormat) -> None:
    torch.manual_seed(0)
    weight, bias = quantized_weight("e4m3", 40, 70, 70), torch.randn(40).bfloat16()
    x = torch.randn(3, 70).bfloat16()
    layer = triton_linear(weight, bias, activation, torch.bfloat16, CPU)
    assert isinstance(layer, FP8Linear)
    rounded = rounded_input(x.float(), activation)
    assert_no_further_than_torch(layer(x), rounded, weight.dequantize(), bias)
    assert torch.equal(layer.rows(INDICES), weight.dequantize()[INDICES].bfloat16())


@pytest.mark.parametrize(
    ("weight", "activation", "dtype"),
    [
        (quantized_weight("nf4", 8, 64, 64), None, torch.bfloat16),
        (quantized_weight("uint4", 8, 64, 32, "offsets"), None, torch.bfloat16),
        (quantized_weight("uint4", 8, 64, 32, "means"), None, torch.bfloat16),
        (quantized_weight("uint4", 8, 64, 16), None, torch.bfloat16),
        (quantized_weight("uint4", 8, 64, 32, scattered=True), None, torch.bfloat16),
        (quantized_weight("int4", 8, 64, 32), None, torch.float32),
        (quantized_weight("int8", 8, 64, 64), None, torch.bfloat16),
        (quantized_weight("int8", 8, 64, 32), ActivationFormat(), torch.bfloat16),
        (quantized_weight("int8", 8, 64, 64), ActivationFormat(bits=4), torch.bfloat16),
        (quantized_weight("int8", 8, 64, 64), ActivationFormat(kind="fp8"), torch.bfloat16),
        (
            quantized_weight("int8", 8, 64, 64),
            ActivationFormat(outlier_threshold=6.0),
            torch.bfloat16,
        ),
        (quantized_weight("int4", 8, 64, 64), ActivationFormat(), torch.bfloat16),
    ],
)
def test_what_no_kernel_takes_is_left_to_torch(
    weight: QuantizedWeight, activation: ActivationFormat | None, dtype: torch.dtype
) -> None:
    assert triton_linear(weight, None, activation, dtype, CPU) is None


def assert_no_further_than_torch(
    y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> None:
    """From float64, twice as far as the product in the same dtype is, at most."""
    exact = x.double() @ weight.double().T + bias.double()
    same_dtype = (x.to(y.dtype) @ weight.to(y.dtype).T + bias).double()
    error = (y.double() - exact).abs().max()
    assert error <= 2 * (same_dtype - exact).abs().max() + 1e-5
