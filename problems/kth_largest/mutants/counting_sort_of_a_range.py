# killed_by: test_large_values — assumes values within 10,000 of zero
LIMIT = 10_000


def kth_largest(values: list[int], k: int) -> int:
    if not 1 <= k <= len(values):
        raise ValueError("k is out of range")
    counts = [0] * (2 * LIMIT + 1)
    for value in values:
        counts[max(-LIMIT, min(LIMIT, value)) + LIMIT] += 1
    for value in range(LIMIT, -LIMIT - 1, -1):
        k -= counts[value + LIMIT]
        if k <= 0:
            break
    return value
