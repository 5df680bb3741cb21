"""One entry for a run of values: how many values it stands for. No index is kept."""


class StreamingMaximum:
    def __init__(self, window: int) -> None:
        if window < 1:
            raise ValueError(f"{window=}")
        self.window, self.size = window, 0
        self.values: list[int] = []  # falling; the oldest at `first`
        self.spans: list[int] = []
        self.first = 0

    def push(self, value: int) -> int:
        if self.size == self.window:
            self.spans[self.first] -= 1
            if not self.spans[self.first]:
                self.first += 1
        else:
            self.size += 1
        span = 1
        while len(self.values) > self.first and not self.values[-1] > value:
            self.values.pop()
            span += self.spans.pop()
        self.values.append(value)
        self.spans.append(span)
        if self.first > self.window:  # give the dead part back now and then
            del self.values[: self.first], self.spans[: self.first]
            self.first = 0
        return self.values[self.first]


def window_maximum(values: list[int], window: int) -> list[int]:
    if window > len(values):
        raise ValueError("window is longer than the list")
    stream = StreamingMaximum(window=window)
    maxima = []
    for count, value in enumerate(values, start=1):
        largest = stream.push(value=value)
        if count >= window:
            maxima.append(largest)
    return maxima
