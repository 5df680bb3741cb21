"""The draft length: its law by enumeration, and how it follows what becomes of drafts."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.speculative.draft_length import (
    PROBE_INTERVAL,
    DraftLength,
    StepCost,
    best_length,
    expected_tokens,
)

FREE = StepCost(row=0.0, draft=0.0)
costs = st.builds(StepCost, st.floats(0, 1), st.floats(0, 1))


@given(st.floats(0, 1), st.integers(0, 6))
def test_expected_tokens_are_the_mean_over_all_outcomes(acceptance: float, k: int) -> None:
    mean = 0.0
    for outcome in product([True, False], repeat=k):
        probability = 1.0
        for stands in outcome:
            probability *= acceptance if stands else 1 - acceptance
        tokens = outcome.index(False) + 1 if False in outcome else k + 1
        mean += probability * tokens
    assert expected_tokens(acceptance, k) == pytest.approx(mean)


@pytest.mark.parametrize("acceptance", [0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("draft", [0.02, 0.1, 0.3])
def test_a_step_of_free_width_gains_what_theorem_3_8_says(acceptance: float, draft: float) -> None:
    """Leviathan et al. 2023: (1 - a^(k+1)) / ((1 - a) (k c + 1))."""
    cost = StepCost(row=0.0, draft=draft)
    for k in range(8):
        gain = (1 - acceptance ** (k + 1)) / ((1 - acceptance) * (k * draft + 1))
        assert expected_tokens(acceptance, k) / cost.of(1, k) == pytest.approx(gain)


@given(st.floats(0, 1), st.integers(0, 8), st.integers(1, 64), costs)
def test_the_best_length_is_none_worse_than_any_other(
    acceptance: float, longest: int, batch_size: int, cost: StepCost
) -> None:
    best = best_length(acceptance, longest, batch_size, cost)
    assert 0 <= best <= longest
    rates = [expected_tokens(acceptance, k) / cost.of(batch_size, k) for k in range(longest + 1)]
    assert rates[best] == max(rates)
    assert best == rates.index(max(rates))


@given(st.floats(0, 0.99), st.integers(1, 8), st.integers(1, 32), costs)
def test_a_larger_batch_never_drafts_more(
    acceptance: float, longest: int, batch_size: int, cost: StepCost
) -> None:
    """Each request's row costs the same, and the fixed part of the step is shared by more."""
    more = best_length(acceptance, longest, batch_size + 1, cost)
    assert more <= best_length(acceptance, longest, batch_size, cost)


def test_drafts_that_always_stand_are_as_long_as_they_may_be() -> None:
    length = DraftLength(StepCost(row=0.1, draft=0.0))
    for _ in range(30):
        length.observe(4, 4)
    assert length.choose(8, batch_size=1) == 8
    assert length.acceptance > 0.95


def test_drafts_that_never_stand_end_but_for_a_probe_now_and_then() -> None:
    length = DraftLength(StepCost(row=0.1, draft=0.1))
    for _ in range(30):
        length.observe(4, 0)
    chosen = [length.choose(8, batch_size=1) for _ in range(3 * PROBE_INTERVAL)]
    assert chosen == 3 * [*[0] * (PROBE_INTERVAL - 1), 1]


def test_a_request_whose_drafts_stand_again_is_drafted_for_again() -> None:
    length = DraftLength(StepCost(row=0.1, draft=0.0))
    for _ in range(30):
        length.observe(4, 0)
    for _ in range(12):
        length.observe(1, 1)
    assert length.choose(4, batch_size=1) == 4


def test_tokens_behind_the_first_rejected_one_say_nothing() -> None:
    one, many = DraftLength(FREE), DraftLength(FREE)
    one.observe(1, 0)
    many.observe(8, 0)
    assert one.acceptance == many.acceptance


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), max_size=20))
def test_the_estimate_is_a_probability_and_the_same_for_the_same_history(
    history: list[tuple[int, int]],
) -> None:
    lengths = DraftLength(FREE), DraftLength(FREE)
    for drafted, accepted in history:
        for length in lengths:
            length.observe(drafted, min(drafted, accepted))
    assert lengths[0].acceptance == lengths[1].acceptance
    assert 0 <= lengths[0].acceptance <= 1
