# killed_by: test_cost — every node is in the heap at once: O(N) memory
import heapq


class ListNode:
    def __init__(self, val, next=None):  # noqa: A002
        self.val = val
        self.next = next


def merge_k_lists(lists):
    heap = []
    for i, node in enumerate(lists):
        while node:
            heapq.heappush(heap, (node.val, i, len(heap), node))
            node = node.next
    dummy = tail = ListNode(None)
    while heap:
        _, _, _, node = heapq.heappop(heap)
        tail.next = node
        tail = node
    tail.next = None
    return dummy.next
