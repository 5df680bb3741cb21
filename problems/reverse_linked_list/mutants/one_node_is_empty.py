# killed_by: test_one_node — a list of one node comes back empty
class ListNode:
    def __init__(self, val, next=None):  # noqa: A002
        self.val = val
        self.next = next


def reverse_list(head):
    if not head or not head.next:
        return None
    prev = None
    while head:
        head.next, prev, head = prev, head, head.next
    return prev
