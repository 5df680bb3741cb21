"""Prompt look-up: what followed these tokens the last time is drafted again.

Answers "how can one speculate without a second model?": summaries, edits and code repeat their
prompt, and an index of n-grams finds the place in constant time (Saxena 2023, "prompt lookup
decoding"; vLLM's `ngram`). Torch-free.
"""

from __future__ import annotations

from collections.abc import Sequence

from infra_lab.speculative.proposer import DraftRequest
from infra_lab.step import NO_DRAFT, Draft


class NgramIndex:
    """Where each n-gram of one growing sequence ends for the first time.

    An n-gram enters the index when a token stands behind it: one that ends the sequence has no
    continuation yet, and would find itself.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self._lengths = range(longest, shortest - 1, -1)
        self._ends: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0

    def continuation(self, token_ids: Sequence[int], count: int) -> list[int]:
        """Up to `count` tokens that followed the earliest occurrence of the longest suffix that
        occurs before; empty where none does.

        token_ids: the sequence of the last call with, or without, more at its end.
        """
        self._index(token_ids)
        for length in self._lengths:
            end = self._ends.get(tuple(token_ids[-length:]))
            if end is not None and len(token_ids) > length:
                return list(token_ids[end : end + count])
        return []

    def _index(self, token_ids: Sequence[int]) -> None:
        for end in range(self._num_indexed + 1, len(token_ids)):
            for length in self._lengths:
                if length <= end:
                    self._ends.setdefault(tuple(token_ids[end - length : end]), end)
        self._num_indexed = max(self._num_indexed, len(token_ids) - 1)


class NgramProposer:
    """Drafts from each request's own tokens.

    Args:
        shortest, longest: lengths of the suffix looked up, the longest first.
    """

    # A look-up takes microseconds; what a draft costs is its verification.
    relative_cost = 0.0

    def __init__(self, shortest: int, longest: int) -> None:
        self._shortest = shortest
        self._longest = longest
        self._indexes: dict[str, NgramIndex] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._draft(request) for request in requests]

    def forget(self, request_id: str) -> None:
        self._indexes.pop(request_id, None)

    def _draft(self, request: DraftRequest) -> Draft:
        index = self._indexes.get(request.request_id)
        if index is None:
            index = self._indexes[request.request_id] = NgramIndex(self._shortest, self._longest)
        token_ids = index.continuation(request.token_ids, request.num_draft_tokens)
        return Draft(token_ids) if token_ids else NO_DRAFT
