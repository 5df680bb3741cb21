"""Pairs at growing distance, results stored in the list that was given."""


class ListNode:
    def __init__(self, val, next=None):  # noqa: A002
        self.val = val
        self.next = next


def merge_two(a, b):
    root = ListNode(0)
    at = root
    while a is not None and b is not None:
        if not b.val < a.val:
            at.next = a
            a = a.next
        else:
            at.next = b
            b = b.next
        at = at.next
    at.next = b if a is None else a
    return root.next


def merge_k_lists(lists):
    interval = 1
    while interval < len(lists):
        for i in range(0, len(lists) - interval, interval * 2):
            lists[i] = merge_two(lists[i], lists[i + interval])
        interval *= 2
    return lists[0] if lists else None
