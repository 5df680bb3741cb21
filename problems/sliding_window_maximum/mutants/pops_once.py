# killed_by: test_window_of_all — one new value can outdo several older ones, so it takes a loop
from collections import deque


def window_maximum(values: list[int], window: int) -> list[int]:
    if not 1 <= window <= len(values):
        raise ValueError("the window does not fit")
    queue: deque[int] = deque()  # indices, their values fall
    maxima = []
    for index, value in enumerate(values):
        if queue and queue[0] <= index - window:
            queue.popleft()
        if queue and values[queue[-1]] <= value:
            queue.pop()
        queue.append(index)
        if index >= window - 1:
            maxima.append(values[queue[0]])
    return maxima
