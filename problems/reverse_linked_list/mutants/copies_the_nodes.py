# killed_by: test_one_node — it builds new nodes instead of relinking those it was given
class ListNode:
    def __init__(self, val, next=None):  # noqa: A002
        self.val = val
        self.next = next


def reverse_list(head):
    result = None
    while head:
        result = ListNode(head.val, result)
        head = head.next
    return result
