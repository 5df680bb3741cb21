"""Which tokens each block of a draft model's cache holds, judged by content alone.

Answers "how does a draft model's cache follow the request's?". It uses the request's own block
ids in tensors of its own, and nobody tells it what became of a block: whether it was taken from
the prefix cache, given up in a preemption, copied for a fork, or filled with tokens that were
rejected since. It remembers instead which tokens it has written there behind which others, and
compares. What agrees is valid and need not be computed; what does not is computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Content:
    """The tokens written into a block, from its start, behind tokens of that digest."""

    digest_before: int
    token_ids: tuple[int, ...]


class DraftBlocks:
    """Contents by block id. A wrong answer could only make drafts worse, never the output, so
    Python's own hash of integers is strong enough."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._contents: dict[int, _Content] = {}

    def num_valid(self, token_ids: Sequence[int], block_ids: Sequence[int]) -> int:
        """How many of the leading tokens lie in `block_ids` as they should."""
        size, digest, valid = self._block_size, 0, 0
        for block_id in block_ids:
            content = self._contents.get(block_id)
            if content is None or content.digest_before != digest:
                break
            wanted = tuple(token_ids[valid : valid + size])
            if content.token_ids != wanted or len(wanted) < size:
                return valid + _common(content.token_ids, wanted)
            valid += size
            digest = hash((digest, wanted))
        return valid

    def note(self, token_ids: Sequence[int], block_ids: Sequence[int]) -> None:
        """All of `token_ids` lie in `block_ids`, as far as those go."""
        size, digest = self._block_size, 0
        for index, block_id in enumerate(block_ids[: -(-len(token_ids) // size)]):
            written = tuple(token_ids[index * size : (index + 1) * size])
            self._contents[block_id] = _Content(digest, written)
            digest = hash((digest, written))


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common beginning."""
    for place, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return place
    return min(len(left), len(right))
