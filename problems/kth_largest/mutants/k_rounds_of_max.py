# killed_by: test_no_bad_order — O(n k): takes the maximum away k times
def kth_largest(values: list[int], k: int) -> int:
    if not 1 <= k <= len(values):
        raise ValueError("k is out of range")
    left = list(values)
    for _ in range(k - 1):
        left.remove(max(left))
    return max(left)
