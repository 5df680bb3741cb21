# killed_by: test_iterables — StopIteration in a generator is a RuntimeError
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
    heap = []
    for i, iterator in enumerate(map(iter, iterables)):
        try:
            heap.append((next(iterator), i, iterator))
        except StopIteration:
            continue
    heapq.heapify(heap)
    while heap:
        value, i, iterator = heap[0]
        yield value
        heapq.heapreplace(heap, (next(iterator), i, iterator))
