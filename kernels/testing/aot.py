"""Compiles every kernel for real GPUs, with none at hand, and judges the machine code.

    python -m kernels.testing.aot             the table, and what is wrong with it
    python -m kernels.testing.aot --json      the rows as a list
    python -m kernels.testing.aot --update    takes improvements into quality.json
    python -m kernels.testing.aot --kernel rms_norm --arch sm_90

Ends with 0 if all is well, 1 if a limit is broken or a row is worse than in quality.json, 2 if
this platform's Triton lacks a tool: what was not compiled has not passed. Results are cached by
a kernel's source and what it imports, so a second run compiles only what changed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernels.testing import gate
from kernels.testing.architectures import ARCHITECTURES
from kernels.testing.cases import AotCase, declared_cases
from kernels.testing.compiling import Job, ResultCache, measure, triton_version
from kernels.testing.gate import QualityTable, Row

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
    declared = declared_cases()
    jobs = [
        Job(place, case, arch)
        for place, case in declared.items()
        for arch in case.architectures
        if options.kernel in (None, case.kernel) and options.arch in (None, arch)
    ]
    if not jobs:
        print(f"error: {_why_nothing(options.kernel, declared.values())}", file=sys.stderr)
        return 1
    table = QualityTable.read()
    same_triton = table.triton in ("", triton_version())
    if options.update and not same_triton:
        if options.kernel or options.arch:
            print(
                f"quality.json is of Triton {table.triton}, this is {triton_version()}: update "
                "all of it, without --kernel and --arch",
                file=sys.stderr,
            )
            return 1
        table, same_triton = QualityTable(), True
    cache = None if options.no_cache else ResultCache.open()
    rows = measure(jobs, options.workers, cache, _Progress(len(jobs)))
    if options.update:
        every = [
            (case.kernel, case.config, arch)
            for case in declared.values()
            for arch in case.architectures
        ]
        table = gate.without_gone(gate.ratcheted(table, rows, triton_version()), every)
        table.write()
    verdict = judge(jobs, rows, table, same_triton=same_triton)
    print(json.dumps(rows, indent=2) if options.json else render(rows))
    _report(verdict, table, same_triton)
    return verdict.exit_status


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
    words = {"kernel", "config", "arch", "mma"}
    shown = []
    for line in lines:
        whole = len(line) == len(COLUMNS)
        cells = [
            cell.ljust(width) if name in words or not whole else cell.rjust(width)
            for cell, width, (name, _) in zip(line, widths, COLUMNS, strict=False)
        ]
        shown.append("  ".join(cells).rstrip())
    return "\n".join(shown)


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


def _why_nothing(kernel: str, cases: Iterable[AotCase]) -> str:
    """What to say where neither name was wrong, or the kernel's was."""
    cases = list(cases)
    compiled_for = sorted(
        {arch for case in cases if case.kernel == kernel for arch in case.architectures}
    )
    if compiled_for:
        return (
            f"no case of kernel {kernel!r} on that architecture, only on {', '.join(compiled_for)}"
        )
    names = ", ".join(sorted({case.kernel for case in cases}))
    return f"no case of kernel {kernel!r}: there are {names}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m kernels.testing.aot",
        description="Compiles the kernels for real GPUs and judges the machine code.",
        epilog="Example: python -m kernels.testing.aot --kernel paged_attention --arch sm_90",
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
