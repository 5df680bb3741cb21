"""Single-stream latency: one request at a time, as one user feels it.

Answers "what is the difference between TTFT, TPOT and ITL, and what bounds each?": prefill
sets the first, the bytes of the weights read per token the other two.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from infra_lab.bench.engine import (
    Clock,
    EngineSettings,
    OfflineEngine,
    arithmetic_threads,
    effective_dtype,
    run_stream,
)
from infra_lab.bench.runs import StreamRun, stream_figures
from infra_lab.bench.steps import StepRecorder
from infra_lab.bench.system import machine_facts, peak_rss_mb
from infra_lab.bench.workload import BenchRequest
from infra_lab.models.config import ModelConfig

Notify = Callable[[str], None]


def measure_latency(
    engine: OfflineEngine,
    requests: Sequence[BenchRequest],
    steps: StepRecorder,
    notify: Notify = lambda message: None,
    clock: Clock = time.perf_counter,
) -> list[StreamRun]:
    """Runs the requests one after another, each with the gaps between its tokens."""
    runs = []
    for turn, request in enumerate(requests):
        steps.clear()
        run = run_stream(engine, request, clock)
        run = replace(run, inter_token_s=steps.inter_token_s(run.output_tokens))
        runs.append(run)
        notify(f"run {turn + 1} of {len(requests)}: {run.output_tokens_per_s:.1f} tokens/s")
    return runs


def latency_report(
    model: str,
    config: ModelConfig,
    requests: Sequence[BenchRequest],
    settings: EngineSettings,
    runs: Sequence[StreamRun],
) -> dict[str, Any]:
    """Everything about a measurement as one JSON-ready object; the figures come first."""
    return {
        **stream_figures(runs),
        "prompt_tokens": requests[0].prompt_len,
        "peak_rss_mb": peak_rss_mb(),
        "model": model,
        "dtype": effective_dtype(settings, config),
        "threads": arithmetic_threads(),
        "engine": settings.described(),
        "machine": machine_facts(),
    }
