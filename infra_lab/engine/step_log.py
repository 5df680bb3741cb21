"""What the event log is told of a step and of a request's end. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from infra_lab.engine.event_log import BatchEntry, RequestFinished, StepEvent
from infra_lab.engine.updates import RequestUpdate, SchedulerStats
from infra_lab.outputs import RequestOutput
from infra_lab.step import SchedulerOutput, StepTimings


class StepTimes(NamedTuple):
    """Moments of one step, in seconds on the monotonic clock."""

    started: float
    scheduled: float
    executed: float
    updated: float


def step_event(
    step: int,
    scheduler_output: SchedulerOutput,
    updates: Sequence[RequestUpdate],
    stats: SchedulerStats,
    timings: StepTimings,
    times: StepTimes,
) -> StepEvent:
    return StepEvent(
        step=step,
        start_time_s=times.started,
        schedule_ms=1e3 * (times.scheduled - times.started),
        execute_ms=1e3 * (times.executed - times.scheduled),
        update_ms=1e3 * (times.updated - times.executed),
        batch=tuple(
            BatchEntry(
                item.request_id,
                len(item.token_ids),
                item.num_computed_tokens,
                is_prompt_chunk=item.is_prompt_chunk,
            )
            for item in scheduler_output.scheduled
        ),
        num_sampled_tokens=sum(len(update.new_token_ids) for update in updates),
        blocks_used=stats.blocks_used,
        blocks_cached=stats.blocks_cached,
        blocks_free=stats.blocks_free,
        prefix_hit_tokens=stats.prefix_hit_tokens,
        num_evictions=stats.evictions,
        preempted_request_ids=stats.preempted_request_ids,
        num_running=stats.running,
        num_waiting=stats.waiting,
        prepare_ms=timings.prepare_ms,
        model_ms=timings.model_ms,
        sample_ms=timings.sample_ms,
    )


def finished_event(output: RequestOutput, now: float) -> RequestFinished:
    metrics = output.metrics
    return RequestFinished(
        time_s=now,
        request_id=output.request_id,
        reason=output.outputs[0].finish_reason or "stop",
        num_prompt_tokens=len(output.prompt_token_ids),
        num_output_tokens=sum(len(sample.token_ids) for sample in output.outputs),
        num_cached_tokens=output.num_cached_tokens,
        num_preemptions=metrics.num_preemptions,
        queue_time_s=metrics.queue_time_s,
        ttft_s=metrics.ttft_s,
        tpot_s=metrics.tpot_s,
        error=output.error,
    )
