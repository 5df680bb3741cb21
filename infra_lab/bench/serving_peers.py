"""Our server beside another, under one load: in turn, each run against a fresh process.

Answers "how do you compare two servers honestly?": as in bench.peers, A B A B on one machine, the
same requests with the same weights in the same precision, ratios of runs that stood next to each
other, and the median of those. The client is the same and takes its share of the cores from both.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from infra_lab.bench.engine import MeasurementError
from infra_lab.bench.peers import OURS
from infra_lab.bench.server_process import serving
from infra_lab.bench.serving_plan import ServingPlan
from infra_lab.bench.serving_report import run_figures
from infra_lab.bench.system import machine_facts
from infra_lab.errors import UsageError

START_TIMEOUT_S = 600.0  # vLLM compiles its graph on a first start
SHORTEST_OUTPUT = 3  # tokens; fewer have no two gaps between them
Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ServerSetup:
    """What both servers are set up with; the report names all of it.

    Attributes:
        threads: for arithmetic.
        kv_cache_mb: memory of the KV pool, in units of 10^6 bytes; vLLM's own choice is nearly all
            there is.
    """

    dtype: str
    max_num_seqs: int
    max_model_len: int
    max_num_batched_tokens: int
    threads: int
    kv_cache_mb: int = 1000


@dataclass(frozen=True, slots=True)
class ServerContender:
    """A server that takes part: `command` takes --host and --port behind it, requests name
    `model`; `environment` is added to this process's own."""

    name: str
    command: tuple[str, ...]
    model: str
    environment: Mapping[str, str] = field(default_factory=dict)


def require_vllm(python: str) -> None:
    """Raises UsageError unless this Python runs and has vllm: found out before minutes go by."""
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    try:
        looked = subprocess.run([python, "-c", look], capture_output=True, timeout=60)
    except subprocess.TimeoutExpired:
        raise UsageError(f"--python {python}: does not start within a minute") from None
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"--python {python}: cannot be run: {reason}") from None
    if looked.returncode:
        raise UsageError(f"--python {python}: has no vllm; install it there, or name another")


def own_server(folder: Path, setup: ServerSetup) -> ServerContender:
    command = (
        sys.executable, "-m", "infra_lab", "serve", "--model", str(folder),
        "--kv-cache-mb", str(setup.kv_cache_mb), "--log-level", "error", *_sizes(setup),
    )  # fmt: skip
    return ServerContender(OURS, command, str(folder), {"OMP_NUM_THREADS": str(setup.threads)})


def vllm_server(python: str, folder: Path, setup: ServerSetup) -> ServerContender:
    script = Path(__file__).parent / "peer_runners" / "vllm_server.py"
    kv_cache_bytes = setup.kv_cache_mb * 10**6
    command = (
        python, str(script), str(folder), str(setup.threads),
        "--kv-cache-memory-bytes", str(kv_cache_bytes), *_sizes(setup),
    )  # fmt: skip
    return ServerContender("vllm", command, str(folder))


def _sizes(setup: ServerSetup) -> tuple[str, ...]:
    """The options that both call alike."""
    return (
        "--dtype", setup.dtype, "--max-num-seqs", str(setup.max_num_seqs),
        "--max-model-len", str(setup.max_model_len),
        "--max-num-batched-tokens", str(setup.max_num_batched_tokens),
    )  # fmt: skip


def compare_servers(
    contenders: Sequence[ServerContender],
    plan: ServingPlan,
    repeats: int,
    notify: Notify = lambda message: None,
) -> dict[str, list[dict[str, Any]]]:
    """The figures of each contender's runs, one a round; a run sends what the plan says, after a
    short one of other requests that warms the server up.

    Raises ChildFailedError for a server that does not start, EndpointError for one that does not
    answer, MeasurementError for a round in which it did not serve all or gave nothing to compare.
    """
    warm_up = replace(plan, num_requests=min(8, plan.num_requests), seed=plan.seed + 1_000_000)
    found: dict[str, list[dict[str, Any]]] = {one.name: [] for one in contenders}
    for turn in range(repeats):
        own_plan = replace(plan, seed=plan.seed + turn)
        for one in contenders:
            notify(f"round {turn + 1} of {repeats}: {one.name} ...")
            with serving(one.command, START_TIMEOUT_S, one.environment) as url:
                asyncio.run(warm_up.run(url, one.model))
                (run,) = asyncio.run(own_plan.run(url, one.model))
            figures = run_figures(run, own_plan.arrivals[0], plan.slo)
            _require_measured(one.name, figures)
            found[one.name].append(figures)
            notify(
                f"round {turn + 1} of {repeats}: {one.name}: "
                f"{figures['output_tokens_per_s']:.1f} output tokens/s, ITL P99 "
                f"{figures['itl_ms']['p99']:.1f} ms"
            )
    return found


def comparison_report(
    plan: ServingPlan,
    found: dict[str, list[dict[str, Any]]],
    model: str,
    setup: ServerSetup,
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
    return {
        "servers": servers,
        "model": model,
        **described,
        **asdict(setup),
        "machine": machine_facts(),
    }


_FIGURES = ("output_tokens_per_s", "ttft_ms.median", "itl_ms.median", "itl_ms.p99", "tpot_ms.p99")


def _require_measured(name: str, figures: dict[str, Any]) -> None:
    """That a ratio can be taken of every figure, and that it is of the whole workload."""
    if figures["failed"]:
        reason, count = next(iter(figures["failed"].items()))
        raise MeasurementError(
            f"{name} served {figures['completed']} of {figures['requests']} requests, so that "
            f"what it did was less than was asked; {count} failed: {reason}"
        )
    for key in _FIGURES:
        try:
            value = _figure(figures, key)
        except TypeError:  # None: nothing of this kind was seen
            value = 0.0
        if value <= 0:
            raise MeasurementError(
                f"{name} gave nothing from which {key} could be had, so that there is no ratio: "
                f"ask for longer answers"
            )


def _figure(run: dict[str, Any], key: str) -> float:
    name, _, statistic = key.partition(".")
    return float(run[name][statistic] if statistic else run[name])


def _median(runs: Sequence[dict[str, Any]], key: str) -> float:
    return median(_figure(run, key) for run in runs)
