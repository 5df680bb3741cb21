# killed_by: test_input_is_left_alone — list.sort changes the list of the caller
def kth_largest(values: list[int], k: int) -> int:
    if not 1 <= k <= len(values):
        raise ValueError("k is out of range")
    values.sort(reverse=True)
    return values[k - 1]
