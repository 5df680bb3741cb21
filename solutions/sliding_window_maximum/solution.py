"""Monotonic queue: O(n) time, at most 2 comparisons of values for each; O(window) space."""

from collections import deque


def window_maximum(values: list[int], window: int) -> list[int]:
    if not 1 <= window <= len(values):
        raise ValueError(f"window must be 1 to {len(values)}, not {window}")
    stream = StreamingMaximum(window)
    maxima = [stream.push(value) for value in values]
    return maxima[window - 1 :]  # the first ones are of windows that are not full yet


class StreamingMaximum:
    """Keeps only the values that can still become a maximum: each one is larger than all that
    came after it, so the first is the maximum now."""

    def __init__(self, window: int) -> None:
        if window < 1:
            raise ValueError(f"window must be at least 1, not {window}")
        self.window = window
        self.pushed = 0
        self.candidates: deque[tuple[int, int]] = deque()  # (position, value), values fall

    def push(self, value: int) -> int:
        # An older value that is no larger leaves the window first: it never counts again.
        while self.candidates and self.candidates[-1][1] <= value:
            self.candidates.pop()
        self.candidates.append((self.pushed, value))
        self.pushed += 1
        if self.candidates[0][0] < self.pushed - self.window:
            self.candidates.popleft()
        return self.candidates[0][1]
