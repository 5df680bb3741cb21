"""Our engine beside others: the same token ids, in turn, each run in a fresh process.

Answers "how do you compare two engines honestly?": one workload for all, A B A B rather than
A A B B (so that a machine that slows down slows both), every run in a new process, ratios of
runs that stood next to each other, and the median of those.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from infra_lab.bench.child import ChildFailedError, run_child
from infra_lab.bench.runs import BatchRun, StreamRun
from infra_lab.bench.workload import Job, save_job

OURS = "infra-lab"

Notify = Callable[[str], None]
RunEngine = Callable[["Contender", Path], "EngineRun"]


@dataclass(frozen=True, slots=True)
class Contender:
    """An engine that takes part: its name, the command that runs it, the model it is given."""

    name: str
    command: tuple[str, ...]
    model: str


@dataclass(frozen=True, slots=True)
class EngineRun:
    """What one process of one engine measured."""

    batch: BatchRun
    streams: tuple[StreamRun, ...]
    peak_rss_mb: float
    versions: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def single_stream_tokens_per_s(self) -> float:
        return median(stream.output_tokens_per_s for stream in self.streams)


@dataclass(slots=True)
class Comparison:
    """All runs by engine, in the order they were made, and why an engine has none."""

    runs: dict[str, list[EngineRun]]
    failures: dict[str, str] = field(default_factory=dict)


def compare(
    contenders: Sequence[Contender],
    job: Job,
    repeats: int,
    run_engine: RunEngine,
    notify: Notify = lambda message: None,
) -> Comparison:
    """Runs every contender in turn, `repeats` rounds of it.

    One that fails is left out of the rounds that remain and named in `failures`; the others
    go on.
    """
    result = Comparison({contender.name: [] for contender in contenders})
    with tempfile.TemporaryDirectory(prefix="infra-lab-bench-") as folder:
        job_file = Path(folder) / "job.json"
        save_job(job, job_file)
        for turn in range(repeats):
            for contender in contenders:
                if contender.name in result.failures:
                    continue
                notify(f"round {turn + 1} of {repeats}: {contender.name} ...")
                try:
                    run = run_engine(contender, job_file)
                    _require_whole(run, job)
                except ChildFailedError as failure:
                    result.failures[contender.name] = str(failure)
                    notify(f"{contender.name} failed")
                    continue
                result.runs[contender.name].append(run)
                notify(
                    f"round {turn + 1} of {repeats}: {contender.name}: "
                    f"{run.batch.output_tokens_per_s:.1f} output tokens/s, single stream "
                    f"{run.single_stream_tokens_per_s:.1f}"
                )
    return result


def run_in_child(contender: Contender, job_file: Path, timeout_s: float) -> EngineRun:
    """One run in a fresh process; raises ChildFailedError with the last lines it wrote."""
    command = [*contender.command, str(job_file), contender.model]
    output = run_child(command, timeout_s)
    return parse_result(output)


def parse_result(output: str) -> EngineRun:
    """Reads the JSON line that a runner prints last; raises ChildFailedError for anything else."""
    try:
        raw = json.loads(output.strip().splitlines()[-1])
        return EngineRun(
            batch=BatchRun(raw["elapsed_s"], raw["prompt_tokens"], raw["output_tokens"]),
            streams=tuple(
                StreamRun(item["ttft_s"], item["latency_s"], item["output_tokens"])
                for item in raw["single_stream"]
            ),
            peak_rss_mb=float(raw["peak_rss_mb"]),
            versions=raw.get("versions", {}),
            settings=raw.get("settings", {}),
        )
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise ChildFailedError(
            f"it printed no result ({error!r}), but: {output[-300:]!r}"
        ) from error


def _require_whole(run: EngineRun, job: Job) -> None:
    """A run that produced another number of tokens ran another workload."""
    wanted = sum(request.output_len for request in job.requests)
    if run.batch.output_tokens != wanted:
        raise ChildFailedError(f"it produced {run.batch.output_tokens} output tokens, not {wanted}")
