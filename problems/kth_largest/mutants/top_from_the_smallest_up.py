# killed_by: test_top_of_small_lists — the order is from the largest down
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
    threshold = kth_largest(values, k)
    larger = [value for value in values if value > threshold]
    return [threshold] * (k - len(larger)) + sorted(larger)
