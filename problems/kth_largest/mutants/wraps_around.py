# killed_by: test_invalid_k — for k = 0 the index -1 silently gives the smallest value
def kth_largest(values: list[int], k: int) -> int:
    if k > len(values):
        raise ValueError("k is out of range")
    return sorted(values, reverse=True)[k - 1]
