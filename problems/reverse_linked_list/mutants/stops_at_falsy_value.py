# killed_by: test_any_values — it asks whether the value is true, so a 0 ends the list
class ListNode:
    def __init__(self, val, next=None):  # noqa: A002
        self.val = val
        self.next = next


def reverse_list(head):
    prev = None
    while head and head.val:
        nxt = head.next
        head.next = prev
        prev, head = head, nxt
    return prev
