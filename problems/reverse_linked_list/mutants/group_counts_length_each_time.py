# killed_by: test_cost_of_groups — the rest is counted again for every group: O(n**2 / k)
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
        length, node = 0, before.next
        while node:
            length += 1
            node = node.next
        if length < k:
            return sentinel.next
        sinking = before.next
        for _ in range(k - 1):
            moved = sinking.next
            sinking.next = moved.next
            moved.next = before.next
            before.next = moved
        before = sinking
