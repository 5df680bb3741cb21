# killed_by: test_few_nodes — it knows lists of up to three nodes only
class ListNode:
    def __init__(self, val, next=None):  # noqa: A002
        self.val = val
        self.next = next


def reverse_list(head):
    if head is None or head.next is None:
        return head
    second = head.next
    third = second.next
    second.next = head
    head.next = None
    if third is None:
        return second
    third.next = second
    return third
