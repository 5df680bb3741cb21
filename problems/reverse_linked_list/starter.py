"""Reverse a linked list. The statement is in README.md; run `infra-lab test reverse_linked_list`
to grade."""

from __future__ import annotations

from typing import Any


class ListNode:
    """A node of a singly linked list; the last one's `next` is None."""

    def __init__(self, val: Any, next: ListNode | None = None) -> None:  # noqa: A002
        self.val = val
        self.next = next


def reverse_list(head: ListNode | None) -> ListNode | None:
    """Relinks the nodes of the list that begins at `head` in the opposite order; the new head.

    The nodes stay the same objects and keep their values. Needs O(1) more memory, also for long
    lists. None is the empty list.
    """
    raise NotImplementedError


def reverse_k_group(head: ListNode | None, k: int) -> ListNode | None:
    """Follow-up: reverses each group of `k` nodes in turn; the new head.

    Fewer than `k` nodes at the end keep their order. Raises ValueError if `k` is less than 1.
    """
    raise NotImplementedError
