"""Offline throughput: how many tokens a second when all requests are there from the start.

Answers "how do you measure an engine's throughput, and which figures must stand beside it?".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from infra_lab.bench.engine import (
    Clock,
    EngineSettings,
    OfflineEngine,
    arithmetic_threads,
    effective_dtype,
    run_batch,
)
from infra_lab.bench.runs import BatchRun, batch_figures
from infra_lab.bench.steps import StepRecorder
from infra_lab.bench.system import machine_facts, peak_rss_mb
from infra_lab.bench.workload import BenchRequest, Workload
from infra_lab.models.config import ModelConfig

WARMUP_OUTPUT_LEN = 4

Notify = Callable[[str], None]


def warm_up(
    engine: OfflineEngine, requests: Sequence[BenchRequest], output_len: int = WARMUP_OUTPUT_LEN
) -> None:
    """Runs the same prompts with a short output: memory is touched and threads are started."""
    run_batch(engine, [replace(item, output_len=output_len) for item in requests])


def measure_throughput(
    engine: OfflineEngine,
    requests: Sequence[BenchRequest],
    repeats: int = 1,
    notify: Notify = lambda message: None,
    clock: Clock = time.perf_counter,
) -> list[BatchRun]:
    """Times the whole batch `repeats` times over."""
    runs = []
    for turn in range(repeats):
        run = run_batch(engine, requests, clock)
        runs.append(run)
        notify(f"run {turn + 1} of {repeats}: {run.output_tokens_per_s:.1f} output tokens/s")
    return runs


def throughput_report(
    model: str,
    config: ModelConfig,
    workload: Workload,
    settings: EngineSettings,
    runs: Sequence[BatchRun],
    steps: StepRecorder,
) -> dict[str, Any]:
    """Everything about a measurement as one JSON-ready object; the figures come first."""
    return {
        **batch_figures(runs),
        "peak_rss_mb": peak_rss_mb(),
        "requests": workload.num_requests,
        "model": model,
        "dtype": effective_dtype(settings, config),
        "threads": arithmetic_threads(),
        "step_time": steps.summary(),
        "workload": asdict(workload),
        "engine": settings.described(),
        "machine": machine_facts(),
    }
