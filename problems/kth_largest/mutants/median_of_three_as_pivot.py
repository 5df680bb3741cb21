# killed_by: test_no_bad_order — a fixed choice of pivot, so there is an input that defeats it
def kth_largest(values: list[int], k: int) -> int:
    if not 1 <= k <= len(values):
        raise ValueError("k is out of range")
    while True:
        pivot = sorted((values[0], values[len(values) // 2], values[-1]))[1]
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
