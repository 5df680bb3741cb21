"""Runs a saved workload through vLLM, under the Python that has vLLM, and prints JSON.

Stands alone, beside saved_job.py: it imports nothing of infra_lab. Usage: `python vllm_runner.py
JOB.json MODEL`. On a CPU it uses what makes vLLM fastest: `torch.compile` on, one OpenMP thread for
every core (vLLM would keep one back for a server that an offline run does not have), and Intel's
OpenMP and tcmalloc preloaded where they are installed, as vLLM's own documentation advises.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import saved_job

PRELOADED = "INFRA_LAB_BENCH_PRELOADED"
LIBRARY_FOLDERS = (
    f"{sys.prefix}/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/local/lib",
)


def preload_and_restart() -> None:
    """Starts this script anew with the advised libraries in LD_PRELOAD (Linux only)."""
    if not sys.platform.startswith("linux") or os.environ.get(PRELOADED):
        return
    chosen = [item for item in os.environ.get("LD_PRELOAD", "").split(":") if item]
    for stem in ("libtcmalloc", "libiomp5"):
        found = find_library(stem)
        if found and not any(stem in item for item in chosen):
            chosen.append(found)
    os.environ["LD_PRELOAD"] = ":".join(chosen)
    os.environ[PRELOADED] = "1"
    os.execv(sys.executable, [sys.executable, *sys.argv])


def find_library(stem: str) -> str | None:
    for folder in LIBRARY_FOLDERS:
        for pattern in (f"{stem}_minimal.so*", f"{stem}.so*"):
            if names := sorted(map(str, Path(folder).glob(pattern))):
                return names[0]
    return None


def set_environment(threads: int | None) -> None:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))[:threads]
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cores)))


def peak_rss_mb() -> float:
    """The sum of the peak resident memory of this process and its workers (Linux: exact peaks;
    elsewhere what they hold now). Libraries shared by two processes count in both."""
    import psutil

    me = psutil.Process()
    total = 0
    for process in (me, *me.children(recursive=True)):
        try:
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
            peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
            total += int(peak.split()[1]) * 1024
        except (OSError, StopIteration):
            total += process.memory_info().rss
    return total / 2**20


def main() -> None:
    preload_and_restart()
    set_environment(saved_job.given_job()[0]["threads"])
    saved_job.print_result(run)


def run(job: dict[str, Any], model: str) -> dict[str, Any]:
    import torch
    import vllm

    llm = vllm.LLM(
        model=model,
        dtype=job["dtype"],
        max_model_len=job["max_model_len"],
        max_num_seqs=job["max_num_seqs"],
        kv_cache_memory_bytes=job["kv_cache_bytes"],
        enable_prefix_caching=False,
        seed=0,
    )

    def generate(requests: list[dict[str, Any]]) -> tuple[float, int]:
        params = [
            vllm.SamplingParams(
                temperature=0.0,
                ignore_eos=True,
                max_tokens=item["output_len"],
                detokenize=False,
            )
            for item in requests
        ]
        prompts = [{"prompt_token_ids": item["prompt_token_ids"]} for item in requests]
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        elapsed = time.perf_counter() - start
        return elapsed, sum(len(output.outputs[0].token_ids) for output in outputs)

    generate([{**item, "output_len": 4} for item in job["requests"]])
    elapsed, output_tokens = generate(job["requests"])
    return {
        "engine": "vllm",
        **saved_job.figures(generate, job, elapsed, output_tokens),
        "peak_rss_mb": peak_rss_mb(),
        "versions": {"vllm": vllm.__version__, "torch": torch.__version__},
        "settings": {
            "preload": os.environ.get("LD_PRELOAD", ""),
            "threads_bind": os.environ.get("VLLM_CPU_OMP_THREADS_BIND", ""),
        },
    }


if __name__ == "__main__":
    main()
