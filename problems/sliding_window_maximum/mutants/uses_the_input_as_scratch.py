# killed_by: test_input_is_left_alone — consumes the list of the caller
from collections import deque


def window_maximum(values: list[int], window: int) -> list[int]:
    if not 1 <= window <= len(values):
        raise ValueError("the window does not fit")
    queue: deque[tuple[int, int]] = deque()
    maxima = []
    values.reverse()
    index = 0
    while values:
        value = values.pop()
        while queue and queue[-1][1] <= value:
            queue.pop()
        queue.append((index, value))
        if queue[0][0] <= index - window:
            queue.popleft()
        if index >= window - 1:
            maxima.append(queue[0][1])
        index += 1
    return maxima
