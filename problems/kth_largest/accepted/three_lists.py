"""Recursion over three lists, one comprehension for each."""

import heapq
from random import choice


def kth_largest(values: list[int], k: int) -> int:
    if k < 1 or k > len(values):
        raise ValueError("no such k")
    pivot = choice(values)
    above = [x for x in values if x > pivot]
    if k <= len(above):
        return kth_largest(above, k)
    same = [x for x in values if x == pivot]
    if k <= len(above) + len(same):
        return pivot
    below = [x for x in values if x < pivot]
    return kth_largest(below, k - len(above) - len(same))


def top_k(values: list[int], k: int) -> list[int]:
    if k not in range(1, len(values) + 1):
        raise ValueError("no such k")
    return heapq.nlargest(k, values)
