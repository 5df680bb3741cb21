"""Values with how often they stand, from a generator; the leaving value is found with ==."""

from collections import deque
from collections.abc import Iterable, Iterator


def _maxima(values: Iterable[int], window: int) -> Iterator[int]:
    recent: deque[int] = deque()
    falling: deque[int] = deque()
    for value in values:
        if len(recent) == window and recent.popleft() == falling[0]:
            falling.popleft()
        recent.append(value)
        while falling and falling[-1] < value:
            falling.pop()
        falling.append(value)
        yield falling[0]


def window_maximum(values: list[int], window: int) -> list[int]:
    if not values or window not in range(1, len(values) + 1):
        raise ValueError("window must be between 1 and the number of values")
    return list(_maxima(values, window))[window - 1 :]


class StreamingMaximum:
    def __init__(self, window: int) -> None:
        if window <= 0:
            raise ValueError("window")
        self._inbox: list[int] = []
        self._maxima = _maxima(iter(self._inbox.pop, None), window)

    def push(self, value: int) -> int:
        self._inbox.append(value)
        return next(self._maxima)
