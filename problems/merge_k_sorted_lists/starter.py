"""Merge k sorted lists. The statement is in README.md; run `infra-lab test merge_k_sorted_lists`
to grade."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


class ListNode:
    """A node of a singly linked list; the last one's `next` is None."""

    def __init__(self, val: Any, next: ListNode | None = None) -> None:  # noqa: A002
        self.val = val
        self.next = next


def merge_k_lists(lists: list[ListNode | None]) -> ListNode | None:
    """Relinks the nodes of `lists`, each sorted in ascending order, into one sorted list.

    Equal values keep the order of their lists. For N nodes in k lists it takes O(N log k)
    comparisons and O(k) more memory. None is the empty list.
    """
    raise NotImplementedError


def merge_iterables(*iterables: Iterable[Any]) -> Iterator[Any]:
    """Follow-up: yields the values of sorted iterables in ascending order, as late as it can.

    Nothing is read before the first value is asked for. After that each value costs one read:
    that of the iterable whose value came last. Equal values keep the order of their iterables.
    """
    raise NotImplementedError
