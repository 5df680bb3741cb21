# killed_by: test_small_lists — equal values count each for itself; a set keeps one of them
def kth_largest(values: list[int], k: int) -> int:
    if not 1 <= k <= len(values):
        raise ValueError("k is out of range")
    ranked = sorted(set(values), reverse=True)
    return ranked[min(k, len(ranked)) - 1]
