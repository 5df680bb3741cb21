"""What a preempted request waits for when it resumes: its blocks, or its tokens once more.

Answers "swap or recompute?" with this machine's figures. With one seat, an urgent request of one
token turns a running one out; both ways are timed by the engine's own event log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from infra_lab.bench.engine import MeasurementError, arithmetic_threads
from infra_lab.bench.steps import StepRecorder
from infra_lab.bench.system import machine_facts
from infra_lab.config import DEFAULT_BLOCK_SIZE
from infra_lab.engine.event_log import EventLog, StepEvent
from infra_lab.errors import UsageError
from infra_lab.models.config import ModelConfig
from infra_lab.outputs import RequestOutput
from infra_lab.sampling_params import SamplingParams

MODES = ("recompute", "swap")
TOKENS_BEFORE = 2  # output tokens of the low request before it is turned out
Notify = Callable[[str], None]


class SteppedEngine(Protocol):
    """What this needs of an engine; `EngineCore` is one."""

    @property
    def has_unfinished_requests(self) -> bool: ...

    def add_request(
        self,
        request_id: str,
        prompt: Sequence[int],
        sampling_params: SamplingParams,
        *,
        priority: int,
    ) -> None: ...

    def step(self) -> list[RequestOutput]: ...


@dataclass(frozen=True, slots=True)
class ResumeRun:
    """Milliseconds of one preemption.

    Attributes:
        out_ms: copies in the step that turns the request out.
        in_ms: copies in the steps until its next token.
        resume_ms: those steps as a whole.
    """

    out_ms: float
    in_ms: float
    resume_ms: float


def checked_lengths(lengths: Sequence[int], config: ModelConfig) -> list[int]:
    """Raises UsageError for a length that the model's context does not hold."""
    most = config.max_position_embeddings - TOKENS_BEFORE - 2
    for length in lengths:
        if not 1 <= length <= most:
            raise UsageError(f"--tokens must be from 1 to {most} for this model, not {length}")
    return list(lengths)


def measure_resume(engine: SteppedEngine, steps: StepRecorder, prompt: Sequence[int]) -> ResumeRun:
    """Preempts one request and lets it resume; the engine has one seat and goes by priority."""
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=TOKENS_BEFORE + 2)
    engine.add_request("low", prompt, params, priority=1)
    produced = 0
    while produced < TOKENS_BEFORE:
        produced += sum(len(out.outputs[0].new_token_ids) for out in engine.step())
    urgent = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=1)
    engine.add_request("urgent", [prompt[0]], urgent, priority=0)
    steps.clear()
    engine.step()
    turned_out = steps.steps[-1]
    if turned_out.preempted_request_ids != ("low",):
        raise MeasurementError("the urgent request did not turn the other out")
    steps.clear()
    while not any(out.request_id == "low" for out in engine.step()):
        continue
    resumed = list(steps.steps)
    while engine.has_unfinished_requests:
        engine.step()
    return ResumeRun(
        out_ms=_copy_ms(turned_out),
        in_ms=sum(map(_copy_ms, resumed)),
        resume_ms=sum(step.total_ms for step in resumed),
    )


def compare_resume(
    path: Path,
    lengths: Sequence[int],
    repeats: int,
    dtype: str,
    seed: int,
    config: ModelConfig,
    notify: Notify,
) -> dict[str, list[ResumeRun]]:
    """Both modes over all lengths, `repeats` times each, medians; keyed by mode, in order of
    length. No prefix cache: it would find what was computed before."""
    from infra_lab.engine.llm import LLM

    num_blocks = -(-(max(lengths) + TOKENS_BEFORE + 4) // DEFAULT_BLOCK_SIZE) + 1
    runs: dict[str, list[ResumeRun]] = {}
    for mode in MODES:
        notify(f"loading the model: {mode}")
        steps, log = StepRecorder(), EventLog(capacity=0)
        log.subscribe(steps)
        # As much as the pool takes in fp32: enough in every dtype.
        space = num_blocks * DEFAULT_BLOCK_SIZE * config.kv_bytes_per_token(element_bytes=4)
        llm = LLM(
            path,
            event_log=log,
            dtype=dtype,
            block_size=DEFAULT_BLOCK_SIZE,
            num_blocks=num_blocks,
            pretouch_kv_cache=True,
            enable_prefix_caching=False,
            max_num_seqs=1,
            scheduling_policy="priority",
            swap_space_bytes=space if mode == "swap" else 0,
            preemption_mode=mode,
        )
        runs[mode] = []
        for length in lengths:
            prompt = [(seed + 31 * index) % config.vocab_size for index in range(length)]
            measure_resume(llm.engine, steps, prompt)  # memory is touched, threads are started
            found = [measure_resume(llm.engine, steps, prompt) for _ in range(repeats)]
            runs[mode].append(_median(found))
            notify(f"{mode}, {length} tokens: {runs[mode][-1].resume_ms:.1f} ms")
    return runs


def resume_report(
    model: str,
    dtype: str,
    lengths: Sequence[int],
    repeats: int,
    runs: dict[str, list[ResumeRun]],
) -> dict[str, Any]:
    """Everything about a measurement as one JSON-ready object; the figures come first."""
    rows = []
    for index, length in enumerate(lengths):
        recompute, swap = runs["recompute"][index], runs["swap"][index]
        rows.append(
            {
                "tokens": length,
                "recompute_ms": recompute.resume_ms,
                "swap_ms": swap.resume_ms,
                "swap_out_ms": swap.out_ms,
                "swap_in_ms": swap.in_ms,
                "ratio": recompute.resume_ms / (swap.resume_ms + swap.out_ms),
            }
        )
    return {
        "resume": rows,
        "repeats": repeats,
        "model": model,
        "dtype": dtype,
        "threads": arithmetic_threads(),
        "machine": machine_facts(),
    }


def _copy_ms(step: StepEvent) -> float:
    """What a step's execution took beside preparing, computing and sampling."""
    parts = (step.prepare_ms or 0.0) + (step.model_ms or 0.0) + (step.sample_ms or 0.0)
    return step.execute_ms - parts


def _median(runs: Sequence[ResumeRun]) -> ResumeRun:
    return ResumeRun(
        median(run.out_ms for run in runs),
        median(run.in_ms for run in runs),
        median(run.resume_ms for run in runs),
    )
