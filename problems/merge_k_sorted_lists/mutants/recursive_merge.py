# killed_by: test_cost, test_large — one nested call a node: too deep for long lists
class ListNode:
    def __init__(self, val, next=None):  # noqa: A002
        self.val = val
        self.next = next


def merge_two(a, b):
    if a is None or b is None:
        return a or b
    if a.val <= b.val:
        a.next = merge_two(a.next, b)
        return a
    b.next = merge_two(a, b.next)
    return b


def merge_k_lists(lists):
    if not lists:
        return None
    while len(lists) > 1:
        merged = []
        for i in range(0, len(lists), 2):
            second = lists[i + 1] if i + 1 < len(lists) else None
            merged.append(merge_two(lists[i], second))
        lists = merged
    return lists[0]
