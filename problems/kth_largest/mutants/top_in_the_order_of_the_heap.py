# killed_by: test_top_agrees_with_sorting — a heap is not sorted
import heapq
import random


def kth_largest(values: list[int], k: int) -> int:
    if not 1 <= k <= len(values):
        raise ValueError("k is out of range")
    while True:
        pivot = random.choice(values)
        larger = [value for value in values if value > pivot]
        smaller = [value for value in values if value < pivot]
        equal = len(values) - len(larger) - len(smaller)
        if k <= len(larger):
            values = larger
        elif k <= len(larger) + equal:
            return pivot
        else:
            k -= len(larger) + equal
            values = smaller


def top_k(values: list[int], k: int) -> list[int]:
    if not 1 <= k <= len(values):
        raise ValueError("k is out of range")
    heap = values[:k]
    heapq.heapify(heap)
    for value in values[k:]:
        heapq.heappushpop(heap, value)
    return heap[::-1]
