# killed_by: test_cost — O(n**2): the last node is searched from the front each time
class ListNode:
    def __init__(self, val, next=None):  # noqa: A002
        self.val = val
        self.next = next


def reverse_list(head):
    new_head = tail = None
    while head:
        last, before = head, None
        while last.next:
            before, last = last, last.next
        if before is None:
            head = None
        else:
            before.next = None
        if tail is None:
            new_head = last
        else:
            tail.next = last
        tail = last
    return new_head
