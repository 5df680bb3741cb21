# killed_by: test_less_than_sorting — that is quicksort, O(n log n)
import random


def kth_largest(values: list[int], k: int) -> int:
    if not 1 <= k <= len(values):
        raise ValueError("k is out of range")
    return _from_largest(values)[k - 1]


def _from_largest(values: list[int]) -> list[int]:
    if len(values) <= 1:
        return list(values)
    pivot = random.choice(values)
    larger = [value for value in values if value > pivot]
    equal = [value for value in values if value == pivot]
    smaller = [value for value in values if value < pivot]
    return _from_largest(larger) + equal + _from_largest(smaller)
