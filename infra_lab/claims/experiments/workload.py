"""Requests as users send them: how long they are, and when they come.

Lengths are log-normal, with the means that the vLLM paper (arXiv 2309.06180, figure 11) prints for
its two traces; the traces themselves are not shipped, and the spread is ours. Of `random` only
`Random.random()` is used, so that one seed is one workload on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import NormalDist

from infra_lab.engine.simulation import TracedRequest

LONGEST = 2048  # OPT's context, which the paper's requests were cut to


@dataclass(frozen=True, slots=True)
class Lengths:
    """`spread` is the standard deviation of a length's logarithm."""

    name: str
    mean_prompt: float
    mean_output: float
    spread: float
    longest: int = LONGEST


SHAREGPT = Lengths("ShareGPT", 161.31, 337.99, 0.85)
ALPACA = Lengths("Alpaca", 19.31, 58.45, 0.85)


def draw_lengths(lengths: Lengths, count: int, random: Random) -> list[tuple[int, int]]:
    """Prompt and output tokens of each request; those longer than the context are drawn again."""
    drawn: list[tuple[int, int]] = []
    while len(drawn) < count:
        prompt = _log_normal(lengths.mean_prompt, lengths.spread, random)
        output = _log_normal(lengths.mean_output, lengths.spread, random)
        if prompt + output <= lengths.longest:
            drawn.append((prompt, output))
    return drawn


def poisson(
    lengths: Sequence[tuple[int, int]], rate_per_s: float, random: Random
) -> list[TracedRequest]:
    """Arrivals at random moments, so many a second in the mean; a rate of 0 has all at once."""
    now, arrivals = 0.0, []
    for prompt, output in lengths:
        if rate_per_s:
            now += -math.log(1.0 - random.random()) / rate_per_s
        arrivals.append(TracedRequest(now, prompt, output))
    return arrivals


def _log_normal(mean: float, spread: float, random: Random) -> int:
    """A whole number of at least 1 from the log-normal distribution of that mean."""
    uniform = 1.0 - random.random()  # above 0, at most 1
    normal = NormalDist().inv_cdf(min(uniform, 1 - 2**-53))
    return max(1, round(mean * math.exp(spread * normal - spread**2 / 2)))
