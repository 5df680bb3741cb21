# killed_by: test_few_nodes — a module variable keeps the list before
class ListNode:
    def __init__(self, val, next=None):  # noqa: A002
        self.val = val
        self.next = next


done = None


def reverse_list(head):
    global done
    while head:
        head.next, done, head = done, head, head.next
    return done
