"""Scheduling policies on one trace: the engine's own scheduler and block pool, on a modelled clock.

Answers "what does continuous batching gain over static batches, and whom does each policy serve?".
Requests arrive at random moments; every step is scheduled as the engine does it, block by block,
and takes the time that a linear model gives it instead of running a model (`engine.simulation`).
The same seed gives the same figures on every machine, in seconds, without torch.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import mean
from typing import Any

from infra_lab.config import AGING_POLICIES, SCHEDULING_POLICIES, EngineConfig
from infra_lab.engine.simulation import ServedRequest, TracedRequest, percentile, simulate
from infra_lab.engine.traces import uniform
from infra_lab.errors import UsageError
from infra_lab.step import SchedulerOutput


@dataclass(frozen=True, slots=True)
class StepCost:
    """Milliseconds of a step: a fixed part (the weights are read once), a part per token computed
    and a part per token of context that attention reads.

    The defaults are SmolLM2-135M in fp32 on two cores: 20.2 ms for one decode with 130 tokens of
    context, 0.6 of them attention, and 432 ms for 512 prompt tokens (the README's table).
    """

    fixed_ms: float = 18.8
    token_ms: float = 0.80
    context_token_ms: float = 0.0046

    def seconds(self, step: SchedulerOutput) -> float:
        context = sum(item.num_computed_tokens + len(item.token_ids) for item in step.scheduled)
        tokens = step.total_num_scheduled_tokens
        per_token = self.token_ms * tokens + self.context_token_ms * context
        return (self.fixed_ms + per_token) / 1e3


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests as users send them: Poisson arrivals, most answers short and some long.

    Attributes:
        rate_per_s: mean arrivals a second; 0 has all there at the start.
        short, long: bounds of the output length, uniform between.
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
        """The same on every machine: of `random`, only `Random.random()` is used."""
        draw = random.Random(self.seed)
        arrivals, now = [], 0.0
        for _ in range(self.num_requests):
            if self.rate_per_s:
                now += -math.log(1.0 - draw.random()) / self.rate_per_s
            prompt = uniform(*self.prompt, draw)
            is_long = draw.random() < self.long_share
            output = uniform(*(self.long if is_long else self.short), draw)
            priority = int(draw.random() >= self.urgent_share)
            arrivals.append(TracedRequest(now, prompt, output, priority))
        return arrivals


def policies_report(
    trace: Trace,
    config: EngineConfig,
    cost: StepCost,
    policies: Sequence[str] = SCHEDULING_POLICIES,
    aging_steps: int | None = None,
) -> dict[str, Any]:
    """Figures by policy, as one JSON-ready object: of the trace as it is, and, for throughput, of
    the same requests all there at the start.

    `config` sets the sizes; `aging_steps` goes to the policies that age.
    """
    for policy in policies:
        if policy not in SCHEDULING_POLICIES:
            raise UsageError(
                f"there is no policy {policy!r}: choose among {', '.join(SCHEDULING_POLICIES)}"
            )
    if aging_steps is not None and not set(policies) & set(AGING_POLICIES):
        raise UsageError(
            f"none of {', '.join(policies)} ages its requests: leave the ageing out, or add "
            f"{' or '.join(AGING_POLICIES)}"
        )
    arrivals = trace.arrivals()
    at_once = [TracedRequest(0.0, a.prompt_len, a.output_len, a.priority) for a in arrivals]
    report: dict[str, Any] = {}
    for policy in policies:
        ages = aging_steps if policy in AGING_POLICIES else None
        own = replace(config, scheduling_policy=policy, aging_steps=ages)
        run, full = simulate(arrivals, own, cost), simulate(at_once, own, cost)
        report[policy] = {
            "all": _figures(run.served),
            "urgent": _figures([one for one in run.served if one.traced.priority == 0]),
            "preemptions": run.num_preemptions,
            "saturated_output_tokens_per_s": full.output_tokens_per_s,
            "saturated_elapsed_s": full.elapsed_s,
        }
    return {
        "policies": report,
        "trace": asdict(trace),
        "step_cost": asdict(cost),
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "num_blocks": config.num_blocks,
        "block_size": config.block_size,
    }


def _figures(served: Sequence[ServedRequest]) -> dict[str, float] | None:
    if not served:
        return None
    latencies = [one.latency_s for one in served]
    ttfts = [one.ttft_s for one in served]
    return {
        "requests": len(served),
        "latency_mean_s": mean(latencies),
        "latency_p99_s": percentile(latencies, 99),
        "latency_max_s": max(latencies),
        "ttft_mean_s": mean(ttfts),
        "ttft_p99_s": percentile(ttfts, 99),
    }
