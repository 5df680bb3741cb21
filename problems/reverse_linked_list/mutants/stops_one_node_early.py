# killed_by: test_one_node, test_two_nodes — the loop ends at the last node and never links it
class ListNode:
    def __init__(self, val, next=None):  # noqa: A002
        self.val = val
        self.next = next


def reverse_list(head):
    prev, curr = None, head
    while curr and curr.next:
        nxt = curr.next
        curr.next = prev
        prev, curr = curr, nxt
    return prev
