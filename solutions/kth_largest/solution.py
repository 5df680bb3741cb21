"""Quickselect with random pivots and three-way partition: expected O(n) comparisons on any
input, O(n) extra space because the input must not change. top_k: O(n + k log k)."""

import random


def kth_largest(values: list[int], k: int) -> int:
    if not 1 <= k <= len(values):
        raise ValueError(f"k must be 1 to {len(values)}, not {k}")
    scratch = list(values)
    _select(scratch, k)
    return scratch[k - 1]


def top_k(values: list[int], k: int) -> list[int]:
    if not 1 <= k <= len(values):
        raise ValueError(f"k must be 1 to {len(values)}, not {k}")
    scratch = list(values)
    _select(scratch, k)
    return sorted(scratch[:k], reverse=True)


def _select(values: list[int], k: int) -> None:
    """Reorders `values` so that the k largest stand first, and the k-th largest at k - 1."""
    low, high = 0, len(values)  # position k - 1 is inside values[low:high]
    while high - low > 1:
        larger, smaller = _partition(values, low, high)
        if k - 1 < larger:
            high = larger
        elif k - 1 >= smaller:
            low = smaller
        else:
            return  # among those that equal the pivot


def _partition(values: list[int], low: int, high: int) -> tuple[int, int]:
    """Larger than the pivot | equal | smaller (Dijkstra's flag). Returns where the equal ones
    begin, and where they end: without the middle part, equal values would take O(n^2)."""
    pivot = values[random.randrange(low, high)]
    larger, current, smaller = low, low, high
    while current < smaller:
        value = values[current]
        if value > pivot:
            values[larger], values[current] = value, values[larger]
            larger += 1
            current += 1
        elif value < pivot:
            smaller -= 1
            values[smaller], values[current] = value, values[smaller]
        else:
            current += 1
    return larger, smaller
