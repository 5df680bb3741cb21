"""Requests as users send them: how long they are, and when they come.

Answers "what does a realistic load look like?": most requests are short and a few long, and they
come at random. For simulations and for benchmarks of real engines alike. Of `random` only
`Random.random()` is used, the one method whose sequence for a seed Python promises to keep: one
seed is one trace on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import NormalDist

from infra_lab.engine.simulation import TracedRequest
from infra_lab.errors import UsageError

LONGEST = 2048  # OPT's context, which the paper's requests were cut to

# Mean tokens of prompts and of answers, as the vLLM paper (arXiv 2309.06180, figure 11) prints
# them for its two traces. The traces are not shipped, and whoever draws chooses the spread.
SHAREGPT_MEANS = (161.31, 337.99)
ALPACA_MEANS = (19.31, 58.45)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal prompts and answers. `spread`: the standard deviation of a length's logarithm."""

    name: str
    mean_prompt: float
    mean_output: float
    spread: float
    longest: int = LONGEST


SHAREGPT = Lengths("ShareGPT", *SHAREGPT_MEANS, 0.85)
ALPACA = Lengths("Alpaca", *ALPACA_MEANS, 0.85)


@dataclass(frozen=True, slots=True)
class Trace:
    """Poisson arrivals of requests of which most have a short answer and some a long one.

    Attributes:
        rate_per_s: mean arrivals a second; 0 has all there at the start.
        prompt, short, long: bounds of the lengths, uniform between, both among them.
        long_share: of the requests, how many give a long answer.
        urgent_share: how many have priority 0, the others 1.
    """

    num_requests: int = 400
    rate_per_s: float = 2.2
    seed: int = 0
    prompt: tuple[int, int] = (16, 256)
    short: tuple[int, int] = (8, 64)
    long: tuple[int, int] = (192, 512)
    long_share: float = 0.2
    urgent_share: float = 0.1

    def __post_init__(self) -> None:
        if self.num_requests < 1:
            raise UsageError(f"a trace needs at least 1 request, not {self.num_requests}")
        if not 0 <= self.rate_per_s < math.inf:
            raise UsageError(f"the rate must be 0 or more requests a second, not {self.rate_per_s}")

    def arrivals(self) -> list[TracedRequest]:
        """Lengths are drawn first, then moments, then who is urgent: a seed's requests stay the
        same at any rate."""
        random = Random(self.seed)
        lengths = []
        for _ in range(self.num_requests):
            answer = self.long if random.random() < self.long_share else self.short
            lengths.append((uniform(*self.prompt, random), uniform(*answer, random)))
        arrivals = poisson(lengths, self.rate_per_s, random)
        return [
            replace(one, priority=int(random.random() >= self.urgent_share)) for one in arrivals
        ]


def draw_lengths(lengths: Lengths, count: int, random: Random) -> list[tuple[int, int]]:
    """Prompt and output tokens of each request; those longer than the context are drawn again."""
    drawn: list[tuple[int, int]] = []
    while len(drawn) < count:
        prompt, output = (
            max(1, round(log_normal(mean, lengths.spread, 1.0 - random.random())))
            for mean in (lengths.mean_prompt, lengths.mean_output)
        )
        if prompt + output <= lengths.longest:
            drawn.append((prompt, output))
    return drawn


def poisson(
    lengths: Sequence[tuple[int, int]], rate_per_s: float, random: Random
) -> list[TracedRequest]:
    """Arrivals at random moments, so many a second in the mean; a rate of 0 has all at once."""
    now, arrivals = 0.0, []
    for prompt, output in lengths:
        gap = -math.log(1.0 - random.random())  # drawn at any rate: what follows must not move
        if rate_per_s:
            now += gap / rate_per_s
        arrivals.append(TracedRequest(now, prompt, output))
    return arrivals


def uniform(low: int, high: int, random: Random) -> int:
    """A whole number from `low` to `high`, both among them."""
    return low + int(random.random() * (high - low + 1))


def log_normal(mean: float, spread: float, share: float) -> float:
    """The length that so large a share of a log-normal distribution of that mean is below."""
    inside = min(max(share, 2**-53), 1 - 2**-53)  # neither 0 nor 1 has a quantile
    return mean * math.exp(spread * NormalDist().inv_cdf(inside) - spread**2 / 2)
