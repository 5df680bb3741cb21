"""Head insertion: the next node is moved to the front, again and again. O(n) time, O(1) memory.

The first node never moves by itself: it sinks to the end. Because the moves need no look at
what comes after the part that is reversed, the same four assignments serve groups and sublists.
"""

from __future__ import annotations

from typing import Any


class ListNode:
    def __init__(self, val: Any, next: ListNode | None = None) -> None:  # noqa: A002
        self.val = val
        self.next = next


def reverse_list(head: ListNode | None) -> ListNode | None:
    if head is None:
        return None
    front = head
    while head.next is not None:
        moved = head.next
        head.next = moved.next
        moved.next = front
        front = moved
    return front


def reverse_k_group(head: ListNode | None, k: int) -> ListNode | None:
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    length, node = 0, head
    while node is not None:
        length, node = length + 1, node.next
    sentinel = ListNode(None, head)
    before = sentinel
    for _ in range(length // k):
        sinking = before.next
        for _ in range(k - 1):
            moved = sinking.next
            sinking.next = moved.next
            moved.next = before.next
            before.next = moved
        before = sinking
    return sentinel.next
