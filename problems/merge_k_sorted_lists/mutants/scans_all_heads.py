# killed_by: test_comparisons — O(N k): the least head is searched among all k
class ListNode:
    def __init__(self, val, next=None):  # noqa: A002
        self.val = val
        self.next = next


def merge_k_lists(lists):
    heads = [node for node in lists if node]
    dummy = tail = ListNode(None)
    while heads:
        best = min(range(len(heads)), key=lambda i: heads[i].val)
        tail.next = heads[best]
        tail = tail.next
        if tail.next:
            heads[best] = tail.next
        else:
            heads.pop(best)
    return dummy.next
