# killed_by: test_few_groups — the nodes left over are reversed like a whole group
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
    while before.next:
        first = node = before.next
        prev = None
        for _ in range(k):
            if node is None:
                break
            node.next, prev, node = prev, node, node.next
        before.next = prev
        first.next = node
        before = first
    return sentinel.next
