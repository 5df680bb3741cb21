"""Checks many problems at once: their folders and the records of their syntax-tree mutants."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra_lab.practice.catalog import load
from infra_lab.practice.folder_check import FolderReport, Tally, check_folder
from infra_lab.practice.mutation_record import MutationRecord, check_record
from infra_lab.practice.problem import ProblemError
from infra_lab.practice.sandbox import Sandbox

WORKERS = 2
PARTS = ("mutants", "accepted", "starters", "ast_mutants")
Notify = Callable[[str, str], None]  # the slug, and what is being looked at; "" at the end


@dataclass(slots=True)
class ProblemReport:
    """Everything that is known of one problem; `folder` is None where it does not load."""

    slug: str
    folder: FolderReport | None = None
    record: MutationRecord | None = None
    faults: list[str] = field(default_factory=list)

    def tally(self, part: str) -> Tally:
        """One of PARTS. Wrong solutions that are made for every problem alike count as mutants."""
        if part == "ast_mutants":
            return (
                Tally(self.record.justified, self.record.total)
                if self.record is not None
                else Tally()
            )
        if self.folder is None:
            return Tally()
        tally: Tally = getattr(self.folder, part)
        if part == "mutants":
            generic = self.folder.generic
            return Tally(tally.ok + generic.ok, tally.total + generic.total)
        return tally

    def as_dict(self) -> dict[str, Any]:
        return {
            **{part: _counts(self.tally(part)) for part in PARTS},
            "kills": self.folder.kills if self.folder else {},
            "survivors": self.record.survivors if self.record else [],
            "faults": self.faults,
        }


@dataclass(slots=True)
class CatalogReport:
    """The reports of all problems that were checked, by slug."""

    problems: list[ProblemReport]
    faults: list[str]

    def tally(self, part: str) -> Tally:
        tallies = [problem.tally(part) for problem in self.problems]
        return Tally(sum(one.ok for one in tallies), sum(one.total for one in tallies))

    @property
    def all_faults(self) -> list[str]:
        named = [f"{one.slug}: {fault}" for one in self.problems for fault in one.faults]
        return [*self.faults, *named]

    def as_dict(self) -> dict[str, Any]:
        return {
            **{part: _counts(self.tally(part)) for part in PARTS},
            "faults": self.all_faults,
            "problems": {problem.slug: problem.as_dict() for problem in self.problems},
        }


def check_problems(
    slugs: Sequence[str],
    root: Path | None = None,
    notify: Notify = lambda slug, text: None,
    workers: int = WORKERS,
) -> CatalogReport:
    """Checks each in turn, `workers` at a time, each worker with a grading process of its own.

    Raises UsageError for a slug that is none.
    """
    numbers: dict[int, str] = {}
    report = CatalogReport([], [])
    for slug in slugs:
        try:
            number = load(slug, root).number
        except ProblemError:
            continue  # reported below, with the others' faults
        if number in numbers:
            report.faults.append(f"{numbers[number]} and {slug} have the same number {number}")
        numbers.setdefault(number, slug)
    mine = threading.local()
    opened: list[Sandbox] = []

    def check(slug: str) -> ProblemReport:
        if not hasattr(mine, "sandbox"):
            mine.sandbox = Sandbox()
            opened.append(mine.sandbox)
        result = check_problem(slug, mine.sandbox, root, lambda text: notify(slug, text))
        notify(slug, "")
        return result

    try:
        with ThreadPoolExecutor(workers) as pool:
            report.problems = list(pool.map(check, slugs))
    finally:
        for sandbox in opened:
            sandbox.close()
    return report


def check_problem(
    slug: str,
    sandbox: Sandbox,
    root: Path | None = None,
    notify: Callable[[str], None] = lambda text: None,
) -> ProblemReport:
    """Everything of one problem. Raises UsageError for a slug that is none."""
    report = ProblemReport(slug)
    try:
        problem = load(slug, root)
    except ProblemError as error:
        report.faults.append(str(error))
        return report
    report.folder = check_folder(problem, sandbox, notify)
    report.record, faults = check_record(problem)
    report.faults += [*report.folder.all_faults, *faults]
    return report


def _counts(tally: Tally) -> dict[str, int]:
    return {"ok": tally.ok, "total": tally.total}
