"""Grades the graders once more: by every small change of every reference solution's syntax tree.

A mutant that passes shows a property the grader does not test, or is right after all and is
recorded with the reason in `equivalent.toml`.
"""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from infra_lab.practice.grade import Grade, Verdict
from infra_lab.practice.mutation_record import (
    EQUIVALENT,
    MutationRecord,
    all_mutants,
    digest_of,
    equivalent_entry,
    load_equivalent,
)
from infra_lab.practice.mutation_rules import Mutant
from infra_lab.practice.problem import Problem, ProblemError
from infra_lab.practice.sandbox import Sandbox

QUICK_EXAMPLES = 50  # what they leave alive is tried again with the usual number
QUICK_CALL_S, PATIENT_CALL_S = 1.0, 4.0
WORKERS = 2


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of one mutant. `fault` is set where the grader broke, which is no kill."""

    mutant: Mutant
    verdict: Verdict
    killer: str = ""
    fault: str = ""

    @property
    def is_killed(self) -> bool:
        return self.verdict not in (Verdict.PASSED, Verdict.GRADER_FAULT)


Notify = Callable[[Fate, int, int], None]  # the fate, how many are done, of how many


@dataclass(slots=True)
class MutationReport:
    """What became of all of them.

    Attributes:
        digest: of the files that decided it, as they were before the first mutant was graded.
        is_whole: every mutant of every approach was graded.
        needless: ids in equivalent.toml of mutants that were killed.
    """

    slug: str
    digest: str
    fates: list[Fate]
    equivalent: dict[str, str]
    is_whole: bool
    faults: list[str] = field(default_factory=list)

    @property
    def survivors(self) -> list[Mutant]:
        return [
            fate.mutant
            for fate in self.fates
            if not fate.is_killed and fate.mutant.id not in self.equivalent
        ]

    @property
    def needless(self) -> list[str]:
        killed = {fate.mutant.id for fate in self.fates if fate.is_killed}
        return [one for one in self.equivalent if one in killed]

    def record(self) -> MutationRecord:
        survivors = {mutant.id for mutant in self.survivors}
        killed = sum(fate.is_killed for fate in self.fates)
        rules: dict[str, list[int]] = {}
        for fate in self.fates:
            count = rules.setdefault(fate.mutant.rule, [0, 0])
            count[0] += fate.mutant.id not in survivors
            count[1] += 1
        return MutationRecord(
            digest=self.digest,
            total=len(self.fates),
            killed=killed,
            equivalent=len(self.fates) - killed - len(survivors),
            rules=dict(sorted(rules.items())),
            survivors=[mutant.id for mutant in self.survivors],
        )


def mutate(
    problem: Problem,
    approaches: Sequence[str] = (),
    notify: Notify = lambda fate, done, total: None,
    workers: int = WORKERS,
    stop_at: int | None = None,
) -> MutationReport:
    """Grades every mutant.

    Args:
        approaches: stems of the files to start from; all if empty.
        stop_at: end after so many survivors that are not known to be equivalent.

    Raises ProblemError where an approach does not itself pass: then nothing can be learned.
    """
    digest = digest_of(problem)
    mutants = all_mutants(problem, approaches)
    equivalent = load_equivalent(problem)
    _check_approaches(problem, {mutant.approach for mutant in mutants})
    report = MutationReport(problem.slug, digest, [], equivalent, is_whole=not approaches)
    stop = threading.Event()
    fates: dict[str, Fate] = {}
    with tempfile.TemporaryDirectory(prefix="infra-lab-") as folder:
        sandboxes = threading.local()
        opened: list[Sandbox] = []

        def grade_one(number: int, mutant: Mutant) -> Fate | None:
            if stop.is_set():
                return None
            if not hasattr(sandboxes, "mine"):
                sandboxes.mine = Sandbox()
                opened.append(sandboxes.mine)
            # A folder each: no file is ever replaced while a module of that name is loaded.
            path = Path(folder) / str(number) / f"{mutant.approach}.py"
            path.parent.mkdir()
            path.write_text(mutant.source, encoding="utf-8")
            return decide(problem, mutant, path, sandboxes.mine)

        try:
            with ThreadPoolExecutor(workers) as pool:
                jobs = [pool.submit(grade_one, *one) for one in enumerate(mutants)]
                try:
                    for job in as_completed(jobs):
                        fate = job.result()
                        if fate is None:
                            report.is_whole = False
                            continue
                        fates[fate.mutant.id] = fate
                        notify(fate, len(fates), len(mutants))
                        survivors = sum(
                            not one.is_killed and one.mutant.id not in equivalent
                            for one in fates.values()
                        )
                        if stop_at is not None and survivors >= stop_at:
                            stop.set()
                finally:
                    stop.set()
        finally:
            for sandbox in opened:
                sandbox.close()
    report.fates = [fates[mutant.id] for mutant in mutants if mutant.id in fates]
    report.faults = [
        f"{fate.mutant.id}: the grader broke: {fate.fault}" for fate in report.fates if fate.fault
    ]
    if digest_of(problem) != digest:
        report.is_whole = False
        report.faults.append("its files changed meanwhile: nobody knows what was graded")
    return report


def decide(problem: Problem, mutant: Mutant, path: Path, sandbox: Sandbox) -> Fate:
    """Quickly where the mutant is soon seen to be wrong; a slow machine neither kills a mutant
    nor lets one live."""
    quick_s = min(QUICK_CALL_S, problem.budget.call_s)
    grade = sandbox.grade(problem, path, stop_first=True, call_s=quick_s, examples=QUICK_EXAMPLES)
    if grade.verdict is Verdict.TIMED_OUT:
        killers = [test.name.split("[")[0] for test in grade.failed_tests()]
        grade = sandbox.grade(
            problem,
            path,
            tests=killers or None,
            stop_first=True,
            call_s=PATIENT_CALL_S,
            examples=QUICK_EXAMPLES,
        )
    if grade.verdict in (Verdict.PASSED, Verdict.GRADER_FAULT):
        grade = sandbox.grade(problem, path, stop_first=True)
    return _fate(mutant, grade)


def _fate(mutant: Mutant, grade: Grade) -> Fate:
    if grade.verdict is Verdict.GRADER_FAULT:
        lines = grade.fault.strip().splitlines()
        return Fate(mutant, grade.verdict, fault=lines[-1] if lines else "no words")
    killers = grade.failed_tests()
    return Fate(mutant, grade.verdict, killers[0].name if killers else "")


def _check_approaches(problem: Problem, stems: set[str]) -> None:
    with Sandbox() as sandbox:
        for path in problem.approaches():
            if path.stem not in stems:
                continue
            grade = sandbox.grade(problem, path, stop_first=True)
            if grade.verdict is not Verdict.PASSED:
                raise ProblemError(
                    f"{path.name} is {grade.verdict}, so its mutants show nothing: "
                    f"run `infra-lab dev check {problem.slug}` first"
                )


def describe(report: MutationReport) -> list[str]:
    """The report as lines of text: survivors with their diffs, then the sums."""
    lines = []
    for mutant in report.survivors:
        lines += [f"survives, {mutant.rule}, in {mutant.id.split(':')[0]}:"]
        lines += [f"    {line}" for line in mutant.diff.splitlines()]
    if report.survivors:
        lines += [
            "",
            f"Kill each by a better grader, or add it to {EQUIVALENT} with the reason:",
            "",
            *(equivalent_entry(mutant) for mutant in report.survivors),
        ]
    lines += [f"{EQUIVALENT}: this one is killed, take it out: {one}" for one in report.needless]
    lines += report.faults
    verdicts = Counter(str(fate.verdict) for fate in report.fates if fate.is_killed)
    kinds = ", ".join(f"{count} {name}" for name, count in verdicts.most_common())
    record = report.record()
    lines.append(
        f"{report.slug}: {record.total} mutants, {record.killed} killed ({kinds}), "
        f"{record.equivalent} equivalent, {len(record.survivors)} survive"
        + ("" if report.is_whole else " (not all were graded: nothing is recorded)")
    )
    return lines
