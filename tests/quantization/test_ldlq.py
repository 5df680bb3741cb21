"""LDLQ: its factors, its feedback, and that it is GPTQ by another road."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infra_lab.errors import UsageError
from infra_lab.quantization.clipping import ClippingSearch
from infra_lab.quantization.gptq import GptqOptions, gptq
from infra_lab.quantization.hessian import damped, proxy_loss
from infra_lab.quantization.integer import IntegerScheme, weight_grid
from infra_lab.quantization.ldlq import ldl, ldlq
from infra_lab.quantization.rotation import incoherence, random_rotation
from infra_lab.quantization.rtn import round_to_nearest
from tests.quantization.inputs import SEEDS, correlated_inputs, hessian_of, random_weight, schemes


@settings(max_examples=30)
@given(SEEDS, st.integers(1, 30))
def test_the_factors_give_the_hessian_back(seed: int, n: int) -> None:
    hessian = damped(hessian_of(correlated_inputs(40, n, seed)), 0.01)[0]
    upper, diagonal = ldl(hessian)
    assert torch.equal(upper, upper.triu(1))
    unit = upper + torch.eye(n, dtype=torch.float64)
    torch.testing.assert_close(unit @ torch.diag(diagonal) @ unit.T, hessian)
    assert (diagonal > 0).all()


@settings(max_examples=20)
@given(schemes(), SEEDS, st.sampled_from([None, ClippingSearch(0.5, 4)]))
def test_it_is_gptq_with_a_grid_that_was_there_before(
    scheme: IntegerScheme, seed: int, clipping: ClippingSearch | None
) -> None:
    """QuIP, theorem 6."""
    weight, hessian = random_weight(5, 40, seed), hessian_of(correlated_inputs(150, 40, seed + 1))
    ours = ldlq(weight, hessian, scheme, 0.01, clipping)
    theirs = gptq(weight, hessian, scheme, GptqOptions(0.01, static_groups=True, clipping=clipping))
    assert torch.equal(ours.codes, theirs.codes)
    assert torch.equal(ours.scales, theirs.scales)


@settings(max_examples=5)
@given(SEEDS)
def test_each_column_has_the_feedback_of_all_before_it(seed: int) -> None:
    """Beyond a block of columns too."""
    weight, hessian = random_weight(2, 150, seed), hessian_of(correlated_inputs(400, 150, seed))
    quantized = ldlq(weight, hessian, IntegerScheme(3))
    upper = ldl(damped(hessian, 0.01)[0])[0]
    error = weight - quantized.dequantize().double()
    wanted = weight_grid(weight, IntegerScheme(3))[:, :1].encode(weight + error @ upper)
    assert torch.equal(quantized.codes, wanted.to(torch.uint8))


def test_it_costs_less_than_nearest_and_rotated_less_again() -> None:
    """QuIP at 2 bits: outlying weights and inputs, a scale a row."""
    weight, inputs = random_weight(64, 96, 1), correlated_inputs(800, 96, 2)
    weight[:, ::31] *= 8
    inputs[:, ::17] *= 6
    scheme = IntegerScheme(2, symmetric=True)
    rotation = random_rotation(96, torch.Generator().manual_seed(0))
    rotated = rotation.apply(weight)
    hessian, turned = hessian_of(inputs), hessian_of(rotation.apply(inputs))
    assert incoherence(rotated) < incoherence(weight) / 2
    nearest = proxy_loss(weight, round_to_nearest(weight, scheme), hessian)
    plain = proxy_loss(weight, ldlq(weight, hessian, scheme), hessian)
    quip = proxy_loss(rotated, ldlq(rotated, turned, scheme), turned)
    assert quip < plain < nearest
    assert quip < nearest / 4


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(UsageError, match="of 4 inputs is 4 x 4"):
        ldlq(random_weight(2, 4), torch.eye(5), IntegerScheme())
    with pytest.raises(UsageError, match="from 0 to below 1, not 2"):
        ldlq(random_weight(2, 4), torch.eye(4), IntegerScheme(), damping=2)
