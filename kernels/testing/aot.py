"""Compiles every kernel for real GPUs, with none at hand, and judges the machine code.

    python -m kernels.testing.aot             the table, and what is wrong with it
    python -m kernels.testing.aot --json      the rows as a list
    python -m kernels.testing.aot --update    takes improvements into quality.json
    python -m kernels.testing.aot --kernel rms_norm --arch sm_90

Ends with 0 if all is well, 1 if a limit is broken or a row is worse than in quality.json, 2 if
this platform's Triton lacks a tool: what was not compiled has not passed. Results are cached by
the source of all kernels, so a second run compiles nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from kernels.testing import gate
from kernels.testing.architectures import ARCHITECTURES
from kernels.testing.cases import AotCase, CaseId, declared_cases
from kernels.testing.gate import QualityTable, Row

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = (
    ("kernel", "kernel"),
    ("config", "config"),
    ("arch", "arch"),
    ("registers", "regs"),
    ("spill_bytes", "spill"),
    ("stack_bytes", "stack"),
    ("shared_bytes", "shared"),
    ("occupancy", "occup."),
    ("mma", "mma"),
    ("mma_count", "n"),
    ("async_copies", "cp.async"),
    ("bulk_copies", "bulk"),
    ("load_bits", "load"),
    ("store_bits", "store"),
)


@dataclass(frozen=True)
class Job:
    """A case to compile for an architecture."""

    id: CaseId
    case: AotCase
    arch: str

    @property
    def name(self) -> str:
        return f"{self.case.kernel}, {self.case.config}, {self.arch}"


@dataclass
class Verdict:
    """Rows that broke limits, got worse, or are not in the table; and what could not be tried."""

    broken: list[str] = field(default_factory=list)
    worse: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    untried: list[str] = field(default_factory=list)

    @property
    def exit_status(self) -> int:
        if self.broken or self.worse or self.unknown:
            return 1
        return 2 if self.untried else 0


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    jobs = [
        Job(id, case, arch)
        for id, case in declared_cases().items()
        for arch in case.architectures
        if options.kernel in (None, case.kernel) and options.arch in (None, arch)
    ]
    if not jobs:
        print(f"no case of kernel {options.kernel!r} on {options.arch!r}", file=sys.stderr)
        return 1
    cache = None if options.no_cache else ResultCache.open()
    rows = measure(jobs, options.workers, cache, _Progress(len(jobs)))
    table = QualityTable.read()
    same_triton = table.triton in ("", triton_version())
    if options.update:
        if not same_triton:
            print(f"quality.json is of Triton {table.triton}: made anew", file=sys.stderr)
            table = QualityTable()
        every = [
            (case.kernel, case.config, arch)
            for case in declared_cases().values()
            for arch in case.architectures
        ]
        table = gate.without_gone(gate.ratcheted(table, rows, triton_version()), every)
        table.write()
        same_triton = True
    verdict = judge(jobs, rows, table, same_triton=same_triton)
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        print(render(rows))
    _report(verdict, table, same_triton)
    return verdict.exit_status


def measure(
    jobs: Sequence[Job],
    workers: int = 2,
    cache: ResultCache | None = None,
    done: Callable[[Job], None] = lambda job: None,
) -> list[Row]:
    """A row for every job, in their order; compiled in processes of their own."""
    pool: SimpleQueue[_Worker] = SimpleQueue()
    for _ in range(workers):
        pool.put(_Worker())

    def one(job: Job) -> Row:
        row = cache.get(job) if cache else None
        if row is None:
            worker = pool.get()
            try:
                row = worker.measure(job)
            finally:
                pool.put(worker)
            if cache and row["status"] == "ok":
                cache.put(job, row)
        done(job)
        return row

    try:
        with ThreadPoolExecutor(workers) as threads:
            return list(threads.map(one, jobs))
    finally:
        while not pool.empty():
            pool.get().close()


def judge(
    jobs: Sequence[Job], rows: Sequence[Row], table: QualityTable, *, same_triton: bool = True
) -> Verdict:
    """Rows against the limits, and against the table if the same Triton made it."""
    verdict = Verdict()
    for job, row in zip(jobs, rows, strict=True):
        if row["status"] == "no tool":
            verdict.untried.append(f"{job.name}: {row['reason']}")
            continue
        verdict.broken += [f"{job.name}: {what}" for what in gate.broken_limits(row, job.case)]
        old = table.rows.get(gate.key_of(row))
        if row["status"] != "ok" or not same_triton:
            continue
        if old is None:
            verdict.unknown.append(job.name)
        else:
            verdict.worse += [f"{job.name}: {what}" for what in gate.regressions(row, old)]
    return verdict


def render(rows: Iterable[Row]) -> str:
    """The rows as a table for a terminal."""
    lines = [[title for _, title in COLUMNS]]
    for row in rows:
        if row["status"] == "ok":
            lines.append([_cell(row[name]) for name, _ in COLUMNS])
        else:
            first = str(row["reason"]).splitlines()[0]
            lines.append(
                [*(str(row[name]) for name, _ in COLUMNS[:3]), f"{row['status']}: {first}"]
            )
    widths = [
        max(len(line[column]) for line in lines if len(line) == len(COLUMNS) or column < 3)
        for column in range(len(COLUMNS))
    ]
    numeric = {name for name, _ in COLUMNS} - {"kernel", "config", "arch", "mma"}
    shown = []
    for line in lines:
        cells = [
            cell.rjust(width)
            if name in numeric and len(line) == len(COLUMNS)
            else cell.ljust(width)
            for cell, width, (name, _) in zip(line, widths, COLUMNS, strict=False)
        ]
        shown.append("  ".join(cells).rstrip())
    return "\n".join(shown)


def triton_version() -> str:
    from importlib.metadata import version

    return version("triton")


class ResultCache:
    """Rows by a hash of everything that they depend on: kernels, versions, tools."""

    def __init__(self, folder: Path, source_hash: str) -> None:
        self.folder = folder
        self.source_hash = source_hash

    @classmethod
    def open(cls) -> ResultCache:
        """In $INFRA_LAB_CACHE, or the user's cache folder."""
        base = os.environ.get("INFRA_LAB_CACHE") or Path(
            os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "infra-lab"
        )
        return cls(Path(base) / "aot", _source_hash())

    def get(self, job: Job) -> Row | None:
        try:
            row: Row = json.loads(self._path(job).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return row

    def put(self, job: Job, row: Row) -> None:
        path = self._path(job)
        path.parent.mkdir(parents=True, exist_ok=True)
        half = path.with_suffix(f".{os.getpid()}")
        half.write_text(json.dumps(row), encoding="utf-8")
        half.replace(path)  # whole or not at all, whoever else writes

    def _path(self, job: Job) -> Path:
        case = job.case
        parts = [
            self.source_hash, job.name, case.function.__module__, case.function.__name__,
            sorted(case.arguments.items()), sorted(map(repr, case.constants.items())),
            case.num_warps, case.num_stages, sorted(case.any_alignment),
        ]  # fmt: skip
        return self.folder / f"{hashlib.sha256(repr(parts).encode()).hexdigest()}.json"


class _Worker:
    """A process that compiles, started when first needed and again if it dies."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def measure(self, job: Job) -> Row:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        request = {"module": job.id.module, "index": job.id.index, "arch": job.arch}
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if answer:
            row: Row = json.loads(answer)
            return row
        status = process.wait()
        self._process = None
        name = {"kernel": job.case.kernel, "config": job.case.config, "arch": job.arch}
        return {**name, "status": "failed", "reason": f"the compiler's process ended with {status}"}

    def close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
            environment["PYTHONPATH"] = os.pathsep.join(
                part for part in (str(ROOT), environment.get("PYTHONPATH")) if part
            )
            # Stated, because its default changes in Triton 3.10.
            environment.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kernels.testing.aot_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment,
            )
        return self._process


class _Progress:
    """One line on a terminal, rewritten; nothing where standard error is a file."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.count = 0

    def __call__(self, job: Job) -> None:
        self.count += 1
        if sys.stderr.isatty():
            end = "\n" if self.count == self.total else ""
            line = f"[{self.count}/{self.total}] {job.name}"[:100]
            print(f"\r{line:<100}", end=end, file=sys.stderr, flush=True)


def _source_hash() -> str:
    """Of all kernels: one may call another's functions."""
    digest = hashlib.sha256(f"{triton_version()} {sys.version_info[:2]}".encode())
    for path in sorted(Path(__file__).resolve().parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    tools = {k: v for k, v in os.environ.items() if k.startswith(("TRITON_PTXAS", "PTXAS"))}
    digest.update(repr(sorted(tools.items())).encode())
    return digest.hexdigest()


def _cell(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _report(verdict: Verdict, table: QualityTable, same_triton: bool) -> None:
    if not same_triton:
        print(
            f"quality.json is of Triton {table.triton}, this is {triton_version()}: only the "
            "limits were checked",
            file=sys.stderr,
        )
    for title, lines in (
        ("broken limits", verdict.broken),
        ("worse than quality.json", verdict.worse),
        ("not in quality.json (--update takes them in)", verdict.unknown),
        ("not compiled", verdict.untried),
    ):
        for line in lines:
            print(f"{title}: {line}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m kernels.testing.aot",
        description="Compiles the kernels for real GPUs and judges the machine code.",
    )
    parser.add_argument("--kernel", help="only this one")
    parser.add_argument("--arch", choices=list(ARCHITECTURES), help="only for this one")
    parser.add_argument("--json", action="store_true", help="rows as a JSON list")
    parser.add_argument("--update", action="store_true", help="take improvements into quality.json")
    parser.add_argument("--no-cache", action="store_true", help="compile whatever is cached")
    parser.add_argument(
        "--workers", type=int, default=min(4, os.cpu_count() or 1), help="processes that compile"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
