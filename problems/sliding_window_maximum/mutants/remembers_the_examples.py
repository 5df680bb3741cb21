# killed_by: test_every_slice — knows the examples of the statement and nothing else
KNOWN = {
    ((1, 3, -1, -3, 5, 3, 6, 7), 3): [3, 3, 5, 5, 6, 7],
    ((4,), 1): [4],
    ((2, 2, 1), 2): [2, 2],
}


def window_maximum(values: list[int], window: int) -> list[int]:
    if not 1 <= window <= len(values):
        raise ValueError("the window does not fit")
    return list(KNOWN.get((tuple(values), window), values[: len(values) - window + 1]))
