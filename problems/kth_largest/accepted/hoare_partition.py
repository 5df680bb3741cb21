"""Hoare's own scheme: both scans stop at equal values, so equal values are split evenly."""

import random
from heapq import heapify, heappop, heappushpop


def kth_largest(values: list[int], k: int) -> int:
    if not 1 <= k <= len(values):
        raise ValueError("k is out of range")
    a = list(values)
    low, high, target = 0, len(a) - 1, k - 1
    while low < high:
        pivot = a[random.randint(low, high)]
        i, j = low, high
        while i <= j:
            while a[i] > pivot:
                i += 1
            while a[j] < pivot:
                j -= 1
            if i <= j:
                a[i], a[j] = a[j], a[i]
                i += 1
                j -= 1
        if target <= j:
            high = j
        elif target >= i:
            low = i
        else:
            break
    return a[target]


def top_k(values: list[int], k: int) -> list[int]:
    if not 1 <= k <= len(values):
        raise ValueError("k is out of range")
    heap = list(values[:k])
    heapify(heap)
    for value in values[k:]:
        if value > heap[0]:
            heappushpop(heap, value)
    rising = [heappop(heap) for _ in range(k)]
    rising.reverse()
    return rising
