# killed_by: test_laziness — the first elements are read in the call already
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
        for value in iterator:
            heap.append((value, i, iterator))
            break
    heapq.heapify(heap)

    def run():
        while heap:
            value, i, iterator = heap[0]
            yield value
            for value in iterator:
                heapq.heapreplace(heap, (value, i, iterator))
                break
            else:
                heapq.heappop(heap)

    return run()
