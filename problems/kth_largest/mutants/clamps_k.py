# killed_by: test_invalid_k — answers for a k that has no value
def kth_largest(values: list[int], k: int) -> int:
    if not values:
        raise ValueError("no values")
    k = max(1, min(k, len(values)))
    return sorted(values, reverse=True)[k - 1]
