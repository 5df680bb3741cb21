# killed_by: test_ties — takes one place off for the pivot, however many values equal it
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
            k -= len(larger) + 1
            values = smaller
