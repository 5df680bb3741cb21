# killed_by: test_ties — pops equal values, then drops a head that equals the leaving value
from collections import deque


def window_maximum(values: list[int], window: int) -> list[int]:
    if not 1 <= window <= len(values):
        raise ValueError("the window does not fit")
    queue: deque[int] = deque()  # the values themselves, falling
    maxima = []
    for index, value in enumerate(values):
        if index >= window and queue and queue[0] == values[index - window]:
            queue.popleft()
        while queue and queue[-1] <= value:
            queue.pop()
        queue.append(value)
        if index >= window - 1:
            maxima.append(queue[0])
    return maxima
