# killed_by: test_few_groups — it wants one node more than k: a whole last group is left
class ListNode:
    def __init__(self, val, next=None):  # noqa: A002
        self.val = val
        self.next = next


def reverse_list(head):
    prev = None
    while head:
        head.next, prev, head = prev, head, head.next
    return prev


def reverse_k_group(head, k):
    if k < 1:
        raise ValueError("k must be at least 1")
    sentinel = ListNode(None, head)
    before = sentinel
    while True:
        end = before
        for _ in range(k):
            end = end.next
            if end is None or end.next is None:
                return sentinel.next
        after = end.next
        first = node = before.next
        prev = after
        while node is not after:
            node.next, prev, node = prev, node, node.next
        before.next = end
        before = first
