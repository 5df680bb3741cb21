"""Grids of integers: half a scale at most, zero exact, nothing ever NaN; torchao's own numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infra_lab.errors import UsageError
from infra_lab.quantization.clipping import ClippingSearch, clipped_grid
from infra_lab.quantization.integer import (
    IntegerScheme,
    by_groups,
    fit_grid,
    quantize_numbers,
    weight_grid,
)
from infra_lab.quantization.rtn import round_to_nearest
from tests.quantization.inputs import SEEDS, random_weight, schemes

EDGES = [0.0, 1.0, -1.0, 3.0, 1e-30, -1e-30, 1e-42, 1e30, 3.4e38, -3.4e38]
LIMIT = torch.finfo(torch.float32).max


@st.composite
def weights(draw: st.DrawFn, max_columns: int = 40) -> torch.Tensor:
    """fp32 [out, in] of every size: rows that are zero, constant, tiny, huge, of one sign, or with
    one number far out."""
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, max_columns))
    generator = np.random.default_rng(draw(SEEDS))
    weight = generator.standard_normal((rows, columns)) * 10.0 ** draw(st.integers(-40, 37))
    for row in range(rows):
        kind = draw(st.sampled_from(["as it is", "constant", "positive", "far out", "one edge"]))
        if kind == "constant":
            weight[row] = draw(st.sampled_from(EDGES))
        elif kind == "positive":
            weight[row] = abs(weight[row]) + abs(weight[row]).max()
        elif kind == "far out":
            weight[row, -1] *= 1e4
        elif kind == "one edge":
            weight[row, 0] = draw(st.sampled_from(EDGES))
    return torch.from_numpy(np.clip(weight, -LIMIT, LIMIT).astype(np.float32))


def spread(per_group: torch.Tensor, scheme: IntegerScheme, columns: int) -> torch.Tensor:
    """[out, groups] -> [out, in]."""
    return per_group.repeat_interleave(scheme.group_size(columns), 1)[:, :columns]


@settings(max_examples=200)
@given(weights(), schemes(scale_dtype=None))
def test_every_weight_comes_back_within_half_a_scale(
    weight: torch.Tensor, scheme: IntegerScheme
) -> None:
    quantized = round_to_nearest(weight, scheme)
    dense = quantized.dequantize()
    assert dense.isfinite().all()
    scales = spread(quantized.scales, scheme, weight.shape[1]).double()
    # A rounded scale covers less than the whole range, and where it is subnormal much less; a grid
    # that would leave fp32 ends before it. Inside, half a scale and a rounding of fp32.
    steps, middle = 2**scheme.bits - 1, 2 ** (scheme.bits - 1)
    low = high = torch.full_like(scales, middle)
    if quantized.zeros is not None:
        low = spread(quantized.zeros, scheme, weight.shape[1]).double()
        high = steps - low
    elif scheme.narrow:
        low = high = low - 1
    else:
        high = high - 1
    inside = weight.double().clamp(-low * scales - scales / 2, high * scales + scales / 2)
    error = (dense.double() - inside).abs()
    assert (error <= scales / 2 + inside.abs() * 2**-21 + 1e-44).all()
    if scheme.scale_dtype == torch.float32 and weight.abs().max() < 1e38:
        cut = (weight.double() - inside).abs()
        assert (cut <= inside.abs() * 2**-19 + 2e-43).all()


@given(weights(), schemes(scale_dtype=None))
def test_zero_stays_zero_and_codes_fit_their_bits(
    weight: torch.Tensor, scheme: IntegerScheme
) -> None:
    weight[:, weight.shape[1] // 2] = 0
    quantized = round_to_nearest(weight, scheme)
    assert not quantized.dequantize()[:, weight.shape[1] // 2].any()
    assert int(quantized.codes.max()) < 2**scheme.bits
    assert (quantized.scales > 0).all()
    stored = quantized.scales.to(scheme.scale_dtype).float()
    if float(weight.abs().max()) < 1e37:
        assert torch.equal(stored, quantized.scales)


@given(weights(), schemes(scale_dtype=None))
def test_what_was_rounded_rounds_to_itself(weight: torch.Tensor, scheme: IntegerScheme) -> None:
    """The same grid gives the same codes again: nothing drifts when a file is read and written."""
    grid = weight_grid(weight, scheme)
    quantized = round_to_nearest(weight, scheme)
    groups = torch.arange(weight.shape[1]) // scheme.group_size(weight.shape[1])
    of_columns = grid[:, groups]
    assert torch.equal(of_columns.decode(quantized.codes.float()), quantized.dequantize())
    again = of_columns.encode(quantized.dequantize())
    assert torch.equal(again.to(torch.uint8), quantized.codes)


def test_a_group_of_zeros_has_scale_one() -> None:
    quantized = round_to_nearest(torch.zeros(2, 6), IntegerScheme(granularity=3))
    assert torch.equal(quantized.scales, torch.ones(2, 2))
    assert not quantized.dequantize().any()


@pytest.mark.parametrize("symmetric", [False, True])
def test_a_group_of_1e_30_keeps_its_precision(symmetric: bool) -> None:
    """aiter#4289, llama.cpp PR#7313: neither zero channels nor tiny groups may become NaN."""
    weight = torch.tensor([[1e-30, -2e-30, 3e-30, 0.0], [0.0] * 4, [1.0, 2.0, -3.0, 0.0]])
    quantized = round_to_nearest(weight, IntegerScheme(8, symmetric))
    torch.testing.assert_close(quantized.dequantize(), weight, rtol=0.02, atol=0)
    halves = round_to_nearest(weight, IntegerScheme(8, symmetric, scale_dtype=torch.float16))
    assert not halves.dequantize()[:2].any()  # a scale of 1e-32 is no fp16: they are zero


