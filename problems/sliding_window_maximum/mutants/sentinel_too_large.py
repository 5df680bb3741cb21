# killed_by: test_large_values — -2**63 is no lower bound for a Python int
SMALLEST = -(2**63)


def window_maximum(values: list[int], window: int) -> list[int]:
    if not 1 <= window <= len(values):
        raise ValueError("the window does not fit")
    length = len(values)
    left, right = [SMALLEST] * length, [SMALLEST] * length
    running = SMALLEST
    for i in range(length):
        running = max(SMALLEST if i % window == 0 else running, values[i])
        left[i] = running
    running = SMALLEST
    for i in reversed(range(length)):
        running = max(SMALLEST if (i + 1) % window == 0 else running, values[i])
        right[i] = running
    return [max(right[i], left[i + window - 1]) for i in range(length - window + 1)]
