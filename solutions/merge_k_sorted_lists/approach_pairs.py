"""Divide and conquer: merge neighbours two by two, then the results, until one list is left.

log2 k rounds, each of which touches every node once: O(N log k) comparisons, one for a node and
round. O(k) memory for the heads. It needs no heap, and rounds can run in parallel. Neighbours
are merged, never a list with a far one, so that equal values keep their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any


class ListNode:
    def __init__(self, val: Any, next: ListNode | None = None) -> None:  # noqa: A002
        self.val = val
        self.next = next


def merge_k_lists(lists: list[ListNode | None]) -> ListNode | None:
    heads = lists or [None]
    while len(heads) > 1:
        # An odd one out is merged with None, which costs nothing.
        heads = [_merge(left, right) for left, right in zip_longest(heads[::2], heads[1::2])]
    [head] = heads
    return head


def _merge(left: ListNode | None, right: ListNode | None) -> ListNode | None:
    tail = sentinel = ListNode(None)
    while left is not None and right is not None:
        if right.val < left.val:  # not <=: of equal values the left one comes first
            tail.next, right = right, right.next
        else:
            tail.next, left = left, left.next
        tail = tail.next
    tail.next = right if left is None else left
    return sentinel.next


def merge_iterables(*iterables: Iterable[Any]) -> Iterator[Any]:
    """A binary tree of two-way merges, each of them a generator."""
    if len(iterables) < 2:
        for iterable in iterables:
            yield from iterable
        return
    middle = len(iterables) // 2
    left = merge_iterables(*iterables[:middle])
    right = merge_iterables(*iterables[middle:])
    missing = object()
    a, b = next(left, missing), next(right, missing)
    while a is not missing and b is not missing:
        if b < a:
            yield b
            b = next(right, missing)
        else:
            yield a
            a = next(left, missing)
    if a is not missing:
        yield a
        yield from left
    elif b is not missing:
        yield b
        yield from right
