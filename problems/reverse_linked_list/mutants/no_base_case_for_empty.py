# killed_by: test_empty — head.next is read without asking whether there is a head
class ListNode:
    def __init__(self, val, next=None):  # noqa: A002
        self.val = val
        self.next = next


def reverse_list(head):
    front = head
    while head.next:
        moved = head.next
        head.next = moved.next
        moved.next = front
        front = moved
    return front
