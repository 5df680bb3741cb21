# killed_by: test_small_lists — keeps the smaller values, so it finds the minimum
from collections import deque


def window_maximum(values: list[int], window: int) -> list[int]:
    if not 1 <= window <= len(values):
        raise ValueError("the window does not fit")
    queue: deque[int] = deque()  # indices, their values fall
    maxima = []
    for index, value in enumerate(values):
        if queue and queue[0] <= index - window:
            queue.popleft()
        while queue and values[queue[-1]] >= value:
            queue.pop()
        queue.append(index)
        if index >= window - 1:
            maxima.append(values[queue[0]])
    return maxima
