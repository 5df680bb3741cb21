"""Grades the graders: everything that a problem's folder promises, verified.

Every reference solution and accepted variant must pass, every mutant must be killed by the test
it names, the starter must be seen as unsolved, and what stands in several files must agree.
"""

from __future__ import annotations

import ast
import doctest
import re
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from infra_lab.practice.grade import Grade, Verdict
from infra_lab.practice.problem import (
    NOTES,
    STATEMENTS,
    Problem,
    ProblemError,
)
from infra_lab.practice.sandbox import Sandbox
from infra_lab.texts import LANGUAGES

MIN_MUTANTS, MIN_ACCEPTED, MIN_APPROACHES, HINTS = 10, 3, 2, 3
KILLED_BY = re.compile(r"# killed_by: (?P<tests>test_\w+(?:, test_\w+)*) — (?P<why>.+)")

# Wrong for any entry point; a grader must survive them, not only fail them.
GENERIC_MUTANTS = {
    "returns None": "return None",
    "returns 0": "return 0",
    "returns its first argument": "return args[0] if args else None",
    "returns an empty list": "return []",
    "empties its arguments and returns the first": (
        "[a.clear() for a in args if hasattr(a, 'clear')]\n"
        "    [a.fill(0) for a in args if hasattr(a, 'fill')]\n"
        "    return args[0] if args else None"
    ),
    "empties its arguments and returns an empty list": (
        "[a.clear() for a in args if hasattr(a, 'clear')]\n    return []"
    ),
    "raises": "raise RuntimeError('wrong')",
}

UNWRITTEN = re.compile(r"\bTODO\b")
ONE_AT_A_TIME = threading.Lock()  # doctest takes sys.stdout while it runs

Notify = Callable[[str], None]


@dataclass(slots=True)
class Tally:
    """How many of a kind are as they must be, and what is wrong with the others."""

    ok: int = 0
    total: int = 0
    faults: list[str] = field(default_factory=list)

    def add(self, fault: str | None) -> None:
        self.total += 1
        if fault is None:
            self.ok += 1
        else:
            self.faults.append(fault)


@dataclass(slots=True)
class FolderReport:
    """What is right and wrong with one folder.

    Attributes:
        mutants: the hand-written ones, each killed by the test that it names.
        generic: wrong solutions that are made for every problem alike.
        accepted: accepted variants and reference approaches, each passed.
        starters: the starter, seen as unsolved.
        kills: mutant's name -> the test that killed it.
        faults: whatever else is wrong: files, texts, signatures, examples.
    """

    slug: str
    mutants: Tally = field(default_factory=Tally)
    generic: Tally = field(default_factory=Tally)
    accepted: Tally = field(default_factory=Tally)
    starters: Tally = field(default_factory=Tally)
    kills: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    @property
    def all_faults(self) -> list[str]:
        parts = (self.mutants, self.generic, self.accepted, self.starters)
        return [*self.faults, *(fault for part in parts for fault in part.faults)]


def check_folder(
    problem: Problem, sandbox: Sandbox, notify: Notify = lambda text: None
) -> FolderReport:
    """Everything but the syntax-tree mutants, which `mutation.py` records."""
    report = FolderReport(problem.slug, faults=check_texts(problem))
    notify("starter")
    report.starters.add(_check_starter(sandbox.grade(problem, problem.starter)))
    for path in (*problem.approaches(), *sorted((problem.folder / "accepted").glob("*.py"))):
        notify(path.name)
        report.accepted.add(_check_right(path, sandbox.grade(problem, path)))
    for path in sorted((problem.folder / "mutants").glob("*.py")):
        notify(path.name)
        report.mutants.add(_check_mutant(problem, path, sandbox, report.kills))
    notify("generic mutants")
    for fault in _check_generic_mutants(problem, sandbox):
        report.generic.add(fault)
    return report


def check_texts(problem: Problem) -> list[str]:
    """What is wrong with the files, the statements and their examples; nothing is graded."""
    faults = [*_check_files(problem), *_check_signatures(problem)]
    with ONE_AT_A_TIME:
        return [*faults, *_check_examples(problem)]


def mutant_header(path: Path) -> tuple[list[str], str] | None:
    """The tests that kill a mutant and why it is wrong, from its first line."""
    match = KILLED_BY.fullmatch(path.read_text(encoding="utf-8").split("\n")[0].strip())
    return (match["tests"].split(", "), match["why"]) if match else None


def _check_starter(grade: Grade) -> str | None:
    if grade.verdict is Verdict.UNSOLVED:
        return None
    return f"starter.py is {grade.verdict}, not unsolved{_details(grade)}"


