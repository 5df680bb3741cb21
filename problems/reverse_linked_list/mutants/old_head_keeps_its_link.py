# killed_by: test_two_nodes — the old head still points to the second node, so the list never ends
class ListNode:
    def __init__(self, val, next=None):  # noqa: A002
        self.val = val
        self.next = next


def reverse_list(head):
    if head is None:
        return None
    prev, curr = head, head.next
    while curr:
        nxt = curr.next
        curr.next = prev
        prev, curr = curr, nxt
    return prev
