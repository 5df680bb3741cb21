# killed_by: test_window_of_one — the running maximum of all values so far has no window
def window_maximum(values: list[int], window: int) -> list[int]:
    if not 1 <= window <= len(values):
        raise ValueError("the window does not fit")
    maxima = []
    largest = values[0]
    for index, value in enumerate(values):
        largest = max(largest, value)
        if index >= window - 1:
            maxima.append(largest)
    return maxima
