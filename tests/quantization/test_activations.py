"""Rounded inputs with rounded weights: W8A8, W4A8, W4A4, and the outliers of LLM.int8()."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infra_lab.errors import UsageError
from infra_lab.formats.quantized_weight import ActivationFormat
from infra_lab.layers.quantized_input import rounded_input
from infra_lab.quantization.activations import quantized_product, relative_error
from infra_lab.quantization.integer import IntegerScheme
from infra_lab.quantization.llm_int8 import (
    INPUT_FORMAT,
    llm_int8_product,
    outlying_columns,
    quantize_llm_int8,
)
from infra_lab.quantization.rotation import random_rotation
from infra_lab.quantization.rtn import round_to_nearest
from tests.quantization.inputs import SEEDS, random_weight


def inputs(seed: int, outlier: float = 1.0) -> torch.Tensor:
    x = random_weight(16, 96, seed, torch.float32)
    x[:, 7] *= outlier
    return x


def error_at(x: torch.Tensor, weight: torch.Tensor, bits: int, form: Any) -> float:
    quantized = round_to_nearest(weight, IntegerScheme(bits, symmetric=True))
    return relative_error(x, weight, quantized, form)


def test_each_bit_less_costs_more() -> None:
    x, weight = inputs(0), random_weight(32, 96, 1, torch.float32)
    errors = [
        error_at(x, weight, bits, form)
        for bits, form in [
            (8, None),
            (8, ActivationFormat(8)),
            (4, None),
            (4, ActivationFormat(8)),
            (4, ActivationFormat(4)),
        ]
    ]
    assert errors == sorted(errors)
    assert errors[1] < 0.015
    assert errors[3] < 1.02 * errors[2]  # W4A8 costs hardly more than W4A16


@pytest.mark.parametrize(("bits", "gain"), [(8, 3.0), (4, 1.5)])
def test_a_rotation_cures_activations_with_outliers(bits: int, gain: float) -> None:
    """W4A4 (and W4A8): the same product of rotated inputs and weights, which are even."""
    x, weight = inputs(2, outlier=60), random_weight(32, 96, 3, torch.float32)
    weight[:, 7] /= 20
    rotation = random_rotation(96, torch.Generator().manual_seed(1))
    form = ActivationFormat(bits)
    plain = error_at(x, weight, 8, form)
    rotated = error_at(rotation.apply(x), rotation.apply(weight), 8, form)
    assert rotated < plain / gain


def test_outliers_in_full_precision_cost_the_others_nothing() -> None:
    """LLM.int8(): the naive product, the split, and the split with a full copy of the columns."""
    x, weight = inputs(5, outlier=80), random_weight(32, 96, 6, torch.float32)
    wanted = x.double() @ weight.double().T
    quantized = quantize_llm_int8(weight)
    others = torch.arange(96) != 7

    def error(product: torch.Tensor) -> float:
        return float((product.double() - wanted).norm())

    naive = error(llm_int8_product(x, quantized, threshold=None))
    split = error(llm_int8_product(x, quantized))
    full = error(llm_int8_product(x, quantized, full=weight))
    without = error(
        llm_int8_product(x[:, others], quantize_llm_int8(weight[:, others]))
        + x[:, 7:8] @ weight[:, 7:8].T
    )
    assert full < split < naive
    assert full < naive / 5
    assert full == pytest.approx(without, rel=0.1)


@settings(max_examples=30)
@given(SEEDS, st.sampled_from([1.0, 60.0]))
def test_the_split_product_is_that_of_the_rounded_inputs(seed: int, outlier: float) -> None:
    x, weight = inputs(seed, outlier), random_weight(8, 96, seed + 1, torch.float32)
    quantized = quantize_llm_int8(weight)
    got = llm_int8_product(x.view(4, 4, 96), quantized).view(16, 8)
    wanted = quantized_product(x, quantized, INPUT_FORMAT)
    torch.testing.assert_close(
        got.double(), wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max())
    )


@settings(max_examples=30)
@given(SEEDS)
def test_codes_scales_and_outliers_are_those_of_bitsandbytes(seed: int) -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes.functional")
    x, weight = inputs(seed, 30).half(), random_weight(8, 96, seed + 1).half()
    codes, largest, columns = bitsandbytes.int8_vectorwise_quant(x, threshold=6.0)
    outlying = outlying_columns(x)
    assert torch.equal(outlying.nonzero().flatten(), columns.flatten().long())
    quantized = quantize_llm_int8(weight)
    their_codes, their_largest, _ = bitsandbytes.int8_vectorwise_quant(weight)
    torch.testing.assert_close(quantized.scales[:, 0] * 127, their_largest, rtol=1e-6, atol=0)
    assert ((quantized.codes.int() - 128) - their_codes.int()).abs().max() <= 1  # at ties
    # What lies below the threshold in an outlying column counts for its token's scale there.
    same = x[:, ~outlying].abs().amax(1).float() == largest
    assert same.sum() > 8
    rounded = rounded_input(x.float(), INPUT_FORMAT)[same][:, ~outlying]
    theirs = (codes.float() * (largest / 127)[:, None])[same][:, ~outlying]
    assert ((rounded - theirs).abs() > 1e-5).float().mean() < 0.005  # ties


def test_what_makes_no_sense_is_refused() -> None:
    quantized = round_to_nearest(torch.eye(96), IntegerScheme())
    with pytest.raises(UsageError, match="symmetric int8 weights"):
        llm_int8_product(inputs(0), quantized)
    with pytest.raises(UsageError, match="fp8 have 8 bits"):
        quantized_product(inputs(0), quantized, ActivationFormat(4, "fp8"))
