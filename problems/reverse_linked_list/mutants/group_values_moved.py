# killed_by: test_few_groups — the values of a group are turned around, the nodes are not
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
    start = head
    while True:
        values, node = [], start
        while node and len(values) < k:
            values.append(node.val)
            node = node.next
        if len(values) < k:
            return head
        while values:
            start.val = values.pop()
            start = start.next
