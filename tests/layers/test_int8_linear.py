"""W8A8 on a CPU: the integer sum is exact, whatever the batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infra_lab.formats.quantized_weight import ActivationFormat, QuantizedWeight
from infra_lab.layers.int8_linear import Int8Linear, serves_int8
from infra_lab.layers.quantized_input import QuantizedInput
from infra_lab.layers.quantized_linear import QuantizedLinear
from infra_lab.native import int8, library
from kernels.quantize_int8 import quantize_per_token_reference
from tests.layers.quantized_weights import quantized_weight

pytestmark = pytest.mark.skipif(
    not library.is_available() or not int8.multiplies_int8(),
    reason="no compiled kernels, or no VNNI, here",
)

TOKENS = ActivationFormat()


def weight_of(outputs: int, inputs: int, table: str = "int8", seed: int = 0) -> QuantizedWeight:
    return quantized_weight(table, outputs, inputs, inputs, half_scales=False, seed=seed)


@settings(max_examples=150)
@given(
    rows=st.integers(1, 40) | st.sampled_from([511, 513, 1030]),
    outputs=st.integers(1, 100),
    inputs=st.integers(1, 90) | st.sampled_from([255, 256, 257, 600]),
    table=st.sampled_from(["int8", "int5"]),
    seed=st.integers(0, 9),
)
def test_the_sum_is_that_of_the_integers_scaled_once(
    rows: int, outputs: int, inputs: int, table: str, seed: int
) -> None:
    torch.manual_seed(seed)
    weight, x, bias = weight_of(outputs, inputs, table, seed), torch.randn(rows, inputs), None
    codes, scales = quantize_per_token_reference(x)
    integers = weight.values[weight.codes.long()].long()
    exact = (codes.long() @ integers.T).float() * scales[:, None] * weight.scales.flatten()
    assert torch.equal(Int8Linear(weight, bias, TOKENS)(x), exact)


@settings(max_examples=30)
@given(
    rows=st.integers(1, 30),
    inputs=st.integers(1, 300),
    activation=st.sampled_from(
        [
            TOKENS,
            ActivationFormat(bits=4),
            ActivationFormat(granularity="tensor", scale=0.01),
            ActivationFormat(granularity="tensor", scale=0.5),
        ]
    ),
)
def test_it_is_the_product_of_the_rounded_input(
    rows: int, inputs: int, activation: ActivationFormat
) -> None:
    torch.manual_seed(0)
    weight, x, bias = weight_of(40, inputs), torch.randn(rows, inputs), torch.randn(40)
    assert serves_int8(weight, activation)
    rounded = QuantizedInput(QuantizedLinear(weight, bias), activation)
    size = float(weight.dequantize().abs().max()) * inputs
    error = (Int8Linear(weight, bias, activation)(x) - rounded(x)).abs().max()
    assert error <= 1e-6 * size * float(x.abs().max()) + 1e-6


def test_the_largest_codes_do_not_pass_the_sum() -> None:
    """255 * 127 a product, where a code is kept 128 more than it means, over a whole row."""
    inputs = int8.LONGEST_ROW
    weight = weight_of(1, inputs)
    x = torch.ones(1, inputs)
    for code, value in ((255, 127), (0, -128)):
        extreme = replace(weight, codes=torch.full_like(weight.codes, code))
        y = Int8Linear(extreme, None, TOKENS)(x)
        integer = torch.tensor(float(value * 127 * inputs))
        assert y[0, 0] == integer * torch.tensor(1 / 127) * weight.scales[0, 0]
    longer = quantized_weight("int8", 1, inputs + 1, inputs + 1)
    assert not serves_int8(longer, TOKENS)


def test_zeros_give_zeros_and_rows_are_those_of_the_matrix() -> None:
    weight = weight_of(70, 33)
    layer = Int8Linear(weight, None, TOKENS)
    assert torch.equal(layer(torch.zeros(3, 33)), torch.zeros(3, 70))
    indices = torch.tensor([69, 0, 31, 32])
    assert torch.equal(layer.rows(indices), weight.dequantize()[indices])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_token_that_is_not_finite_spoils_itself_alone(bad: float) -> None:
    weight, x = weight_of(40, 33), torch.randn(3, 33)
    x[1, 5] = bad
    for activation in (TOKENS, ActivationFormat(granularity="tensor", scale=0.1)):
        y = Int8Linear(weight, None, activation)(x)
        assert y[1].isnan().all()
        assert y[[0, 2]].isfinite().all()


@pytest.mark.parametrize(
    ("weight", "activation"),
    [
        (weight_of(4, 8), None),
        (weight_of(4, 8), ActivationFormat(kind="fp8")),
        (weight_of(4, 8), ActivationFormat(symmetric=False)),
        (weight_of(4, 8), ActivationFormat(granularity="tensor")),
        (weight_of(4, 8), ActivationFormat(outlier_threshold=6.0)),
        (weight_of(4, 8, "int4"), TOKENS),
        (weight_of(4, 8, "e4m3"), TOKENS),
        (weight_of(4, 8, "uint8"), TOKENS),
        (quantized_weight("int8", 4, 8, 4), TOKENS),
        (quantized_weight("int8", 4, 8, 8, "zeros"), TOKENS),
        (quantized_weight("int8", 4, 8, 8, "offsets"), TOKENS),
    ],
)
def test_other_products_are_left_to_other_layers(
    weight: QuantizedWeight, activation: ActivationFormat | None
) -> None:
    assert serves_int8(weight_of(4, 8), TOKENS)
    assert not serves_int8(weight, activation)
