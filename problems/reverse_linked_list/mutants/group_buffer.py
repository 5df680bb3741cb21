# killed_by: test_cost_of_groups — it gathers the k nodes of a group in a list: O(k) memory
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
        group = []
        node = before.next
        while node and len(group) < k:
            group.append(node)
            node = node.next
        if len(group) < k:
            return sentinel.next
        for member in reversed(group):
            before.next = member
            before = member
        before.next = node
