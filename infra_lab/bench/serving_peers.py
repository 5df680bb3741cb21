"""Our server beside another, under one load: in turn, each run against a fresh process.

Answers "how do you compare two servers honestly?": as in bench.peers, A B A B on one machine, the
same requests with the same weights in the same precision, ratios of runs that stood next to each
other, and the median of those. The client is the same and takes its share of the cores from both.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from infra_lab.bench.peers import OURS
from infra_lab.bench.server_process import serving
from infra_lab.bench.serving_plan import ServingPlan
from infra_lab.bench.serving_report import run_figures
from infra_lab.bench.system import machine_facts

KV_CACHE_BYTES = 1 << 30  # as in bench.workload; vLLM's own choice is nearly all memory
START_TIMEOUT_S = 600.0  # vLLM compiles its graph on a first start
Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ServerContender:
    """A server that takes part: `command` takes --host and --port behind it, requests name
    `model`."""

    name: str
    command: tuple[str, ...]
    model: str


def own_server(folder: Path, dtype: str, max_num_seqs: int) -> ServerContender:
    command = (
        sys.executable, "-m", "infra_lab", "serve", "--model", str(folder), "--dtype", dtype,
        "--max-num-seqs", str(max_num_seqs), "--log-level", "error",
    )  # fmt: skip
    return ServerContender(OURS, command, str(folder))


def vllm_server(
    python: str,
    folder: Path,
    dtype: str,
    max_num_seqs: int,
    max_model_len: int,
    threads: int | None = None,
) -> ServerContender:
    """threads: None is one for every core."""
    script = Path(__file__).parent / "peer_runners" / "vllm_server.py"
    command = (
        python, str(script), str(folder), "all" if threads is None else str(threads),
        "--dtype", dtype, "--max-num-seqs", str(max_num_seqs),
        "--max-model-len", str(max_model_len), "--kv-cache-memory-bytes", str(KV_CACHE_BYTES),
    )  # fmt: skip
    return ServerContender("vllm", command, str(folder))


def compare_servers(
    contenders: Sequence[ServerContender],
    plan: ServingPlan,
    repeats: int,
    notify: Notify = lambda message: None,
) -> dict[str, list[dict[str, Any]]]:
    """The figures of each contender's runs, one a round; a run sends what the plan says, after a
    short one of other requests that warms the server up.

    Raises ChildFailedError for a server that does not start, EndpointError for one that does not
    answer.
    """
    warm_up = replace(plan, num_requests=min(8, plan.num_requests), seed=plan.seed + 1_000_000)
    found: dict[str, list[dict[str, Any]]] = {one.name: [] for one in contenders}
    for turn in range(repeats):
        own_plan = replace(plan, seed=plan.seed + turn)
        for one in contenders:
            notify(f"round {turn + 1} of {repeats}: {one.name} ...")
            with serving(one.command, timeout_s=START_TIMEOUT_S) as url:
                asyncio.run(warm_up.run(url, one.model))
                (run,) = asyncio.run(own_plan.run(url, one.model))
            figures = run_figures(run, own_plan.arrivals[0], plan.slo)
            found[one.name].append(figures)
            itl_ms = figures["itl_ms"]
            notify(
                f"round {turn + 1} of {repeats}: {one.name}: "
                f"{figures['output_tokens_per_s']:.1f} output tokens/s, ITL P99 "
                + ("-" if itl_ms is None else f"{itl_ms['p99']:.1f} ms")
                + f", {figures['completed']} of {figures['requests']} served"
            )
    return found


def comparison_report(
    plan: ServingPlan, found: dict[str, list[dict[str, Any]]], settings: dict[str, Any]
) -> dict[str, Any]:
    """Medians over rounds for each server, and ours over each other's, round by round."""
    ours = found[OURS]
    servers = {}
    for name, runs in found.items():
        servers[name] = {"rounds": runs, **{key: _median(runs, key) for key in _FIGURES}}
        if name != OURS:
            servers[name]["ours_over_it"] = {
                key: median(
                    _figure(mine, key) / _figure(its, key)
                    for mine, its in zip(ours, runs, strict=True)
                )
                for key in _FIGURES
            }
    described = {
        "num_requests": plan.num_requests,
        "prompt_len": plan.prompt_len,
        "output_len": plan.output_len,
        "max_concurrency": plan.max_concurrency,
        "seed": plan.seed,
    }
    return {"servers": servers, **described, **settings, "machine": machine_facts()}


_FIGURES = ("output_tokens_per_s", "ttft_ms.median", "itl_ms.median", "itl_ms.p99", "tpot_ms.p99")


def _figure(run: dict[str, Any], key: str) -> float:
    name, _, statistic = key.partition(".")
    return float(run[name][statistic] if statistic else run[name])


def _median(runs: Sequence[dict[str, Any]], key: str) -> float:
    return median(_figure(run, key) for run in runs)
