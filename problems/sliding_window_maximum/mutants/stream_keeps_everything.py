# killed_by: test_stream_memory — the queue is a list with a moving head; nothing is ever freed
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
        self.head = 0
        self.queue: list[tuple[int, int]] = []

    def push(self, value: int) -> int:
        while len(self.queue) > self.head and self.queue[-1][1] <= value:
            self.queue.pop()
        self.queue.append((self.time, value))
        self.time += 1
        if self.queue[self.head][0] + self.window < self.time:
            self.head += 1
        return self.queue[self.head][1]
