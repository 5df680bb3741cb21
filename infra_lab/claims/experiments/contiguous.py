"""KV memory as it was kept before paging: one contiguous reservation a request, from a buddy heap.

What the vLLM paper (arXiv 2309.06180, section 6.1) rebuilt as its baselines: Orca with the maximal
length, with the next power of two, or with the true length reserved. Slots are of one token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


class BuddyHeap:
    """Regions of 2^k slots; a free one is split until it fits, and merged with its free twin.

    A capacity that is no power of two is cut into those it is the sum of, which never merge.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free: dict[int, set[int]] = {}  # by size: starts
        self._taken: dict[int, int] = {}  # size by start
        start = 0
        for power in reversed(range(capacity.bit_length())):
            if capacity >> power & 1:
                self._free.setdefault(1 << power, set()).add(start)
                start += 1 << power
        self._whole = {start: size for size, starts in self._free.items() for start in starts}

    @property
    def free_slots(self) -> int:
        return sum(size * len(starts) for size, starts in self._free.items())

    def allocate(self, num_slots: int) -> int | None:
        """The start of a region of the next power of two; None if none is free, however many
        slots are."""
        size = next_power_of_two(num_slots)
        fitting = [one for one, starts in self._free.items() if one >= size and starts]
        if not fitting:
            return None
        found = min(fitting)
        start = min(self._free[found])
        self._free[found].remove(start)
        while found > size:  # keep the lower half, free the upper
            found //= 2
            self._free.setdefault(found, set()).add(start + found)
        self._taken[start] = size
        return start

    def size_at(self, start: int) -> int:
        return self._taken[start]

    def free(self, start: int) -> None:
        size = self._taken.pop(start)
        base = max(one for one in self._whole if one <= start)
        while size < self._whole[base]:
            twin = base + ((start - base) ^ size)
            if twin not in self._free.get(size, ()):
                break
            self._free[size].remove(twin)
            start, size = min(start, twin), 2 * size
        self._free.setdefault(size, set()).add(start)


def next_power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


Reservation = Callable[[int, int], int]
"""Slots to reserve for a prompt and an output of so many tokens."""


def reserve_longest(longest: int) -> Reservation:
    return lambda prompt, output: longest


def reserve_power_of_two(prompt: int, output: int) -> int:
    """As if the output's length were known up to the next power of two."""
    return prompt + next_power_of_two(output)


def reserve_exactly(prompt: int, output: int) -> int:
    """As if an oracle told the output's length."""
    return prompt + output


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Shares of the memory in the mean over steps, and requests at once.

    used: slots that hold a token. reserved: those that will, later. internal: of a reservation,
    never to be used. free: no request's, too small for the next or a rest of it. They sum to 1.
    """

    used: float
    reserved: float
    internal: float
    free: float
    batch: float


def serve_contiguously(
    lengths: Sequence[tuple[int, int]], capacity: int, reserve: Reservation
) -> MemoryUse:
    """First come, first served, while others wait: each step adds a token to every request, and
    one that ends makes room. Prompts are computed in the step that lets them in."""
    heap = BuddyHeap(capacity)
    waiting = list(reversed(lengths))
    running: list[list[int]] = []  # start, tokens held, tokens at the end
    used = reserved = internal = batch = num_steps = 0
    while waiting:
        while waiting:
            prompt, output = waiting[-1]
            start = heap.allocate(reserve(prompt, output))
            if start is None:
                break
            waiting.pop()
            running.append([start, prompt, prompt + output - 1])  # the last token needs no slot
        if not waiting:
            break  # nobody is kept out any more
        num_steps += 1
        batch += len(running)
        for start, held, end in running:
            used += held
            reserved += end - held
            internal += heap.size_at(start) - end
        for one in running:
            one[1] += 1
        for start, _, _ in [one for one in running if one[1] > one[2]]:
            heap.free(start)
        running = [one for one in running if one[1] <= one[2]]
    slots = capacity * num_steps
    shares = used / slots, reserved / slots, internal / slots
    return MemoryUse(*shares, 1 - sum(shares), batch / num_steps)
