"""One shuffle, then the first value is as good a pivot as any; negated values, smallest up."""

import random


def kth_largest(values: list[int], k: int) -> int:
    n = len(values)
    if n < k or k <= 0:
        raise ValueError(f"{k=} does not fit {n} values")
    left = [-value for value in values]
    random.shuffle(left)
    rank = k - 1
    while True:
        pivot, less, same, more = left[0], [], [], []
        for value in left:
            (less if value < pivot else same if value == pivot else more).append(value)
        if rank < len(less):
            left = less
        elif rank < len(less) + len(same):
            return -pivot
        else:
            rank -= len(less) + len(same)
            left = more