def _check_right(path: Path, grade: Grade) -> str | None:
    skipped = [test.follow_up for test in grade.tests if test.skipped]
    if grade.verdict is not Verdict.PASSED:
        return f"{path.name} is right, but was {grade.verdict}{_details(grade)}"
    if path.name == "solution.py" and skipped:
        return f"solution.py must solve the follow-up {skipped[0]}"
    idle = [test.name for test in grade.tests if not test.skipped and test.calls == 0]
    if idle:
        return f"{idle[0]} never calls {path.name}: it tests nothing"
    return None


def _check_mutant(
    problem: Problem, path: Path, sandbox: Sandbox, kills: dict[str, str]
) -> str | None:
    header = mutant_header(path)
    if header is None:
        return f'{path.name}: the first line must be "# killed_by: test_name — why it is wrong"'
    # A mutant that never ends would cost its time in every test: it names one only.
    grade = sandbox.grade(problem, path, tests=header[0], stop_first=len(header[0]) == 1)
    killers = grade.failed_tests()
    if grade.verdict is not Verdict.PASSED and not killers and grade.failure is not None:
        return f"{path.name} is {grade.verdict}, which is no wrong answer{_details(grade)}"
    if unknown := sorted(set(header[0]) - {test.name.split("[")[0] for test in grade.tests}):
        return f"{path.name} names {unknown[0]}, which the grader does not have"
    if grade.verdict is Verdict.PASSED:
        return f"{path.name} survives {', '.join(header[0])}"
    if grade.verdict is Verdict.GRADER_FAULT:
        return f"{path.name} breaks the grader{_details(grade)}"
    failed = {test.name.split("[")[0] for test in killers}
    if idle := [name for name in header[0] if name not in failed]:
        return f"{path.name} survives {idle[0]}, which it says kills it"
    kills[path.stem] = killers[0].name
    return None


def _check_generic_mutants(problem: Problem, sandbox: Sandbox) -> list[str | None]:
    if not problem.starter.is_file():
        return []  # said already
    results: list[str | None] = []
    with tempfile.TemporaryDirectory(prefix="infra-lab-") as folder:
        for number, (name, body) in enumerate(GENERIC_MUTANTS.items()):
            path = Path(folder) / f"generic_{number}.py"
            try:
                path.write_text(_generic_source(problem, body), encoding="utf-8")
            except (SyntaxError, ValueError) as error:
                return [f"starter.py is no Python: {error}"]
            grade = sandbox.grade(problem, path, stop_first=True)
            fault = None
            if grade.is_solved:
                fault = f"a solution that {name} passes"
            elif grade.verdict is Verdict.GRADER_FAULT:
                fault = f"a solution that {name} breaks the grader{_details(grade)}"
            results.append(fault)
    return results


