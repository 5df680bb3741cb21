"""Median of medians (Blum, Floyd, Pratt, Rivest and Tarjan): O(n) comparisons in the worst case,
with no randomness; some three times the comparisons of random pivots. O(n) space."""

from statistics import median_low

GROUP = 5


def kth_largest(values: list[int], k: int) -> int:
    if not 1 <= k <= len(values):
        raise ValueError(f"k must be 1 to {len(values)}, not {k}")
    return _select(list(values), k)


def top_k(values: list[int], k: int) -> list[int]:
    threshold = kth_largest(values, k)
    larger = [value for value in values if value > threshold]
    return sorted(larger, reverse=True) + [threshold] * (k - len(larger))


def _select(values: list[int], k: int) -> int:
    while len(values) > GROUP:
        pivot = _good_pivot(values)
        larger, smaller = [], []
        for value in values:
            if value > pivot:
                larger.append(value)
            elif value < pivot:
                smaller.append(value)
        first_smaller = len(values) - len(smaller)
        if k <= len(larger):
            values = larger
        elif k > first_smaller:
            values, k = smaller, k - first_smaller
        else:
            return pivot
    return sorted(values, reverse=True)[k - 1]


def _good_pivot(values: list[int]) -> int:
    """Larger than three of five in half of the groups, and smaller likewise: neither side keeps
    more than about 7/10 of the values."""
    full = range(0, len(values) - GROUP + 1, GROUP)
    medians = [median_low(values[start : start + GROUP]) for start in full]
    return _select(medians, (len(medians) + 1) // 2)
