# killed_by: test_cost — a raised recursion limit hides the O(n) stack, it does not save it
import sys

sys.setrecursionlimit(10**6)


class ListNode:
    def __init__(self, val, next=None):  # noqa: A002
        self.val = val
        self.next = next


def reverse_list(head, prev=None):
    if head is None:
        return prev
    rest = head.next
    head.next = prev
    return reverse_list(rest, head)
