# killed_by: test_long_groups, test_cost_of_groups — one nested call a group, too deep
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
    end = head
    for _ in range(k):
        if end is None:
            return head
        end = end.next
    prev, node = reverse_k_group(end, k), head
    while node is not end:
        node.next, prev, node = prev, node, node.next
    return prev
