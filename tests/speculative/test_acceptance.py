"""Acceptance counts, with the vectors that vLLM publishes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.speculative.acceptance import SpeculativeStats


def test_one_of_three_accepted_counts_at_its_place_only() -> None:
    """Draft [1, 2, 3], output [1, 5]."""
    stats = SpeculativeStats()
    stats.observe(3, 1)
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (1, 3, 1)
    assert stats.num_accepted_tokens_per_pos == [1, 0, 0]
    assert stats.acceptance_rate == pytest.approx(1 / 3)
    assert stats.mean_acceptance_length == 2.0


def test_nothing_drafted_counts_as_nothing() -> None:
    stats = SpeculativeStats()
    stats.observe(0, 0)
    assert stats == SpeculativeStats()
    assert stats.acceptance_rate is None
    assert stats.mean_acceptance_length is None
    assert stats.acceptance_rate_per_pos == []


drafts = st.integers(1, 6).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, k)))


@given(st.lists(drafts, min_size=1))
def test_the_places_add_up_to_the_sums(history: list[tuple[int, int]]) -> None:
    stats = SpeculativeStats()
    for drafted, accepted in history:
        stats.observe(drafted, accepted)
    assert sum(stats.num_accepted_tokens_per_pos) == stats.num_accepted_tokens
    assert sum(stats.num_draft_tokens_per_pos) == stats.num_draft_tokens
    for place, (accepted, drafted) in enumerate(
        zip(stats.num_accepted_tokens_per_pos, stats.num_draft_tokens_per_pos, strict=True)
    ):
        assert accepted == sum(one > place for _, one in history)
        assert drafted == sum(one > place for one, _ in history)
    assert stats.num_accepted_tokens_per_pos == sorted(
        stats.num_accepted_tokens_per_pos, reverse=True
    )
