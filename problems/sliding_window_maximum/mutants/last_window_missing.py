# killed_by: test_small_lists — there are n - window + 1 windows, not n - window
def window_maximum(values: list[int], window: int) -> list[int]:
    if not 1 <= window <= len(values):
        raise ValueError("the window does not fit")
    return [max(values[i : i + window]) for i in range(len(values) - window)]
