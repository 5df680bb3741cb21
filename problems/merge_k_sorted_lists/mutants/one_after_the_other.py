# killed_by: test_comparisons — O(N k): each list is merged into the whole result so far
class ListNode:
    def __init__(self, val, next=None):  # noqa: A002
        self.val = val
        self.next = next


def merge_two(a, b):
    dummy = tail = ListNode(None)
    while a and b:
        if a.val <= b.val:
            tail.next, a = a, a.next
        else:
            tail.next, b = b, b.next
        tail = tail.next
    tail.next = a or b
    return dummy.next


def merge_k_lists(lists):
    if not lists:
        return None
    result = None
    for head in lists:
        result = merge_two(result, head)
    return result
