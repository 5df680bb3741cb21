# killed_by: test_few_lists — a list without a partner is left out of the round
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
    while len(lists) > 1:
        merged = []
        for i in range(0, len(lists) - 1, 2):
            merged.append(merge_two(lists[i], lists[i + 1]))
        lists = merged
    return lists[0]
