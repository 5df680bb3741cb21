"""Runs a saved workload through our engine in a process of its own, and prints JSON.

The counterpart of `peer_runners`: `python -m infra_lab.bench.own_runner JOB.json MODEL`. It
measures exactly what they measure, TTFT as the latency of a one-token request included, so
that both sides of a ratio mean the same.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from infra_lab.bench.engine import (
    EngineSettings,
    OfflineEngine,
    arithmetic_threads,
    open_engine,
    run_batch,
)
from infra_lab.bench.system import installed_version, peak_rss_mb
from infra_lab.bench.throughput import warm_up
from infra_lab.bench.workload import BenchRequest, Job, load_job
from infra_lab.errors import InfraLabError


def run_job(engine: OfflineEngine, job: Job) -> dict[str, Any]:
    """The batch, then the single streams; the keys are those of every peer's runner."""
    warm_up(engine, job.requests)
    batch = run_batch(engine, job.requests)
    return {
        "engine": "infra-lab",
        "elapsed_s": batch.elapsed_s,
        "prompt_tokens": batch.prompt_tokens,
        "output_tokens": batch.output_tokens,
        "output_tokens_per_s": batch.output_tokens_per_s,
        "total_tokens_per_s": batch.total_tokens_per_s,
        "single_stream": [_single_stream(engine, item) for item in job.single_stream],
    }


def settings_of(job: Job) -> EngineSettings:
    return EngineSettings(
        dtype=job.dtype,
        threads=job.threads,
        max_model_len=job.max_model_len,
        max_num_seqs=job.max_num_seqs,
        kv_cache_bytes=job.kv_cache_bytes,
    )


def _single_stream(engine: OfflineEngine, item: BenchRequest) -> dict[str, Any]:
    ttft_s = run_batch(engine, [replace(item, output_len=1)]).elapsed_s
    whole = run_batch(engine, [item])
    return {
        "ttft_s": ttft_s,
        "latency_s": whole.elapsed_s,
        "output_tokens": whole.output_tokens,
    }


def main(arguments: Sequence[str]) -> int:
    job = load_job(Path(arguments[0]))
    # Libraries may write to file descriptor 1: keep it for the one JSON line.
    stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        result = run_job(open_engine(Path(arguments[1]), settings_of(job)), job)
    except InfraLabError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    result["peak_rss_mb"] = peak_rss_mb()
    versions = {name: installed_version(name) for name in ("infra-lab", "torch")}
    result["versions"] = {name: version for name, version in versions.items() if version}
    result["settings"] = {"threads": arithmetic_threads()}
    print(json.dumps(result), file=stdout, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
