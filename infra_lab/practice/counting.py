"""Counts what a solution does, so that complexity is graded by operations, never by the clock."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

GARBAGE = 10  # new objects from which they are searched for garbage, inside peak_memory


class Tally:
    """A number that counted values add to."""

    def __init__(self) -> None:
        self.count = 0


class Counted:
    """Wraps a hashable, orderable value, and counts each comparison and each hash of it.

    It can be negated, as values are that go through a min-heap to find the largest. A copy is
    the object itself: else what a solution does to a deep copy would not be counted.
    """

    __slots__ = ("tally", "value")

    def __init__(self, value: Any, tally: Tally) -> None:
        self.value = value
        self.tally = tally

    def _other(self, other: object) -> Any:
        self.tally.count += 1
        return other.value if isinstance(other, Counted) else other

    def __hash__(self) -> int:
        self.tally.count += 1
        return hash(self.value)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == self._other(other))

    def __lt__(self, other: object) -> bool:
        return bool(self.value < self._other(other))

    def __le__(self, other: object) -> bool:
        return bool(self.value <= self._other(other))

    def __gt__(self, other: object) -> bool:
        return bool(self.value > self._other(other))

    def __ge__(self, other: object) -> bool:
        return bool(self.value >= self._other(other))

    def __neg__(self) -> Self:
        return type(self)(-self.value, self.tally)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __repr__(self) -> str:
        return repr(self.value)


@contextmanager
def counting_lines(file: str) -> Iterator[Tally]:
    """Counts the lines of `file` that run, a loop's or comprehension's body each time around."""
    tally = Tally()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename != file:
            return None
        tally.count += 1
        return trace_lines

    def trace_lines(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            tally.count += 1
        return trace_lines

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield tally
    finally:
        sys.settrace(before)


class Peak:
    """bytes: the most that was allocated at once, beyond what was there at the start."""

    bytes = 0


@contextmanager
def peak_memory() -> Iterator[Peak]:
    """Python's and NumPy's allocations inside the block.

    Garbage in cycles, such as the nodes of a doubly linked list, goes at once: when Python would
    come to it depends on whatever else the process has allocated.
    """
    peak = Peak()
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()  # what is there already need not be searched again and again
    gc.collect()  # Python looks through old objects by how many this one found: none, now
    gc.set_threshold(GARBAGE, 1, 1)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        yield peak
        _, most = tracemalloc.get_traced_memory()
        peak.bytes = most - before
    finally:
        tracemalloc.stop()
        gc.set_threshold(*thresholds)
        gc.unfreeze()
