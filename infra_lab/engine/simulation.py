"""The engine's own scheduler and block pool on a modelled clock: no model runs, and no time passes.

Answers "what would this policy, budget or pool do to users?" in seconds. Requests arrive at given
moments; every step is scheduled as the engine does it, block by block, and takes the time that a
cost model says. The same on every machine. Torch-free.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from infra_lab.cache.kv_cache_manager import KVCacheManager
from infra_lab.config import EngineConfig
from infra_lab.engine.request import Request
from infra_lab.engine.scheduler import Scheduler
from infra_lab.errors import UsageError
from infra_lab.sampling_params import SamplingParams
from infra_lab.step import ModelOutput, SchedulerOutput

ANY_TOKEN = 1


class StepCostModel(Protocol):
    """How long a step would take."""

    def seconds(self, step: SchedulerOutput) -> float: ...


@dataclass(frozen=True, slots=True)
class UnitSteps:
    """Every step takes a second: for what is counted in steps."""

    def seconds(self, step: SchedulerOutput) -> float:
        return 1.0


@dataclass(frozen=True, slots=True)
class TracedRequest:
    arrival_s: float
    prompt_len: int
    output_len: int
    priority: int = 0


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """When a request had each of its tokens, in seconds after its arrival."""

    traced: TracedRequest
    token_times_s: Sequence[float]

    @property
    def ttft_s(self) -> float:
        return self.token_times_s[0]

    @property
    def latency_s(self) -> float:
        return self.token_times_s[-1]

    @property
    def inter_token_s(self) -> list[float]:
        times = self.token_times_s
        return [late - early for early, late in pairwise(times)]


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """What a step was like while it ran. `held_tokens` have a slot in one of `blocks_used`."""

    start_s: float
    seconds: float
    num_requests: int
    num_tokens: int
    num_waiting: int
    blocks_used: int
    held_tokens: int


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    served: list[ServedRequest]
    elapsed_s: float
    num_preemptions: int
    steps: list[SimulatedStep] = field(default_factory=list)

    @property
    def output_tokens_per_s(self) -> float:
        return sum(one.traced.output_len for one in self.served) / self.elapsed_s


def simulate(
    arrivals: Sequence[TracedRequest], config: EngineConfig, cost: StepCostModel
) -> SimulatedRun:
    """Serves a trace, in order of arrival, with a scheduler set up by `config`.

    Raises UsageError for a trace or a setting that it cannot be true to.
    """
    if config.num_blocks is None:
        raise UsageError("a simulation has no memory to size a pool by: give num_blocks")
    if config.swap_space_bytes or config.speculative is not None:
        raise UsageError("a simulation models neither a swap space nor drafts: leave them out")
    if not arrivals:
        raise UsageError("a trace needs at least 1 request")
    if any(late.arrival_s < early.arrival_s for early, late in pairwise(arrivals)):
        raise UsageError("a trace must be in order of arrival: sort it by arrival_s")
    kv_cache = KVCacheManager(
        config.num_blocks + 1, config.block_size, config.enable_prefix_caching
    )
    longest = max(one.prompt_len + one.output_len for one in arrivals)
    scheduler = Scheduler(config, kv_cache, max_model_len=longest)
    clock = start = arrivals[0].arrival_s
    next_arrival, num_preemptions = 0, 0
    token_times: dict[str, list[float]] = {}
    served: list[ServedRequest] = []
    steps: list[SimulatedStep] = []
    while len(served) < len(arrivals):
        if not scheduler.has_unfinished_requests:
            clock = max(clock, arrivals[next_arrival].arrival_s)
        while next_arrival < len(arrivals) and arrivals[next_arrival].arrival_s <= clock:
            scheduler.add_request(_request(next_arrival, arrivals[next_arrival], config))
            next_arrival += 1
        step = scheduler.schedule()
        num_preemptions += len(step.preempted_request_ids)
        seconds = cost.seconds(step)
        steps.append(_record(step, scheduler, clock, seconds))
        clock += seconds
        sampled = {item.request_id: [ANY_TOKEN] for item in step.scheduled if item.samples}
        for update in scheduler.update_from_output(step, ModelOutput(sampled)):
            name = update.request.request_id
            traced = arrivals[int(name)]
            token_times.setdefault(name, []).append(clock - traced.arrival_s)
            if update.finish_reason:
                served.append(ServedRequest(traced, token_times.pop(name)))
    return SimulatedRun(served, clock - start, num_preemptions, steps)


def _record(
    step: SchedulerOutput, scheduler: Scheduler, clock: float, seconds: float
) -> SimulatedStep:
    computed = step.num_scheduled_tokens
    held = sum(
        one.num_computed_tokens + computed.get(one.request_id, 0) for one in scheduler.running
    )
    return SimulatedStep(
        start_s=clock,
        seconds=seconds,
        num_requests=len(step.scheduled),
        num_tokens=step.total_num_scheduled_tokens,
        num_waiting=len(scheduler.waiting),
        blocks_used=scheduler.kv_cache.usage.used,
        held_tokens=held,
    )


def _request(index: int, traced: TracedRequest, config: EngineConfig) -> Request:
    """Its tokens are its own number, so that no two prompts share a prefix by chance."""
    return Request(
        request_id=str(index),
        prompt_token_ids=[index] * traced.prompt_len,
        sampling_params=SamplingParams(max_tokens=traced.output_len, ignore_eos=True),
        arrival_time=traced.arrival_s,
        priority=traced.priority if config.scheduling_policy == "priority" else 0,
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of `values` lie, linear between neighbours."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low, high = math.floor(place), math.ceil(place)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
