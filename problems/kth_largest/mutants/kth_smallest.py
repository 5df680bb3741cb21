# killed_by: test_small_lists — counts from the smallest up
def kth_largest(values: list[int], k: int) -> int:
    if not 1 <= k <= len(values):
        raise ValueError("k is out of range")
    return sorted(values)[k - 1]
