"""Where the time of an engine's steps goes, summed from its event log.

Answers "is this engine bound by its matrix products or by its Python?".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from infra_lab.engine.event_log import Event, StepEvent

PARTS = (
    "schedule_ms",
    "prepare_ms",
    "model_ms",
    "sample_ms",
    "execute_ms",
    "update_ms",
    "propose_ms",
)


@dataclass(slots=True)
class StepRecorder:
    """Subscribes to an event log and keeps its steps: `event_log.subscribe(recorder)`."""

    steps: list[StepEvent] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepEvent):
            self.steps.append(event)

    def clear(self) -> None:
        self.steps.clear()

    def summary(self) -> dict[str, float | int] | None:
        """Milliseconds by part, over all steps; None when the engine logged none.

        `prepare`, `model` and `sample` are parts of `execute`, where the worker reports them.
        """
        if not self.steps:
            return None
        totals: dict[str, float | int] = {
            "steps": len(self.steps),
            "total_ms": sum(step.total_ms for step in self.steps),
            "scheduled_tokens": sum(step.num_scheduled_tokens for step in self.steps),
        }
        drafted = sum(step.num_draft_tokens for step in self.steps)
        if drafted:
            totals["draft_tokens"] = drafted
            totals["accepted_tokens"] = sum(step.num_accepted_tokens for step in self.steps)
        for part in PARTS:
            values = [getattr(step, part) for step in self.steps]
            if None not in values:
                totals[part] = sum(values)
        return totals

    def inter_token_s(self, output_tokens: int) -> tuple[float, ...]:
        """Seconds between the tokens of the one request that ran while these steps were kept.

        Empty unless every token had a step of its own, as in a single stream without
        speculation: otherwise a step's end is not a token's time.
        """
        ends = [
            step.start_time_s + step.total_ms / 1000
            for step in self.steps
            if step.num_sampled_tokens
        ]
        if len(ends) != output_tokens or any(step.num_sampled_tokens > 1 for step in self.steps):
            return ()
        return tuple(later - earlier for earlier, later in pairwise(ends))
