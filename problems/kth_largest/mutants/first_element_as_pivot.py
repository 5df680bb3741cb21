# killed_by: test_no_bad_order — ascending values take O(n^2)
def kth_largest(values: list[int], k: int) -> int:
    if not 1 <= k <= len(values):
        raise ValueError("k is out of range")
    while True:
        pivot = values[0]
        larger = [value for value in values if value > pivot]
        smaller = [value for value in values if value < pivot]
        equal = len(values) - len(larger) - len(smaller)
        if k <= len(larger):
            values = larger
        elif k <= len(larger) + equal:
            return pivot
        else:
            k -= len(larger) + equal
            values = smaller
