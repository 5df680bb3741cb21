"""Divide and conquer: reverse both halves, then hang the first behind the second.

O(n) time, and O(log n) memory for the calls: the recursion that does not break on long lists.
Halving needs the length, which one pass counts. The textbook recursion, one call a node, takes
O(n) of stack, and Python stops it at about 1,000 nodes.
"""

from __future__ import annotations

from typing import Any


class ListNode:
    def __init__(self, val: Any, next: ListNode | None = None) -> None:  # noqa: A002
        self.val = val
        self.next = next


def reverse_list(head: ListNode | None) -> ListNode | None:
    length = _count(head, None)
    return _reverse(head, length)[0] if head is not None else None


def reverse_k_group(head: ListNode | None, k: int) -> ListNode | None:
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    result, last = head, None
    while _count(head, k) == k:
        front, back, rest = _reverse(head, k)
        if last is None:
            result = front
        else:
            last.next = front
        back.next = rest
        last, head = back, rest
    return result


def _count(head: ListNode | None, most: int | None) -> int:
    length = 0
    while head is not None and length != most:
        length, head = length + 1, head.next
    return length


def _reverse(head: ListNode, length: int) -> tuple[ListNode, ListNode, ListNode | None]:
    """Of the first `length` nodes: the new first and last one; and the node after them."""
    if length == 1:
        rest = head.next
        head.next = None
        return head, head, rest
    left_first, left_last, middle = _reverse(head, length // 2)
    right_first, right_last, rest = _reverse(middle, length - length // 2)
    right_last.next = left_first
    return right_first, left_last, rest
