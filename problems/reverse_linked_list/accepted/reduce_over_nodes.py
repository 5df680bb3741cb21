"""A fold over the nodes; a dataclass for the node; the tail is kept for groups."""

from dataclasses import dataclass
from functools import reduce


@dataclass
class ListNode:
    val: object
    next: "ListNode | None" = None


def nodes_of(head, stop=None):
    while head is not stop:
        rest = head.next
        yield head
        head = rest


def push(front, node):
    node.next = front
    return node


def reverse_list(head):
    return reduce(push, nodes_of(head), None)


def nth_after(node, n):
    while node and n:
        node, n = node.next, n - 1
    return node if n == 0 else False


def reverse_k_group(head, k):
    if k < 1:
        raise ValueError("group size must be positive")
    result, tail = None, None
    while head is not None and (after := nth_after(head, k)) is not False:
        front = reduce(push, nodes_of(head, after), after)
        if tail is None:
            result = front
        else:
            tail.next = front
        tail, head = head, after
    return head if tail is None else result
