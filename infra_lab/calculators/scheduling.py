"""Slots of a batch: how full static and continuous batching keep them.

Answers "200, 50 and 100 tokens in one static batch: what is wasted?": 250 of 600 slot steps. That
is slot occupancy, not GPU utilization, and continuous batching needs a queue to fill the gaps:
the same three requests alone take 200 steps either way.

With an endless queue the gain is the mean of a batch's longest request over the mean of all, and
so a law of the lengths' distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapreplace

from infra_lab.calculators.checks import require_count, require_lengths
from infra_lab.errors import UsageError


@dataclass(frozen=True, slots=True)
class BatchRun:
    """`busy_slot_steps` of `num_steps` x `num_slots` did something."""

    num_steps: int
    num_slots: int
    busy_slot_steps: int

    @property
    def occupancy(self) -> float:
        return self.busy_slot_steps / (self.num_steps * self.num_slots)


def static_batches(lengths: Sequence[int], num_slots: int) -> BatchRun:
    """Requests in order, `num_slots` at a time; each batch lasts as long as its longest."""
    require_count("num_slots", num_slots)
    require_lengths(lengths)
    batches = [lengths[start : start + num_slots] for start in range(0, len(lengths), num_slots)]
    return BatchRun(sum(map(max, batches)), num_slots, sum(lengths))


def continuous_batches(lengths: Sequence[int], num_slots: int) -> BatchRun:
    """Requests in order; one that ends gives its slot to the next in the same step (Orca, OSDI
    2022). Prefill is taken as free: what is compared is the filling of slots."""
    require_count("num_slots", num_slots)
    require_lengths(lengths)
    free_at = [0] * num_slots
    for length in lengths:
        heapreplace(free_at, free_at[0] + length)
    return BatchRun(max(free_at), num_slots, sum(lengths))


def exponential_gain(num_slots: int) -> float:
    """Slot steps of static over continuous batches in an endless queue of exponential lengths.

    A batch lasts as long as its longest request, whose mean is that of a request times
    H = 1 + 1/2 + ... + 1/slots: the longest of n waits for the first to end, 1/n of a mean, and is
    then the longest of n - 1.
    """
    require_count("num_slots", num_slots)
    return sum(1 / count for count in range(1, num_slots + 1))


def uniform_gain(num_slots: int) -> float:
    """Likewise for lengths spread evenly from 0 to some longest: 2 slots / (slots + 1), below 2."""
    require_count("num_slots", num_slots)
    return 2 * num_slots / (num_slots + 1)


def mean_held_tokens(requests: Sequence[tuple[int, int]]) -> float:
    """Tokens that a running request holds in the mean over time, of an even mix of (prompt,
    output) lengths under continuous batching.

    A request is seen while its output grows from 1 to o, p + (o + 1) / 2 tokens in the mean, and
    for o steps: long outputs are seen more often than they arrive (sum of o x tokens / sum of o).
    """
    if not requests:
        raise UsageError("no requests: give at least one pair of lengths")
    for prompt, output in requests:
        require_count("a prompt's length", prompt)
        require_count("an output's length", output)
    held = sum(output * (prompt + (output + 1) / 2) for prompt, output in requests)
    return held / sum(output for _, output in requests)
