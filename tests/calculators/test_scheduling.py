"""The laws of a batch's slots, against the same jobs run slot by slot."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.calculators.scheduling import (
    continuous_batches,
    exponential_gain,
    mean_held_tokens,
    static_batches,
    uniform_gain,
)
from infra_lab.errors import UsageError


def _gain(lengths: list[int], num_slots: int) -> float:
    static, continuous = (run(lengths, num_slots) for run in (static_batches, continuous_batches))
    return static.num_steps / continuous.num_steps


@pytest.mark.parametrize("num_slots", [1, 2, 8, 32])
def test_the_gain_over_static_batches_is_the_harmonic_number_for_exponential_lengths(
    num_slots: int,
) -> None:
    rng = random.Random(num_slots)
    lengths = [1 + round(rng.expovariate(1 / 2000)) for _ in range(num_slots * 2000)]
    assert _gain(lengths, num_slots) == pytest.approx(exponential_gain(num_slots), rel=0.03)


@pytest.mark.parametrize("num_slots", [1, 2, 8, 32])
def test_the_gain_over_static_batches_stays_below_two_for_uniform_lengths(num_slots: int) -> None:
    rng = random.Random(num_slots)
    lengths = [rng.randint(1, 4000) for _ in range(num_slots * 2000)]
    assert _gain(lengths, num_slots) == pytest.approx(uniform_gain(num_slots), rel=0.03)
    assert uniform_gain(num_slots) < 2


def test_gains_worked_by_hand() -> None:
    assert exponential_gain(4) == pytest.approx(1 + 1 / 2 + 1 / 3 + 1 / 4)
    assert uniform_gain(3) == 1.5


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=6))
def test_held_tokens_are_the_mean_over_every_step_of_every_request(
    requests: list[tuple[int, int]],
) -> None:
    """One slot that runs the mix round and round, looked at in each step."""
    seen = [prompt + step for prompt, output in requests for step in range(1, output + 1)]
    assert mean_held_tokens(requests) == pytest.approx(statistics.fmean(seen))


def test_a_long_output_is_seen_more_often_than_it_arrives() -> None:
    # 10 x 105.5 + 1000 x 600.5 over 1010 steps; the mean of both requests would be 353.
    assert mean_held_tokens([(100, 10), (100, 1000)]) == pytest.approx(601555 / 1010)


def test_lengths_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UsageError, match="no requests"):
        mean_held_tokens([])
    with pytest.raises(UsageError, match="an output's length must be at least 1, not 0"):
        mean_held_tokens([(5, 0)])
    with pytest.raises(UsageError, match="num_slots must be at least 1, not 0"):
        exponential_gain(0)
    with pytest.raises(UsageError, match="num_slots must be at least 1, not 0"):
        uniform_gain(0)
