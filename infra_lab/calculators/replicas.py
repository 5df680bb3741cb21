"""The same GPUs as few large or many small replicas: tensor against data parallelism.

Answers "eight A100 and a 70B: TP 8, or two replicas of TP 4?". A replica reads all weights for its
share of the requests, so that more replicas read them more often; a wider one pays for its
all-reduces. Which is less depends on batch, link and start-up: this puts all plans side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from infra_lab.calculators.capacity import DEFAULT_UTILIZATION, capacity
from infra_lab.calculators.checks import divisors, require_count
from infra_lab.calculators.kv_cache import cache_bytes
from infra_lab.calculators.models import Model
from infra_lab.calculators.parallel import (
    all_reduce_message_bytes,
    cache_copies,
    quickest_all_reduce,
    step_communication_s,
)
from infra_lab.calculators.roofline import Setting, tpot_floor
from infra_lab.calculators.weights import weight_bytes
from infra_lab.errors import UsageError


def fewest_gpus_that_split(
    model: Model,
    memory_bytes: float,
    weight_bytes: float,
    request_bytes: float,
    *,
    utilization: float = DEFAULT_UTILIZATION,
    other_bytes: float = 0,
) -> int | None:
    """GPUs that hold the weights and one request, among the numbers that tensor parallelism can
    split the model's heads by; None if not even one GPU a head is enough.

    `request_bytes` are of one copy: where ranks outnumber the KV heads, or share a latent, each
    number of GPUs stores its own number of copies.
    """
    for number, copies in _splits(model, model.num_query_heads):
        found = capacity(
            memory_bytes,
            weight_bytes,
            request_bytes * copies,
            num_gpus=number,
            utilization=utilization,
            other_bytes=other_bytes,
        )
        if found.fits:
            return number
    return None


@dataclass(frozen=True, slots=True)
class Plan:
    """`num_replicas` of `tensor_parallel` GPUs each; requests are spread evenly over them.

    `most_requests` is what the memory of all replicas holds at the given context; 0 where the
    weights do not fit. `step_s` is the fullest replica's: roofline floor and all-reduces.
    """

    tensor_parallel: int
    num_replicas: int
    most_requests: int
    step_s: float
    communication_s: float
    tokens_per_s: float

    def holds(self, num_requests: int) -> bool:
        return num_requests <= self.most_requests


def replica_plans(
    model: Model,
    setting: Setting,
    num_gpus: int,
    num_requests: int,
    context: int,
    link_bytes_per_s: float,
    latency_s: float = 0,
    utilization: float = DEFAULT_UTILIZATION,
) -> list[Plan]:
    """Every way to split the GPUs evenly that the model's heads allow, from narrow to wide.

    One GPU a replica is always among them. Whatever `setting.num_gpus` says, each plan has its own
    number.
    """
    require_count("num_gpus", num_gpus)
    require_count("num_requests", num_requests)
    plans = []
    for width, copies in _splits(model, num_gpus):
        replicas = num_gpus // width
        batch = ceil(num_requests / replicas)
        message = all_reduce_message_bytes(model.hidden_size, batch)
        floor = tpot_floor(model, batch, context, replace(setting, num_gpus=width))
        communication_s = step_communication_s(
            model, quickest_all_reduce(message, width, link_bytes_per_s, latency_s)
        )
        room = capacity(
            setting.device.memory_bytes,
            weight_bytes(model, setting.weights).total_bytes,
            cache_bytes(model, context, 1, setting.cache) * copies,
            num_gpus=width,
            utilization=utilization,
        )
        step_s = floor.time_s + communication_s
        plans.append(
            Plan(
                tensor_parallel=width,
                num_replicas=replicas,
                most_requests=room.num_requests * replicas,
                step_s=step_s,
                communication_s=communication_s,
                tokens_per_s=num_requests / step_s,
            )
        )
    return plans


def _splits(model: Model, total: int) -> Iterator[tuple[int, float]]:
    """The divisors of `total` that the heads split by, and the copies of a cache at each."""
    for number in divisors(total):
        try:
            copies = cache_copies(model, number)
        except UsageError:
            continue  # the heads do not split so
        yield number, copies
