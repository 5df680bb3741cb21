"""What carries out a step, as the engine's loop sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from infra_lab.step import ModelOutput, SchedulerOutput, StepTimings


class Executor(Protocol):
    """Whatever can carry out a step; the real one is worker.ModelRunner."""

    timings: StepTimings

    def execute(self, scheduler_output: SchedulerOutput) -> ModelOutput: ...

    def embed(self, token_ids: Sequence[int], pooling: str) -> list[float]: ...
