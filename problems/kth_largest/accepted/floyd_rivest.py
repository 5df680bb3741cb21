"""Selection with two pivots from a sample (after Floyd and Rivest): about 2n - k comparisons on
average and lower-order terms, fewer than any single pivot needs; O(n) space."""

import math
import random

SMALL = 200


def kth_largest(values: list[int], k: int) -> int:
    if not 1 <= k <= len(values):
        raise ValueError(f"k must be 1 to {len(values)}, not {k}")
    return _select(values, k)


def top_k(values: list[int], k: int) -> list[int]:
    threshold = kth_largest(values, k)
    larger = sorted((value for value in values if value > threshold), reverse=True)
    return larger + [threshold] * (k - len(larger))


def _select(values: list[int], k: int) -> int:
    while len(values) > SMALL:
        upper, lower = _bracket(values, k)
        above, inside, below = [], [], []
        at_upper = at_lower = 0  # values that equal a pivot: without them some inputs never end
        for value in values:
            if value > upper:
                above.append(value)
            elif not value < upper:
                at_upper += 1
            elif value > lower:
                inside.append(value)
            elif not value < lower:
                at_lower += 1
            else:
                below.append(value)
        if k <= len(above):
            values = above
            continue
        k -= len(above)
        if k <= at_upper:
            return upper
        k -= at_upper
        if k <= len(inside):
            values = inside
            continue
        k -= len(inside)
        if k <= at_lower:
            return lower
        values, k = below, k - at_lower
    return sorted(values, reverse=True)[k - 1]


def _bracket(values: list[int], k: int) -> tuple[int, int]:
    """Two values that have the k-th largest between them, most likely: some standard deviations
    above and below its rank in a sample."""
    size = int(len(values) ** (2 / 3))
    sample = sorted(random.sample(values, size), reverse=True)
    rank = k * size / len(values)
    margin = math.sqrt(size * math.log(len(values))) / 2
    first = max(0, math.floor(rank - margin) - 1)
    last = min(size - 1, math.ceil(rank + margin) - 1)
    return sample[min(first, size - 1)], sample[max(last, 0)]
