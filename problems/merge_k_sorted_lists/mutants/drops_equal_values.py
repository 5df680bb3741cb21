# killed_by: test_ties — a value that is there already is left out, as in a set
import heapq


class ListNode:
    def __init__(self, val, next=None):  # noqa: A002
        self.val = val
        self.next = next


def merge_k_lists(lists):
    heap = []
    for i, node in enumerate(lists):
        if node:
            heapq.heappush(heap, (node.val, i, node))
    dummy = tail = ListNode(None)
    while heap:
        _, i, node = heapq.heappop(heap)
        if tail is dummy or tail.val != node.val:
            tail.next = node
            tail = node
        if node.next:
            heapq.heappush(heap, (node.next.val, i, node.next))
    return dummy.next
