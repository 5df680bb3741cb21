# killed_by: test_laziness — it indexes and takes lengths: iterators have neither
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
        tail.next = node
        tail = node
        if node.next:
            heapq.heappush(heap, (node.next.val, i, node.next))
    return dummy.next


def merge_iterables(*iterables):
    heap = [(items[0], i, 0) for i, items in enumerate(iterables) if len(items)]
    heapq.heapify(heap)
    while heap:
        value, i, place = heap[0]
        yield value
        if place + 1 < len(iterables[i]):
            heapq.heapreplace(heap, (iterables[i][place + 1], i, place + 1))
        else:
            heapq.heappop(heap)
