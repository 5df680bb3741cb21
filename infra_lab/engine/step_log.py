"""The event log's records of a step and of a request's end, put together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from infra_lab.engine.event_log import BatchEntry, RequestFinished, StepEvent
from infra_lab.engine.updates import RequestUpdate, SchedulerStats
from infra_lab.outputs import RequestOutput
from infra_lab.step import SchedulerOutput, StepTimings


def step_event(
    step: int,
    scheduler_output: SchedulerOutput,
    updates: list[RequestUpdate],
    verified: Mapping[str, tuple[int, int]],
    stats: SchedulerStats,
    timings: StepTimings,
    times_s: tuple[float, float, float, float, float],
) -> StepEvent:
    """verified: (drafted, accepted) tokens by request. times_s: when the step began, was scheduled,
    was executed, was taken in, and ended, with drafts for the next."""
    started, scheduled, executed, updated, ended = times_s
    return StepEvent(
        step=step,
        start_time_s=started,
        schedule_ms=1e3 * (scheduled - started),
        execute_ms=1e3 * (executed - scheduled),
        update_ms=1e3 * (updated - executed),
        propose_ms=1e3 * (ended - updated),
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
        num_draft_tokens=sum(drafted for drafted, _ in verified.values()),
        num_accepted_tokens=sum(accepted for _, accepted in verified.values()),
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
        num_swap_outs=len(scheduler_output.swap_outs),
        num_swap_ins=len(scheduler_output.swap_ins),
    )


def request_finished(output: RequestOutput, now_s: float) -> RequestFinished:
    """Of an output that is finished."""
    metrics = output.metrics
    return RequestFinished(
        time_s=now_s,
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


def finished_requests(outputs: Iterable[RequestOutput], now_s: float) -> list[RequestFinished]:
    """Of those outputs that are finished."""
    return [request_finished(output, now_s) for output in outputs if output.finished]
