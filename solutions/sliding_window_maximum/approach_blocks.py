"""Maxima of blocks (van Herk; Gil and Werman): O(n) time, at most 3 comparisons for each value,
the same work whatever the values are; O(n) space for a list, O(window) for a stream."""

from itertools import accumulate


def window_maximum(values: list[int], window: int) -> list[int]:
    if not 1 <= window <= len(values):
        raise ValueError(f"window must be 1 to {len(values)}, not {window}")
    from_block_start: list[int] = []
    to_block_end: list[int] = []
    for start in range(0, len(values), window):
        block = values[start : start + window]
        from_block_start += accumulate(block, max)
        to_block_end += reversed(list(accumulate(reversed(block), max)))
    # A window meets at most two blocks: it is an end of the first and a start of the second.
    return [
        max(to_block_end[first], from_block_start[first + window - 1])
        for first in range(len(values) - window + 1)
    ]


class StreamingMaximum:
    """When a block is full, its suffix maxima are kept for the windows that end in the next."""

    def __init__(self, window: int) -> None:
        if window < 1:
            raise ValueError(f"window must be at least 1, not {window}")
        self.window = window
        self.block: list[int] = []
        self.maximum_of_block: int | None = None
        self.to_end_of_last: list[int] = []  # the next one to be used stands last

    def push(self, value: int) -> int:
        if len(self.block) == self.window:
            self.to_end_of_last = list(accumulate(reversed(self.block), max))
            self.block, self.maximum_of_block = [], None
        if self.to_end_of_last:
            self.to_end_of_last.pop()  # its oldest value leaves the window
        self.block.append(value)
        here = value if self.maximum_of_block is None else max(self.maximum_of_block, value)
        self.maximum_of_block = here
        return max(self.to_end_of_last[-1], here) if self.to_end_of_last else here
