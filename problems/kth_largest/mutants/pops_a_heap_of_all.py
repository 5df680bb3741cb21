# killed_by: test_less_than_sorting — k pops of O(log n) each, with k up to n
import heapq


def kth_largest(values: list[int], k: int) -> int:
    if not 1 <= k <= len(values):
        raise ValueError("k is out of range")
    heap = [-value for value in values]
    heapq.heapify(heap)
    for _ in range(k - 1):
        heapq.heappop(heap)
    return -heap[0]
