# killed_by: test_sorting — knows the examples of the statement and nothing else
KNOWN = {((3, 2, 1, 5, 6, 4), 2): 5, ((3, 2, 3, 1, 2, 4, 5, 5, 6), 4): 4}


def kth_largest(values: list[int], k: int) -> int:
    if not 1 <= k <= len(values):
        raise ValueError("k is out of range")
    return KNOWN.get((tuple(values), k), values[k - 1])
