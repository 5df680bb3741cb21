"""Prompt look-up against a search by brute force, and the vectors that vLLM publishes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.sampling_params import SamplingParams
from infra_lab.speculative.ngram import NgramIndex, NgramProposer
from infra_lab.speculative.proposer import DraftRequest
from infra_lab.step import NO_DRAFT, NewRequest

sequences = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def brute_force(tokens: list[int], shortest: int, longest: int, count: int) -> list[int]:
    """The earliest earlier occurrence of the longest suffix, and what follows it."""
    for length in range(longest, shortest - 1, -1):
        suffix = tokens[-length:]
        for start in range(len(tokens) - length):
            if len(tokens) > length and tokens[start : start + length] == suffix:
                return tokens[start + length : start + length + count]
    return []


@pytest.mark.parametrize(
    ("tokens", "shortest", "longest", "count", "expected"),
    [
        ([1, 2, 3, 4, 1, 2, 3], 2, 2, 3, [4, 1, 2]),
        ([2, 3, 4, 5, 1, 2, 3, 4, 1, 2, 3, 4], 3, 4, 2, [1, 2]),
        ([1, 3, 6, 2, 3, 4, 1, 2, 3], 1, 1, 2, [6, 2]),
        ([1, 2, 3, 4, 5], 2, 2, 3, []),
        ([7], 1, 4, 3, []),
        ([7, 7], 1, 4, 3, [7]),
    ],
)
def test_what_followed_the_earliest_longest_suffix_is_drafted(
    tokens: list[int], shortest: int, longest: int, count: int, expected: list[int]
) -> None:
    assert NgramIndex(shortest, longest).continuation(tokens, count) == expected


@given(sequences, st.integers(1, 3), st.integers(0, 2), st.integers(1, 5), st.data())
def test_an_index_that_grows_with_its_sequence_finds_what_a_search_finds(
    tokens: list[int], shortest: int, extra: int, count: int, data: st.DataObject
) -> None:
    index = NgramIndex(shortest, shortest + extra)
    lengths = data.draw(st.lists(st.integers(1, len(tokens)), max_size=6).map(sorted))
    for length in [*lengths, len(tokens)]:
        known = tokens[:length]
        expected = brute_force(known, shortest, shortest + extra, count)
        assert index.continuation(known, count) == expected


def test_each_request_is_searched_by_itself_and_forgotten_at_its_end() -> None:
    proposer = NgramProposer(2, 2)

    def request(name: str, tokens: list[int]) -> DraftRequest:
        new = NewRequest(name, tokens, SamplingParams(), seed=0)
        return DraftRequest(new, tokens, [], num_draft_tokens=2)

    repeats = [5, 6, 7, 8, 5, 6]
    drafts = proposer.propose([request("a", repeats), request("b", [5, 6])])
    assert [list(draft.token_ids) for draft in drafts] == [[7, 8], []]
    assert drafts[1] is NO_DRAFT
    proposer.forget("a")
    proposer.forget("never seen")
    (draft,) = proposer.propose([request("a", [1, 2, 3, 5, 6])])
    assert list(draft.token_ids) == []
