# killed_by: test_less_than_a_heap — O(n log k) where k grows with n
import heapq


def kth_largest(values: list[int], k: int) -> int:
    if not 1 <= k <= len(values):
        raise ValueError("k is out of range")
    heap = values[:k]
    heapq.heapify(heap)
    for value in values[k:]:
        heapq.heappushpop(heap, value)
    return heap[0]
