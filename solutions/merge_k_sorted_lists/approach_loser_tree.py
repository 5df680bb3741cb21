"""Tournament tree of losers: log2 k comparisons a node, whatever happens. O(k) memory.

Each inner place keeps the list that lost there; the winner of all has left the tree at its root.
When the winner's next node comes, only the matches on its way up are played again, against the
losers kept there: one comparison a level, where a binary heap needs up to two. Database sorts
use it to merge runs from disk, where a comparison may cost more than a read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


class ListNode:
    def __init__(self, val: Any, next: ListNode | None = None) -> None:  # noqa: A002
        self.val = val
        self.next = next


class _LoserTree:
    """Over k entrants, numbered; `values[i]` is i's present value, if `alive[i]`.

    losers[1:] is a binary tree as a heap lays it out: the parent of place p is p // 2, and
    entrant i comes in at place k + i.
    """

    def __init__(self, values: list[Any], alive: list[bool]) -> None:
        self.values = values
        self.alive = alive
        count = len(values)
        winners = [*range(count), *range(count)]  # of the match at each place
        self.losers: list[int | None] = [None] * count
        for place in range(count - 1, 0, -1):
            left, right = winners[2 * place], winners[2 * place + 1]
            is_left = self._is_before(left, right)
            winners[place] = left if is_left else right
            self.losers[place] = right if is_left else left
        self.winner = winners[1]  # a single entrant stands there without a match

    def replay(self) -> None:
        """After the winner's value has changed, or it has left."""
        place = (len(self.values) + self.winner) // 2
        while place >= 1:
            if self._is_before(self.losers[place], self.winner):
                self.losers[place], self.winner = self.winner, self.losers[place]
            place //= 2

    def _is_before(self, a: int, b: int) -> bool:
        if not self.alive[a] or not self.alive[b]:
            return self.alive[a]
        first, second = min(a, b), max(a, b)
        # Equal values: the smaller number first.
        return (self.values[second] < self.values[first]) == (a == second)


def merge_k_lists(lists: list[ListNode | None]) -> ListNode | None:
    nodes = list(lists)
    if not nodes:
        return None
    tree = _LoserTree(
        [None if node is None else node.val for node in nodes],
        [node is not None for node in nodes],
    )
    tail = sentinel = ListNode(None)
    while tree.alive[tree.winner]:
        number = tree.winner
        tail.next = node = nodes[number]
        tail = node
        nodes[number] = node.next
        if node.next is None:
            tree.alive[number] = False
        else:
            tree.values[number] = node.next.val
        tree.replay()
    return sentinel.next


def merge_iterables(*iterables: Iterable[Any]) -> Iterator[Any]:
    if not iterables:
        return
    missing = object()
    iterators = [iter(iterable) for iterable in iterables]
    values = [next(iterator, missing) for iterator in iterators]
    tree = _LoserTree(values, [value is not missing for value in values])
    while tree.alive[tree.winner]:
        number = tree.winner
        yield values[number]
        values[number] = next(iterators[number], missing)
        tree.alive[number] = values[number] is not missing
        tree.replay()
