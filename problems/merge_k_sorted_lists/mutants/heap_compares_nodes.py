# killed_by: test_ties — equal values make the heap compare nodes: TypeError
import heapq


class ListNode:
    def __init__(self, val, next=None):  # noqa: A002
        self.val = val
        self.next = next


def merge_k_lists(lists):
    heap = []
    for node in lists:
        if node:
            heapq.heappush(heap, (node.val, node))
    dummy = tail = ListNode(None)
    while heap:
        _, node = heapq.heappop(heap)
        tail.next = node
        tail = node
        if node.next:
            heapq.heappush(heap, (node.next.val, node.next))
    return dummy.next
