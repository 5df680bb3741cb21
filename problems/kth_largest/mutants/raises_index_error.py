# killed_by: test_invalid_k — IndexError is not ValueError
def kth_largest(values: list[int], k: int) -> int:
    if k < 1:
        raise ValueError("k is out of range")
    return sorted(values, reverse=True)[k - 1]
