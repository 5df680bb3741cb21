"""A saved workload handed to a peer, and what came of it as one line of JSON.

Stands alone beside the runners, under the Python of whichever peer: it imports nothing of infra_lab
and nothing that is not Python's own, but for psutil on Windows.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Requests = list[dict[str, Any]]
Generate = Callable[[Requests], tuple[float, int]]
"""Serves requests as one batch: seconds, and output tokens."""


def given_job() -> tuple[dict[str, Any], str]:
    """The job and the model that the command line names: JOB.json MODEL."""
    return json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), sys.argv[2]


def print_result(run: Callable[[dict[str, Any], str], dict[str, Any]]) -> None:
    """Runs the given job and prints what it gives as one line."""
    # Libraries and their workers may write to file descriptor 1: keep it for the one JSON line.
    stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    print(json.dumps(run(*given_job())), file=stdout, flush=True)


def in_batches(generate: Generate, job: dict[str, Any]) -> tuple[float, int]:
    """The job's batch, as many requests at once as it allows, for engines that queue none."""
    elapsed, output_tokens = 0.0, 0
    for start in range(0, len(job["requests"]), job["max_num_seqs"]):
        seconds, tokens = generate(job["requests"][start : start + job["max_num_seqs"]])
        elapsed += seconds
        output_tokens += tokens
    return elapsed, output_tokens


def figures(
    generate: Generate, job: dict[str, Any], elapsed: float, output_tokens: int
) -> dict[str, Any]:
    """The figures of the batch that has run, and of the single streams, which run now; TTFT is the
    latency of a request of one token."""
    streams = []
    for item in job["single_stream"]:
        ttft, _ = generate([{**item, "output_len": 1}])
        latency, tokens = generate([item])
        streams.append({"ttft_s": ttft, "latency_s": latency, "output_tokens": tokens})
    prompt_tokens = sum(len(item["prompt_token_ids"]) for item in job["requests"])
    return {
        "elapsed_s": elapsed,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "output_tokens_per_s": output_tokens / elapsed,
        "total_tokens_per_s": (prompt_tokens + output_tokens) / elapsed,
        "single_stream": streams,
    }


def peak_rss_mb() -> float:
    """Most resident memory this process has held, in MiB."""
    if sys.platform == "win32":
        import psutil

        return float(psutil.Process().memory_info().peak_wset) / 2**20
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # The unit of ru_maxrss is the system's own: bytes on macOS, KiB elsewhere.
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def usable_cores() -> int:
    """Cores that this process may run on, which a container can make fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
