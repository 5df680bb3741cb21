# killed_by: test_top_work — a sorted list with linear insertion: O(n k)
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
    best: list[int] = []  # from the smallest up
    for value in values:
        place = 0
        while place < len(best) and best[place] < value:
            place += 1
        best.insert(place, value)
        if len(best) > k:
            del best[0]
    return best[::-1]
