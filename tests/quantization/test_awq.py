"""AWQ: its scale is the best of its grid, counted in outputs; clipping likewise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infra_lab.errors import UsageError
from infra_lab.quantization.awq import awq, candidate_scales, search_scales
from infra_lab.quantization.clipping import ClippingSearch, clipped_grid
from infra_lab.quantization.folding import fold_into_norm, fold_into_rows, shared_by_query_heads
from infra_lab.quantization.hessian import proxy_loss
from infra_lab.quantization.integer import (
    IntegerGrid,
    IntegerScheme,
    by_groups,
    fit_grid,
    weight_grid,
)
from infra_lab.quantization.rtn import round_to_nearest
from tests.quantization.inputs import SEEDS, correlated_inputs, hessian_of, random_weight, schemes


def outlying_inputs(count: int, in_features: int, seed: int) -> torch.Tensor:
    """A twentieth of the channels ten times the others."""
    inputs = correlated_inputs(count, in_features, seed)
    inputs[:, ::20] *= 10
    return inputs


@settings(max_examples=10)
@given(schemes(), SEEDS, st.booleans(), st.integers(1, 20))
def test_the_scale_is_the_best_of_its_grid(
    scheme: IntegerScheme, seed: int, duo_scaling: bool, num_ratios: int
) -> None:
    """By the outputs themselves, of every candidate and of two weights at once."""
    inputs = outlying_inputs(60, 40, seed)
    weights = [random_weight(6, 40, seed + 1), random_weight(3, 40, seed + 2)]
    found = search_scales(
        weights, hessian_of(inputs), inputs.abs().mean(0), scheme, num_ratios, duo_scaling
    )
    losses = []
    for ratio in [None, *(step / num_ratios for step in range(num_ratios))]:
        scales = torch.ones(40)
        if ratio is not None:
            scales = candidate_scales(
                weights, inputs.abs().mean(0), ratio, scheme.group_size(40), duo_scaling
            )
        loss = 0.0
        for weight in weights:
            rounded = round_to_nearest(weight * scales, scheme).dequantize().double()
            loss += float(((inputs / scales) @ rounded.T - inputs @ weight.T).square().sum())
        losses.append(loss * 2 / 60)
    assert found.losses == pytest.approx(losses, rel=1e-9)
    assert losses[found.losses.index(min(found.losses))] == pytest.approx(min(losses), rel=1e-9)
    best = found.losses.index(min(found.losses))
    assert found.ratio == ([None, *(step / num_ratios for step in range(num_ratios))][best])


@settings(max_examples=10)
@given(schemes(), SEEDS)
def test_only_scales_that_can_be_folded_are_tried(scheme: IntegerScheme, seed: int) -> None:
    """Four query heads of 4 that read two value heads: the best of what they can share."""
    inputs, weight = outlying_inputs(60, 16, seed), random_weight(6, 16, seed + 1)
    hessian, mean = hessian_of(inputs), inputs.abs().mean(0)

    def possible(scales: torch.Tensor) -> torch.Tensor:
        return shared_by_query_heads(scales, 2, 4)[0]

    found = search_scales([weight], hessian, mean, scheme, 5, possible=possible)
    losses = []
    for step in range(6):
        scales = torch.ones(16)
        if step:
            candidate = candidate_scales([weight], mean, (step - 1) / 5, scheme.group_size(16))
            scales = possible(candidate)
        rounded = round_to_nearest(weight * scales, scheme).dequantize().double() / scales
        losses.append(proxy_loss(weight, rounded, hessian))
    assert found.losses == pytest.approx(losses, rel=1e-6)
    assert torch.equal(found.scales, possible(found.scales))


def test_outlying_inputs_make_it_worth_the_search() -> None:
    """At 3 and 4 bits it recovers at least half of what rounding to nearest loses."""
    inputs, weight = outlying_inputs(500, 160, 1), random_weight(64, 160, 2)
    hessian, mean = hessian_of(inputs), inputs.abs().mean(0)
    for bits in (3, 4):
        scheme = IntegerScheme(bits, granularity=32)
        found = search_scales([weight], hessian, mean, scheme)
        assert found.ratio is not None
        assert min(found.losses) < 0.5 * found.losses[0]
        plain = proxy_loss(weight, round_to_nearest(weight, scheme), hessian)
        assert found.losses[0] == pytest.approx(plain, rel=1e-9)


@settings(max_examples=10)
@given(schemes(), SEEDS)
def test_the_scaled_weight_gives_the_outputs_that_were_counted(
    scheme: IntegerScheme, seed: int
) -> None:
    inputs, weight = outlying_inputs(50, 24, seed), random_weight(5, 24, seed + 1)
    found = search_scales([weight], hessian_of(inputs), inputs.abs().mean(0), scheme)
    quantized = awq(weight, found.scales, hessian_of(inputs), scheme)
    smaller = inputs / found.scales
    error = smaller @ quantized.dequantize().double().T - inputs @ weight.T
    assert float(error.square().sum() * 2 / 50) == pytest.approx(min(found.losses), rel=1e-9)


@settings(max_examples=15)
@given(SEEDS, schemes(), st.sampled_from([0.0, 0.5]))
def test_clipping_never_costs_the_outputs_more(
    seed: int, scheme: IntegerScheme, ratio: float
) -> None:
    inputs, weight = outlying_inputs(50, 24, seed), random_weight(5, 24, seed + 1)
    hessian = hessian_of(inputs)
    scales = candidate_scales([weight], inputs.abs().mean(0), ratio, 8)
    whole, clipped = (
        awq(weight, scales, hessian, scheme, clipping).dequantize() / scales
        for clipping in (None, ClippingSearch())
    )
    least = proxy_loss(weight, whole, hessian) * (1 + 1e-6)
    assert proxy_loss(weight, clipped, hessian) <= least


def test_no_single_group_has_a_better_ratio_after_the_descent() -> None:
    """Every ratio of every group by brute force, on whole outputs."""
    inputs, weight = outlying_inputs(200, 24, 3), random_weight(4, 24, 4)
    hessian, scheme = hessian_of(inputs), IntegerScheme(3, granularity=8)
    search = ClippingSearch(0.5, 5)
    found = clipped_grid(weight, scheme, search, hessian)
    groups = by_groups(weight, 8)

    def loss(grid: IntegerGrid) -> torch.Tensor:
        error = (groups - grid[..., None].nearest(groups)).flatten(1)
        return ((error @ hessian) * error).sum(1)

    least = loss(found)
    whole = loss(weight_grid(weight, scheme))
    assert (least <= whole).all()
    assert least.sum() < 0.8 * whole.sum()
    tries = 0
    for group in range(3):
        for ratio in search.ratios():
            part = groups[:, group]
            tried = fit_grid(part.amin(1) * ratio, part.amax(1) * ratio, scheme)
            scales, zeros = found.scales.clone(), found.zeros.clone()
            scales[:, group], zeros[:, group] = tried.scales, tried.zeros
            other = loss(IntegerGrid(scheme.bits, scales, zeros))
            tries += int((other < least * (1 - 1e-9)).sum())
    assert tries == 0


def test_with_inputs_of_their_own_groups_are_clipped_each_for_itself() -> None:
    """H = I is the sum of squares."""
    weight, scheme = random_weight(6, 40, 0), IntegerScheme(3, granularity=16)
    with_data = clipped_grid(weight, scheme, ClippingSearch(), torch.eye(40))
    without = clipped_grid(weight, scheme, ClippingSearch())
    assert torch.equal(with_data.scales, without.scales)
    assert torch.equal(with_data.zeros, without.zeros)


def test_an_input_that_was_always_zero_does_not_unbalance_the_scales() -> None:
    mean = torch.tensor([1.0, 2.0, 0.0, 4.0])
    weight = [random_weight(3, 4, 0)]
    scales = candidate_scales(weight, mean, 0.5, 4, duo_scaling=False)
    torch.testing.assert_close(scales, torch.tensor([1.0, 2**0.5, 1.0, 2.0]) / 2**0.5)
    assert torch.equal(candidate_scales(weight, torch.zeros(4), 0.5, 4), torch.ones(4))


@given(SEEDS)
def test_scales_fold_into_norms_and_rows_without_a_trace(seed: int) -> None:
    """Norm -> linear -> linear, in fp64: the same output, to rounding."""
    norm, x = random_weight(1, 12, seed)[0], random_weight(5, 12, seed + 1)
    first, bias, second = (random_weight(8, 12, seed + 2), *random_weight(2, 8, seed + 3)[:1], 0)
    second = random_weight(4, 8, seed + 4)
    scales, inner = random_weight(1, 12, seed + 5)[0].exp(), random_weight(1, 8, seed + 6)[0].exp()
    wanted = ((x * norm) @ first.T + bias) @ second.T
    folded, folded_bias = fold_into_rows(first * scales, bias, inner)
    got = ((x * fold_into_norm(norm, scales)) @ folded.T + folded_bias) @ (second * inner).T
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


@settings(max_examples=30)
@given(SEEDS, st.sampled_from([(1, 1), (2, 6), (3, 9), (4, 4)]))
def test_scales_of_outputs_of_attention_fold_into_shared_value_heads(
    seed: int, heads: tuple[int, int]
) -> None:
    """Attention mixes tokens of one head with weights that add up to one."""
    num_kv_heads, num_heads = heads
    values, output = random_weight(7, num_kv_heads * 4, seed), random_weight(5, num_heads * 4)
    mixing = random_weight(num_heads, 7 * 7, seed + 1).view(num_heads, 7, 7).softmax(-1)

    def attended(values: torch.Tensor) -> torch.Tensor:
        spread = values.view(7, num_kv_heads, 4).repeat_interleave(num_heads // num_kv_heads, 1)
        return torch.einsum("hqk,khd->qhd", mixing, spread).flatten(1)

    scales = random_weight(1, num_heads * 4, seed + 2)[0].exp()
    of_inputs, of_rows = shared_by_query_heads(scales, num_kv_heads, 4)
    got = attended(values / of_rows) @ (output * of_inputs).T
    torch.testing.assert_close(got, attended(values) @ output.T, rtol=1e-12, atol=1e-12)
    if num_heads == num_kv_heads:
        torch.testing.assert_close(of_inputs, scales)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: search_scales([], torch.eye(2), torch.ones(2), IntegerScheme()), "at least one"),
        (
            lambda: search_scales([torch.ones(2, 2)], torch.eye(2), torch.ones(3), IntegerScheme()),
            "2 finite numbers",
        ),
        (lambda: fold_into_norm(torch.ones(3), torch.ones(2)), "3 features cannot be divided"),
        (lambda: shared_by_query_heads(torch.ones(10), 3, 2), "no multiple of 3 KV heads of 2"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()
