"""The median of three random values as the pivot, and a sort once little is left."""

from random import Random

SMALL = 16


def kth_largest(values: list[int], k: int) -> int:
    return min(_k_largest(values, k))


def top_k(values: list[int], k: int) -> list[int]:
    return sorted(_k_largest(values, k), reverse=True)


def _k_largest(values: list[int], k: int) -> list[int]:
    """The k largest in no order."""
    if not 0 < k <= len(values):
        raise ValueError("k must be between 1 and the number of values")
    generator = Random()
    found: list[int] = []
    left = values
    while len(left) > SMALL:
        pivot = sorted(generator.choices(left, k=3))[1]
        above = [value for value in left if value > pivot]
        if len(found) + len(above) >= k:
            left = above
            continue
        found += above
        found += [value for value in left if not value > pivot and not value < pivot]
        if len(found) >= k:
            return found[:k]
        left = [value for value in left if value < pivot]
    return found + sorted(left, reverse=True)[: k - len(found)]
