"""When the requests of a serving benchmark arrive.

Answers "why can a server keep up on average and still have a long queue?": because of bursts.
Gaps between arrivals are drawn from a gamma distribution, whose shape is the burstiness as in
`vllm bench serve`: 1 is a Poisson process, less comes in bursts, more comes more evenly.
Torch-free.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import accumulate

from infra_lab.errors import UsageError


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Attributes:
    rate_per_s: mean arrivals a second; inf has all there at the start.
    burstiness: the gamma distribution's shape k: the gaps' variance is their mean squared / k.
        inf spaces the arrivals evenly.
    """

    rate_per_s: float = math.inf
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        if not self.rate_per_s > 0:
            raise UsageError(
                f"the rate must be above 0 requests a second, not {self.rate_per_s:g}; inf sends "
                f"all at once"
            )
        if not self.burstiness > 0:
            raise UsageError(
                f"the burstiness must be above 0, not {self.burstiness:g}: 1 is Poisson, less "
                f"comes in bursts, inf is even"
            )

    def times_s(self, count: int, seed: int) -> list[float]:
        """`count` times in seconds, ascending; the first is 0.

        The gaps drawn are scaled so that their mean is 1 / rate exactly: of a Poisson process that
        leaves a Poisson process, of which it is known when the last arrival comes.
        """
        if math.isinf(self.rate_per_s):
            return [0.0] * count
        draw = random.Random(seed)
        gaps = [self._gap(draw) for _ in range(count - 1)]
        total = math.fsum(gaps)
        scale = len(gaps) / self.rate_per_s / total if total else 0.0
        return list(accumulate((gap * scale for gap in gaps), initial=0.0))

    def _gap(self, draw: random.Random) -> float:
        if math.isinf(self.burstiness):
            return 1.0
        return draw.gammavariate(self.burstiness, 1.0)
