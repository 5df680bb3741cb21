"""SmoothQuant: the same product, equal maxima, and the seed's example with its cure."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.errors import UsageError
from infra_lab.formats.quantized_weight import ActivationFormat
from infra_lab.quantization.integer import IntegerScheme, quantize_numbers
from infra_lab.quantization.rtn import round_to_nearest
from infra_lab.quantization.smoothquant import (
    SmoothingLoss,
    levels_in_use,
    smoothing_scales,
)
from tests.quantization.inputs import SEEDS, random_weight

INT8 = IntegerScheme(8, symmetric=True, granularity="tensor", narrow=True)


def with_outliers(seed: int = 0, count: int = 64, channels: int = 128) -> torch.Tensor:
    """The seed's example: numbers within about 3, one channel at 100."""
    x = random_weight(count, channels, seed).clamp(-3, 3)
    x[:, 17] *= 100 / 3
    x[0, 17] = 100.0
    return x


@given(SEEDS, st.floats(0, 1))
def test_the_product_stays_the_same_in_fp64(seed: int, alpha: float) -> None:
    x, weights = with_outliers(seed), [random_weight(8, 128, seed + i) for i in (1, 2, 3)]
    scales = smoothing_scales(x.abs().amax(0), weights, alpha)
    for weight in weights:
        got = (x / scales) @ (weight * scales).T
        wanted = x @ weight.T
        assert ((got - wanted).abs() <= 1e-12 * (x.abs() @ weight.abs().T)).all()


@given(SEEDS)
def test_half_makes_inputs_and_weights_equally_large_in_every_channel(seed: int) -> None:
    """Joint over q, k and v: equal to the largest of the three."""
    x, weights = with_outliers(seed), [random_weight(8, 128, seed + i) for i in (1, 2, 3)]
    scales = smoothing_scales(x.abs().amax(0), weights, 0.5)
    inputs = (x / scales).abs().amax(0)
    columns = torch.stack([(weight * scales).abs().amax(0) for weight in weights]).amax(0)
    torch.testing.assert_close(inputs, columns, rtol=1e-12, atol=0)


@given(SEEDS)
def test_alpha_zero_and_one_move_everything_to_one_side(seed: int) -> None:
    x, weight = with_outliers(seed), random_weight(8, 128, seed + 1)
    largest = x.abs().amax(0)
    all_to_inputs, all_to_weights = (smoothing_scales(largest, [weight], a) for a in (0.0, 1.0))
    ones = torch.ones(128, dtype=torch.float64)
    torch.testing.assert_close((weight * all_to_inputs).abs().amax(0), ones)
    torch.testing.assert_close((x / all_to_weights).abs().amax(0), ones)


@pytest.mark.parametrize("bits", [8, None])
def test_the_loss_of_an_alpha_is_what_the_outputs_err(bits: int | None) -> None:
    x, weights = with_outliers().float(), [random_weight(8, 128, i).float() for i in (1, 2)]
    scales = smoothing_scales(x.abs().amax(0), weights, 0.6)
    expected, divided = 0.0, (x / scales).double()
    if bits is not None:
        divided = quantize_numbers(divided, bits).dequantize().double()
    for weight in weights:
        rounded = round_to_nearest(weight * scales, INT8).dequantize().double()
        expected += float((divided @ rounded.T - x.double() @ weight.double().T).square().sum())
    activation = None if bits is None else ActivationFormat(bits)
    found = SmoothingLoss(x, weights, INT8, activation)(scales)
    assert found == pytest.approx(expected, rel=1e-3)


def test_outliers_want_an_alpha_between_nothing_and_all() -> None:
    x, weights = with_outliers().float(), [random_weight(8, 128, 1).float()]
    loss = SmoothingLoss(x, weights, INT8, ActivationFormat(8))
    losses = [loss(smoothing_scales(x.abs().amax(0), weights, a)) for a in (0.0, 0.5, 1.0)]
    assert losses[1] < 0.5 * min(losses[0], losses[2])


def test_dead_channels_are_left_alone() -> None:
    """A tiny scale instead would make an outlier of the first number that does come."""
    weight = random_weight(4, 6, 0)
    weight[:, 2] = 0
    largest = torch.tensor([1.0, 0.0, 2.0, 3.0, 1e-40, 1.0], dtype=torch.float64)
    scales = smoothing_scales(largest, [weight])
    assert scales[1] == 1
    assert scales[2] == 1
    assert (scales > 0).all()
    assert scales.isfinite().all()


def test_one_channel_at_100_leaves_nine_levels_and_3_17_bits() -> None:
    left = levels_in_use(reach=3, largest=100)
    assert left.levels == 9
    assert round(left.bits, 2) == 3.17
    assert round(left.coarser) == 33
    assert levels_in_use(3, 3).levels == 255
    # The same from numbers themselves.
    x = with_outliers()
    codes = quantize_numbers(x, granularity="tensor").codes.int() - 128
    others = [channel for channel in range(128) if channel != 17]
    assert codes[:, others].unique().tolist() == list(range(-4, 5))
    # And its cure: after smoothing the same channels have far more.
    weight = random_weight(64, 128, 5)
    for alpha, levels in ((0.5, 45), (0.8, 120)):
        scales = smoothing_scales(x.abs().amax(0), [weight], alpha)
        smoothed = quantize_numbers(x / scales, granularity="tensor").codes
        assert len(smoothed[:, others].unique()) > levels


def w8a8(x: torch.Tensor, weight: torch.Tensor, granularity: Any) -> torch.Tensor:
    inputs = quantize_numbers(x, granularity=granularity).dequantize().double()
    return inputs @ round_to_nearest(weight, INT8).dequantize().double().T


@pytest.mark.parametrize("granularity", ["tensor", "token"])
def test_smoothing_cures_w8a8_and_a_scale_a_token_does_not(granularity: Any) -> None:
    """The outlier is in a channel, so every token's scale is set by it (7.6 % to 1.6 %)."""
    x, weight = with_outliers(3, 256), random_weight(64, 128, 4)
    wanted = x @ weight.T
    scales = smoothing_scales(x.abs().amax(0), [weight])

    def error(x: torch.Tensor, weight: torch.Tensor) -> float:
        return float((w8a8(x, weight, granularity) - wanted).norm() / wanted.norm())

    naive, smooth = error(x, weight), error(x / scales, weight * scales)
    assert naive > 0.01
    assert smooth < naive / 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: smoothing_scales(torch.ones(2), [torch.ones(2, 2)], 1.5), "from 0 to 1: 1.5"),
        (lambda: smoothing_scales(torch.ones(3), [torch.ones(2, 2)]), "2 finite numbers"),
        (lambda: smoothing_scales(torch.ones(2) / 0, [torch.ones(2, 2)]), "2 finite numbers"),
        (lambda: levels_in_use(3, 1), "it must be larger"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()
