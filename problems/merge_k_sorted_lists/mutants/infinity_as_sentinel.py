# killed_by: test_any_values — an ended list counts as infinite: texts crash
class ListNode:
    def __init__(self, val, next=None):  # noqa: A002
        self.val = val
        self.next = next


def merge_two(a, b):
    dummy = tail = ListNode(None)
    while True:
        left = a.val if a else float("inf")
        right = b.val if b else float("inf")
        if left == right == float("inf"):
            return dummy.next
        if left <= right:
            tail.next, a = a, a.next
        else:
            tail.next, b = b, b.next
        tail = tail.next
        tail.next = None


def merge_k_lists(lists):
    if len(lists) < 2:
        return lists[0] if lists else None
    middle = len(lists) // 2
    return merge_two(merge_k_lists(lists[:middle]), merge_k_lists(lists[middle:]))