def _generic_source(problem: Problem, body: str) -> str:
    """The starter, every function and method of which ends so. Raises SyntaxError."""
    tree = ast.parse(problem.starter.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and "NotImplementedError" in ast.unparse(node):
            args = [*node.args.posonlyargs, *node.args.args]
            names = [arg.arg for arg in args if arg.arg not in ("self", "cls")]
            wrong = "pass" if node.name == "__init__" else body
            text = f"def wrong():\n    args = [{', '.join(names)}]\n    {wrong}\n"
            (function,) = ast.parse(text).body
            assert isinstance(function, ast.FunctionDef)
            node.body = function.body
    return ast.unparse(ast.fix_missing_locations(tree))


def _details(grade: Grade) -> str:
    failure = grade.first_failure
    if grade.fault:
        return ": " + grade.fault.strip().split("\n")[-1]
    if failure is None:
        return ""
    return (
        f": {failure.call} gave {failure.got}, expected {failure.expected} {failure.note}".rstrip()
    )


# ---- files and texts ----


def _check_files(problem: Problem) -> list[str]:
    faults = []
    wanted = [problem.folder / name for name in (*STATEMENTS.values(), "starter.py", "grader.py")]
    wanted += [problem.solutions / name for name in ("solution.py", *NOTES.values())]
    faults += [f"{path} is missing" for path in wanted if not path.is_file()]
    faults += _check_written(problem)
    faults += _try(lambda: _check_hints(problem))
    faults += _try(lambda: _check_interview(problem))
    counts = (
        ("mutants", len(list((problem.folder / "mutants").glob("*.py"))), MIN_MUTANTS),
        ("accepted variants", len(list((problem.folder / "accepted").glob("*.py"))), MIN_ACCEPTED),
        ("approaches", len(problem.approaches()), MIN_APPROACHES),
    )
    faults += [f"{n} {what}, at least {least} are wanted" for what, n, least in counts if n < least]
    return faults


def _check_written(problem: Problem) -> list[str]:
    """What `infra-lab dev new` left to be written."""
    faults = []
    for path in sorted([*problem.folder.rglob("*.*"), *problem.solutions.rglob("*.*")]):
        if path.suffix not in (".py", ".md", ".toml"):
            continue
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        marked = [number for number, line in enumerate(lines, 1) if UNWRITTEN.search(line)]
        if marked:
            many = f" and {len(marked) - 1} more" if len(marked) > 1 else ""
            faults.append(f"{path.name} is still to be written: TODO in line {marked[0]}{many}")
    return faults


def _try(check: Callable[[], list[str]]) -> list[str]:
    try:
        return check()
    except ProblemError as error:
        return [str(error)]


def _check_hints(problem: Problem) -> list[str]:
    count = len(problem.hints())
    return [] if count == HINTS else [f"hints.toml has {count} hints, not {HINTS}"]


def _check_interview(problem: Problem) -> list[str]:
    interview = problem.interview()
    faults = []
    if not isinstance(interview.get("minutes"), int):
        faults.append("interview.toml: minutes must be a whole number")
    for name, parts in (("follow_up", ("question", "answer")), ("rubric", ("text",))):
        entries: list[dict[str, Any]] = interview.get(name, [])
        if not entries:
            faults.append(f"interview.toml has no [[{name}]]")
        for entry in entries:
            for part in parts:
                if set(entry.get(part, {})) != set(LANGUAGES):
                    faults.append(f"interview.toml: a [[{name}]] lacks {part} in en and zh")
    return faults


def _check_signatures(problem: Problem) -> list[str]:
    faults = []
    wanted = {_normal(entry.signature): entry.name for entry in problem.entry_points}
    for path in (problem.starter, problem.approaches()[0]):
        if path.is_file():
            try:
                found = _signatures(path)
            except (SyntaxError, ValueError) as error:
                faults.append(f"{path.name} is no Python: {error}")
                continue
            faults += [
                f"{path.name} defines {found.get(name, 'no such entry point')}, not {signature}"
                for signature, name in wanted.items()
                if found.get(name) != signature
            ]
    for language in LANGUAGES:
        path = problem.folder / STATEMENTS[language]
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        faults += [
            f"{path.name} does not show `{entry.signature}`"
            for entry in problem.entry_points
            if entry.signature not in text
        ]
    return faults


def _normal(signature: str) -> str:
    return signature.replace(" ", "").replace('"', "'")


def _signatures(path: Path) -> dict[str, str]:
    """name -> name(parameters) -> result, of functions; a class shows its __init__'s parameters."""
    found = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            found[node.name] = _normal(f"{node.name}({ast.unparse(node.args)}){returns}")
        elif isinstance(node, ast.ClassDef):
            inits = [
                n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"
            ]
            parameters = (
                ast.unparse(inits[0].args).removeprefix("self").lstrip(", ") if inits else ""
            )
            found[node.name] = _normal(f"{node.name}({parameters})")
    return found


def _check_examples(problem: Problem) -> list[str]:
    """Runs the >>> examples of both statements, which must be the same, on the solution."""
    faults = []
    sources = {}
    solution = problem.approaches()[0]
    if not solution.is_file():
        return []
    module = ModuleType("solution")
    names = vars(module)
    sys.modules["solution"] = module  # where dataclasses look for the names in annotations
    try:
        exec(compile(solution.read_text(encoding="utf-8"), str(solution), "exec"), names)
    except Exception as error:
        return [f"solution.py does not load: {error}"]
    finally:
        del sys.modules["solution"]
    for language in LANGUAGES:
        path = problem.folder / STATEMENTS[language]
        if not path.is_file():
            continue
        text = re.sub(r"^```.*$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        test = doctest.DocTestParser().get_doctest(text, dict(names), path.name, str(path), 0)
        sources[language] = [(e.source, e.want) for e in test.examples]
        said: list[str] = []
        doctest.DocTestRunner(verbose=False).run(test, out=said.append)
        if not test.examples:
            faults.append(f"{path.name} has no >>> examples")
        if said:
            faults.append(
                f"{path.name}: an example is wrong: {' '.join(''.join(said).split())[:300]}"
            )
    if len(sources) == len(LANGUAGES) and len({str(one) for one in sources.values()}) > 1:
        faults.append("the two statements show different examples")
    return faults