@pytest.mark.parametrize("value", [3.0, -3.0])
@pytest.mark.parametrize("bits", range(2, 9))
def test_a_constant_is_exact_when_the_grid_has_a_zero_point(value: float, bits: int) -> None:
    """Its range includes zero, so the constant is one end of it."""
    weight = torch.full((1, 8), value)
    dense = round_to_nearest(weight, IntegerScheme(bits)).dequantize()
    torch.testing.assert_close(dense, weight, rtol=2**-23, atol=0)


@pytest.mark.parametrize("group", [7, 128, 256, 4304])
def test_a_group_that_does_not_divide_leaves_a_shorter_last_one(group: int) -> None:
    """llm-awq#21, mlx#1033: 4304 columns in groups of 128 or 256 lose no column."""
    weight = random_weight(3, 4304, dtype=torch.float32)
    quantized = round_to_nearest(weight, IntegerScheme(8, granularity=group))
    assert quantized.scales.shape == (3, -(-4304 // group))
    last = 4304 - (quantized.num_groups - 1) * group
    alone = round_to_nearest(weight[:, -last:], IntegerScheme(8))
    assert torch.equal(quantized.dequantize()[:, -last:], alone.dequantize())


def test_an_outlier_costs_its_own_group_only() -> None:
    weight = random_weight(1, 64, dtype=torch.float32)
    weight[0, 5] = 1000.0
    error = (round_to_nearest(weight, IntegerScheme(4, granularity=16)).dequantize() - weight).abs()
    assert error[0, 16:].max() < 0.3
    assert error[0, :16].max() > 0.9
    assert (round_to_nearest(weight, IntegerScheme(4)).dequantize() - weight).abs()[
        0, 16:
    ].max() > 0.9


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize(("group", "symmetric"), [(64, True), (64, False), (16, True), (16, False)])
@settings(max_examples=15)
@given(seed=SEEDS)
def test_scales_zeros_and_codes_are_those_of_torchao(
    bits: int, group: int, symmetric: bool, seed: int
) -> None:
    torchao = pytest.importorskip("torchao.quantization.quant_primitives")
    weight = random_weight(4, 64, seed, torch.float32)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if symmetric else (0, 2**bits - 1)
    mapping = torchao.MappingType.SYMMETRIC if symmetric else torchao.MappingType.ASYMMETRIC
    scale, zero = torchao.choose_qparams_affine(
        weight,
        mapping,
        (1, group),
        torch.int8 if symmetric else torch.uint8,
        low,
        high,
        eps=torch.finfo(torch.float32).tiny,
        scale_dtype=torch.float32,
        zero_point_dtype=torch.int32,
    )
    codes = torchao.quantize_affine(
        weight, (1, group), scale, zero, torch.int8 if symmetric else torch.uint8, low, high
    )
    quantized = round_to_nearest(weight, IntegerScheme(bits, symmetric, group))
    torch.testing.assert_close(quantized.scales, scale.view(4, -1), rtol=2**-22, atol=0)
    difference = (quantized.codes.int() + low - codes.int()).abs()
    # torchao multiplies by 1 / scale: a tie may fall to the other side.
    from_tie = ((weight / quantized.scales.repeat_interleave(group, 1)) % 1 - 0.5).abs()
    assert (difference <= 1).all()
    assert (from_tie[difference == 1] < 1e-4).all()
    if quantized.zeros is not None:
        assert torch.equal(quantized.zeros, zero.view(4, -1).float())


def test_int8_groups_of_32_are_ggufs_q8_0_but_for_ties_and_rounded_scales() -> None:
    """gguf chooses codes before it rounds the scale to fp16, here after."""
    gguf = pytest.importorskip("gguf")
    weight = random_weight(64, 256, 7, torch.float32)
    packed = gguf.quants.quantize(weight.numpy(), gguf.GGMLQuantizationType.Q8_0)
    theirs = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q8_0)
    scheme = IntegerScheme(8, True, 32, narrow=True, scale_dtype=torch.float16)
    ours = round_to_nearest(weight, scheme)
    scales = ours.scales.repeat_interleave(32, 1)
    difference = (ours.dequantize() - torch.from_numpy(theirs.copy())).abs() / scales
    assert ((difference < 0.01) | ((difference - 1).abs() < 0.01)).all()  # no code, or one
    assert (difference > 0.5).float().mean() < 0.03


@given(weights(), schemes(), st.sampled_from([0.3, 0.5, 0.8]), st.integers(1, 20))
def test_clipping_never_costs_more_than_the_whole_range(
    weight: torch.Tensor, scheme: IntegerScheme, smallest: float, steps: int
) -> None:
    weight = weight.clamp(-1e15, 1e15).double()
    whole = round_to_nearest(weight, scheme)
    clipped = round_to_nearest(weight, scheme, ClippingSearch(smallest, steps))
    errors = [(q.dequantize().double() - weight).square() for q in (whole, clipped)]
    assert errors[1].sum() <= errors[0].sum() * (1 + 1e-6)


def test_clipping_takes_the_best_ratio_of_its_grid() -> None:
    weight = random_weight(6, 32, seed=3)
    scheme, search = IntegerScheme(3, granularity=8), ClippingSearch(0.4, 10)
    assert search.ratios() == pytest.approx([1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4])
    found = clipped_grid(weight, scheme, search)
    for row in range(6):
        for group in range(4):
            part = weight[row, 8 * group : 8 * group + 8]
            costs = []
            for ratio in search.ratios():
                grid = fit_grid(part.amin() * ratio, part.amax() * ratio, scheme)
                costs.append(float((grid.nearest(part) - part).square().sum()))
            got = float((found[row, group].nearest(part) - part).square().sum())
            assert got == pytest.approx(min(costs), rel=1e-12)


def test_clipping_wins_where_a_few_weights_lie_far_out() -> None:
    weight = random_weight(8, 512, dtype=torch.float32)
    scheme = IntegerScheme(3)
    errors = [
        float((round_to_nearest(weight, scheme, search).dequantize() - weight).square().mean())
        for search in (None, ClippingSearch())
    ]
    assert errors[1] < 0.75 * errors[0]


@pytest.mark.parametrize("granularity", ["tensor", "token", "channel", "head", 4])
@pytest.mark.parametrize("symmetric", [False, True])
@settings(max_examples=30)
@given(seed=SEEDS, bits=st.integers(2, 8), exponent=st.integers(-35, 35))
def test_activations_come_back_within_half_a_scale_of_those_that_share_it(
    granularity: Any, symmetric: bool, seed: int, bits: int, exponent: int
) -> None:
    x = torch.from_numpy(
        np.random.default_rng(seed).standard_normal((6, 3, 8)) * 10.0**exponent
    ).float()
    x[2] *= 100
    got = quantize_numbers(x, bits, symmetric, granularity)
    dims = {"tensor": (0, 1, 2), "token": (2,), "channel": (0, 1), "head": (0, 2), 4: (3,)}
    shared = x.double() if granularity != 4 else x.double().unflatten(-1, (2, 4))
    low = shared.amin(dims[granularity], keepdim=True).clamp(max=0)
    high = shared.amax(dims[granularity], keepdim=True).clamp(min=0)
    reach = torch.maximum(-low, high)
    scales = reach / (2 ** (bits - 1) - 1) if symmetric else (high - low) / (2**bits - 1)
    torch.testing.assert_close(got.scales.double(), scales, rtol=1e-6, atol=0)
    error = (got.dequantize().double() - x.double()).abs().view(shared.shape)
    assert (error <= scales / 2 + reach * 2**-21).all()
    if symmetric:
        assert int(got.codes.min()) >= 1
        assert (got.zeros == 2 ** (bits - 1)).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_bad_activation_spoils_its_own_token_only(bad: float) -> None:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    x[1, 3] = bad
    dense = quantize_numbers(x).dequantize()
    assert dense[1].isnan().all()
    assert dense[[0, 2, 3]].isfinite().all()


def test_int8_tokens_are_those_of_the_kernel() -> None:
    kernel = pytest.importorskip("kernels.quantize_int8")
    x = torch.randn(16, 96, generator=torch.Generator().manual_seed(1)) * 7
    codes, scales = kernel.quantize_per_token_reference(x)
    got = quantize_numbers(x)
    assert torch.equal(got.scales.squeeze(-1), scales)
    assert torch.equal(got.codes.int() - 128, codes.int())


@given(weights(), st.integers(2, 8), st.sampled_from([1, 5, 8, 50]))
def test_an_exact_extreme_is_one_and_what_lies_beyond_is_cut_by_a_step_at_most(
    weight: torch.Tensor, bits: int, group: int
) -> None:
    scheme = IntegerScheme(bits, symmetric=True, granularity=group, exact_extreme=True)
    quantized = round_to_nearest(weight, scheme)
    scales = spread(quantized.scales, scheme, weight.shape[1]).double()
    error = (quantized.dequantize().double() - weight).abs()
    inside = weight / scales <= 2 ** (bits - 1) - 1
    bound = (torch.where(inside, 0.5, 1.0) + 1e-5 * 2**bits) * scales.abs()
    assert (error <= bound + 2**bits * 1e-44).all()  # a scale of fp32's smallest is rounded too
    groups = by_groups(weight, group)
    extreme = groups.gather(2, groups.abs().argmax(2, keepdim=True))[..., 0].float()
    alive = extreme.abs() > 1e-30
    lowest = quantized.scales * -(2 ** (bits - 1))
    torch.testing.assert_close(lowest[alive], extreme[alive], rtol=1e-6, atol=0)


def test_groups_of_32_with_an_exact_extreme_are_no_worse_than_ggufs_q4_0() -> None:
    """Of the same scales: gguf chooses codes before it rounds them to fp16, here after."""
    gguf = pytest.importorskip("gguf")
    weight = random_weight(64, 256, 7, torch.float32)
    packed = gguf.quants.quantize(weight.numpy(), gguf.GGMLQuantizationType.Q4_0)
    theirs = torch.from_numpy(gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q4_0).copy())
    scheme = IntegerScheme(4, True, 32, exact_extreme=True, scale_dtype=torch.float16)
    ours = round_to_nearest(weight, scheme)
    stored = torch.from_numpy(packed.reshape(64, 8, 18)[:, :, :2].copy()).view(torch.float16)
    assert torch.equal(ours.scales, stored[..., 0].float())
    ours_error, their_error = (
        by_groups(one - weight, 32).square().sum(-1) for one in (ours.dequantize(), theirs)
    )
    assert (ours_error <= their_error * (1 + 1e-6)).all()
    plain = round_to_nearest(weight, IntegerScheme(4, True, 32, scale_dtype=torch.float16))
    assert (ours.dequantize() - weight).norm() < (plain.dequantize() - weight).norm()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: IntegerScheme(1), "2 to 8 bits, not 1"),
        (lambda: IntegerScheme(9), "2 to 8 bits, not 9"),
        (lambda: IntegerScheme(narrow=True), "only a symmetric grid can be narrow"),
        (lambda: IntegerScheme(exact_extreme=True), "exact in a symmetric grid that has all its"),
        (lambda: IntegerScheme(granularity=0), "at least 1 column, not 0"),
        (lambda: IntegerScheme(scale_dtype=torch.int32), "floating-point number, not torch.int32"),
        (lambda: ClippingSearch(1.5), "between 0 and 1"),
        (lambda: ClippingSearch(0.5, 0), "at least one step"),
        (lambda: round_to_nearest(torch.ones(3), IntegerScheme()), "floating-point matrix"),
        (lambda: round_to_nearest(torch.ones(3, 3).int(), IntegerScheme()), "not torch.int32"),
        (
            lambda: round_to_nearest(torch.tensor([[0.0, float("nan")]]), IntegerScheme()),
            "1 numbers that are not finite, the first nan in row 0, column 1",
        ),
        (lambda: quantize_numbers(torch.ones(2, 6), granularity=4), "of 4 do not divide 6"),
        (lambda: quantize_numbers(torch.ones(2, 6), granularity="head"), "not 2-d"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()
