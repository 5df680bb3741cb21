"""Recursion over halves of the lists, by index; lazily with heapq.merge."""

import heapq


class ListNode:
    def __init__(self, val, next=None):  # noqa: A002
        self.val = val
        self.next = next


def merge_k_lists(lists: list[ListNode | None]) -> ListNode | None:
    def solve(low: int, high: int) -> ListNode | None:
        if high - low <= 1:
            return lists[low] if high > low else None
        middle = (low + high) // 2
        return merge(solve(low, middle), solve(middle, high))

    return solve(0, len(lists))


def merge(first, second):
    if not first or not second:
        return first or second
    if second.val < first.val:
        head, second = second, second.next
    else:
        head, first = first, first.next
    last = head
    while first and second:
        if second.val < first.val:
            last.next = second
            second = second.next
        else:
            last.next = first
            first = first.next
        last = last.next
    last.next = first if first is not None else second
    return head


def merge_iterables(*iterables):
    return heapq.merge(*iterables)
