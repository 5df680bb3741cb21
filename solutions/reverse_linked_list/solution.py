"""Three pointers, one pass: O(n) time, O(1) memory; groups the same, each node touched twice."""

from __future__ import annotations

from typing import Any


class ListNode:
    """A node of a singly linked list; the last one's `next` is None."""

    def __init__(self, val: Any, next: ListNode | None = None) -> None:  # noqa: A002
        self.val = val
        self.next = next


def reverse_list(head: ListNode | None) -> ListNode | None:
    """Invariant: `done` heads the reversed front, `head` the part that is still as it was."""
    done = None
    while head is not None:
        following = head.next  # read before the link is turned, or the rest is lost
        head.next = done
        done, head = head, following
    return done


def reverse_k_group(head: ListNode | None, k: int) -> ListNode | None:
    """Invariant: all up to `last` is final, and `last.next` begins the part as it was."""
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    before = last = ListNode(None, head)  # a sentinel: the first group needs no case of its own
    while True:
        after = last.next
        for _ in range(k):
            if after is None:
                return before.next
            after = after.next
        # Turn the links of the group; its first node becomes its last, and meets `after`.
        first = node = last.next
        done = after
        while node is not after:
            following = node.next
            node.next = done
            done, node = node, following
        last.next = done
        last = first
