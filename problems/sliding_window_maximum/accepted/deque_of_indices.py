from collections import deque


def window_maximum(values: list[int], window: int) -> list[int]:
    if not 1 <= window <= len(values):
        raise ValueError("the window does not fit")
    queue: deque[int] = deque()  # indices, their values fall
    maxima = []
    for index, value in enumerate(values):
        if queue and queue[0] <= index - window:
            queue.popleft()
        while queue and values[queue[-1]] <= value:
            queue.pop()
        queue.append(index)
        if index >= window - 1:
            maxima.append(values[queue[0]])
    return maxima


class StreamingMaximum:
    def __init__(self, window: int) -> None:
        if window < 1:
            raise ValueError("window must be positive")
        self.window = window
        self.time = 0
        self.queue: deque[tuple[int, int]] = deque()

    def push(self, value: int) -> int:
        while self.queue and self.queue[-1][1] <= value:
            self.queue.pop()
        self.queue.append((self.time, value))
        self.time += 1
        if self.queue[0][0] + self.window < self.time:
            self.queue.popleft()
        return self.queue[0][1]
