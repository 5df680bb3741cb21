# killed_by: test_large_values — a float holds integers exactly only up to 2**53
def kth_largest(values: list[int], k: int) -> int:
    if not 1 <= k <= len(values):
        raise ValueError("k is out of range")
    return int(sorted(map(float, values))[-k])
