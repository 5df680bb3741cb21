"""A queue made of two stacks that know their maxima: amortised 3 comparisons for each value,
O(window) space. It works for any associative operation, not only for the maximum."""


def window_maximum(values: list[int], window: int) -> list[int]:
    if not 1 <= window <= len(values):
        raise ValueError(f"window must be 1 to {len(values)}, not {window}")
    stream = StreamingMaximum(window)
    for value in values[: window - 1]:
        stream.push(value)
    return [stream.push(value) for value in values[window - 1 :]]


class StreamingMaximum:
    """`incoming` takes new values, `outgoing` gives the oldest; each entry of `outgoing` is the
    maximum of itself and of what is newer in that stack."""

    def __init__(self, window: int) -> None:
        if window < 1:
            raise ValueError(f"window must be at least 1, not {window}")
        self.window = window
        self.incoming: list[int] = []
        self.incoming_maximum: int | None = None
        self.outgoing: list[int] = []

    def push(self, value: int) -> int:
        if len(self.incoming) + len(self.outgoing) == self.window:
            self._drop_oldest()
        self.incoming.append(value)
        newest = self.incoming_maximum
        self.incoming_maximum = value if newest is None else max(newest, value)
        if not self.outgoing:
            return self.incoming_maximum
        return max(self.outgoing[-1], self.incoming_maximum)

    def _drop_oldest(self) -> None:
        if not self.outgoing:
            while self.incoming:
                value = self.incoming.pop()
                self.outgoing.append(max(value, self.outgoing[-1]) if self.outgoing else value)
            self.incoming_maximum = None
        self.outgoing.pop()
