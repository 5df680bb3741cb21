"""Does it fit, and how many requests at once?

Answers "80 GB of A100, a 70B in 4 bits, 4K tokens each: how many?": (memory x utilization -
weights) / KV of one request = 33, not 3. `utilization` is vLLM's gpu_memory_utilization.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

from infra_lab.calculators.checks import (
    require_count,
    require_not_negative,
    require_positive,
    require_share,
)
from infra_lab.errors import UsageError

DEFAULT_UTILIZATION = 0.92  # vllm/config/cache.py, 2026


@dataclass(frozen=True, slots=True)
class Capacity:
    """Of all GPUs together, in bytes; negative `cache_bytes`: the weights alone do not fit."""

    budget_bytes: float
    weight_bytes: float
    other_bytes: float
    request_bytes: float

    @property
    def cache_bytes(self) -> float:
        return self.budget_bytes - self.weight_bytes - self.other_bytes

    @property
    def fits(self) -> bool:
        """Weights, and at least one request."""
        return self.num_requests >= 1

    @property
    def exact_requests(self) -> float:
        return max(0.0, self.cache_bytes / self.request_bytes)

    @property
    def num_requests(self) -> int:
        """Whole requests that run at once."""
        return floor(self.exact_requests)


def capacity(
    memory_bytes: float,
    weight_bytes: float,
    request_bytes: float,
    *,
    num_gpus: int = 1,
    utilization: float = DEFAULT_UTILIZATION,
    other_bytes: float = 0,
) -> Capacity:
    """GPUs of `memory_bytes` each that share weights and cache evenly.

    `other_bytes`, in all: activations, CUDA graphs, the communication library's buffers.
    """
    require_positive("memory_bytes", memory_bytes)
    require_not_negative("weight_bytes", weight_bytes)
    require_positive("request_bytes", request_bytes)
    require_count("num_gpus", num_gpus)
    require_share("utilization", utilization)
    require_not_negative("other_bytes", other_bytes)
    budget = num_gpus * memory_bytes * utilization
    return Capacity(budget, weight_bytes, other_bytes, request_bytes)


def fewest_gpus(
    memory_bytes: float,
    weight_bytes: float,
    request_bytes: float,
    *,
    utilization: float = DEFAULT_UTILIZATION,
    other_bytes: float = 0,
) -> int:
    """GPUs that it takes for the weights and one request."""
    if utilization == 0:
        raise UsageError("utilization must be above 0: nothing fits into no memory")
    one = capacity(
        memory_bytes, weight_bytes, request_bytes, utilization=utilization, other_bytes=other_bytes
    )
    needed = weight_bytes + other_bytes + request_bytes
    return max(1, -floor(-needed / one.budget_bytes))
