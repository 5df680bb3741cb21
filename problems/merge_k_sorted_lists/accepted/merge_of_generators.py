"""heapq.merge over generators of nodes, and a key."""

import heapq
from operator import attrgetter


class ListNode:
    def __init__(self, val, next=None):  # noqa: A002
        self.val = val
        self.next = next


def nodes_of(head):
    while head is not None:
        following = head.next
        yield head
        head = following


def merge_k_lists(lists):
    first = last = None
    for node in heapq.merge(*map(nodes_of, lists), key=attrgetter("val")):
        if last is None:
            first = node
        else:
            last.next = node
        last = node
    if last is not None:
        last.next = None
    return first
