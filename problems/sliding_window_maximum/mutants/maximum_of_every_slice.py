# killed_by: test_comparisons — compares window values for each result
def window_maximum(values: list[int], window: int) -> list[int]:
    if not 1 <= window <= len(values):
        raise ValueError("the window does not fit")
    return [max(values[i : i + window]) for i in range(len(values) - window + 1)]
