# killed_by: test_less_than_sorting — sorting takes O(n log n) comparisons
def kth_largest(values: list[int], k: int) -> int:
    if not 1 <= k <= len(values):
        raise ValueError("k is out of range")
    return sorted(values, reverse=True)[k - 1]
