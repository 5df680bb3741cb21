# killed_by: test_small_lists — a maximum that starts at 0 is wrong for negative values
def window_maximum(values: list[int], window: int) -> list[int]:
    if not 1 <= window <= len(values):
        raise ValueError("the window does not fit")
    maxima = []
    for start in range(len(values) - window + 1):
        largest = 0
        for value in values[start : start + window]:
            if value > largest:
                largest = value
        maxima.append(largest)
    return maxima
