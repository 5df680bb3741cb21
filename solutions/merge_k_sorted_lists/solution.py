"""Heap of the k heads: O(N log k) comparisons, O(k) memory."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Any


class ListNode:
    """A node of a singly linked list; the last one's `next` is None."""

    def __init__(self, val: Any, next: ListNode | None = None) -> None:  # noqa: A002
        self.val = val
        self.next = next


def merge_k_lists(lists: list[ListNode | None]) -> ListNode | None:
    # The list's number breaks ties: it keeps their order, and no two entries get as far as
    # comparing their nodes, which have no order.
    heap = [(head.val, number, head) for number, head in enumerate(lists) if head is not None]
    heapq.heapify(heap)
    tail = sentinel = ListNode(None)
    while heap:
        _, number, node = heap[0]
        tail.next = node
        tail = node
        if node.next is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (node.next.val, number, node.next))  # one sift, not two
    return sentinel.next


def merge_iterables(*iterables: Iterable[Any]) -> Iterator[Any]:
    """A generator: its first line runs when the first value is asked for, and what stands after
    `yield` runs when the next one is."""
    heap = []
    for number, iterator in enumerate(map(iter, iterables)):
        for value in iterator:
            heap.append((value, number, iterator))
            break
    heapq.heapify(heap)
    while heap:
        value, number, iterator = heap[0]
        yield value
        for value in iterator:
            heapq.heapreplace(heap, (value, number, iterator))
            break
        else:
            heapq.heappop(heap)
