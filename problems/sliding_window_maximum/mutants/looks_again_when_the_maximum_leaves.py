# killed_by: test_comparisons — falling values make the maximum leave at every step
def window_maximum(values: list[int], window: int) -> list[int]:
    if not 1 <= window <= len(values):
        raise ValueError("the window does not fit")
    largest = max(values[:window])
    maxima = [largest]
    for index in range(window, len(values)):
        if values[index] >= largest:
            largest = values[index]
        elif values[index - window] == largest:
            largest = max(values[index - window + 1 : index + 1])
        maxima.append(largest)
    return maxima
