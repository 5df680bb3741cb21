"""Scheduling policies on one trace: the engine's own scheduler and block pool, on a modelled clock.

Answers "what does continuous batching gain over static batches, and whom does each policy serve?".
Requests arrive at random moments; every step is scheduled as the engine does it, block by block,
and takes the time that a linear model gives it instead of running a model (`engine.simulation`).
The same seed gives the same figures on every machine, in seconds, without torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import mean
from typing import Any

from infra_lab.config import AGING_POLICIES, SCHEDULING_POLICIES, EngineConfig
from infra_lab.engine.simulation import ServedRequest, percentile, simulate
from infra_lab.engine.traces import Trace
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
    at_once = [replace(one, arrival_s=0.0) for one in arrivals]
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
