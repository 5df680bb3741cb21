"""Runs graders under pytest: in the grading process, and for `pytest problems/<slug>`.

problems/conftest.py takes the fixture `solution` and the hooks from here; the grading process
brings a plugin of its own, which reports each test as an event.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, settings

from infra_lab.practice import catalog
from infra_lab.practice.failures import CallTimedOut, Failure, SolutionError, SolutionStopped
from infra_lab.practice.kit import Solution, has_follow_up
from infra_lab.practice.loading import load_solution, missing_entry_point

SOLUTION_VARIABLE = "INFRA_LAB_SOLUTION"


def use_profile(examples: int = 100, derandomize: bool = False) -> None:
    """Settings for graders: reproducible, no database, no clock. To be called before a grader is
    loaded: `given` takes the settings of that moment."""
    settings.register_profile(
        "grade",
        max_examples=examples,
        derandomize=derandomize,
        deadline=None,
        database=None,
        print_blob=False,
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.differing_executors,
        ],
    )
    settings.load_profile("grade")


class GradePlugin:
    """Reports a grader's tests as events, and tells the solution's faults from the grader's."""

    def __init__(
        self,
        solution: Solution,
        emit: Callable[..., None],
        wanted: list[str] | None,
        stop_first: bool,
    ) -> None:
        self._solution = solution
        self._emit = emit
        self._wanted = wanted
        self._stop_first = stop_first
        self._calls_before = 0
        self._left_out: set[str] = set()  # tests of follow-ups that are not attempted

    @pytest.fixture(scope="session")
    def solution(self) -> Solution:
        return self._solution

    def pytest_configure(self, config: pytest.Config) -> None:
        # Reading sources for a traceback costs memory that a greedy solution may have taken.
        config.option.tbstyle = "native"

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._wanted is not None:
            items[:] = [item for item in items if _function_name(item) in self._wanted]
        self._emit("collected", tests=[_describe(item) for item in items])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._emit("fault", text=str(report.longrepr))

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        name = _attribute(item, "follow_up")
        if name is not None and not has_follow_up(self._solution.module, name):
            self._left_out.add(item.name)
            pytest.skip(f"{name} is not attempted")
        self._calls_before = self._solution.calls
        self._solution.budgets = {}
        self._emit("started", name=item.name)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        error = call.excinfo.value if call.excinfo is not None else None
        if report.skipped and item.name not in self._left_out:
            # Who could skip a test, or expect it to fail, could pass without it.
            self._emit("fault", name=item.name, text=f"{item.name} was skipped by the grader")
        elif report.skipped:
            self._emit("skipped", name=item.name)
        elif error is not None:
            self._report_failure(item, error, str(report.longrepr))
        elif call.when == "call":
            self._emit(
                "passed",
                name=item.name,
                calls=self._solution.calls - self._calls_before,
                budgets=self._solution.budgets,
            )
        return report

    def _report_failure(self, item: pytest.Item, error: BaseException, text: str) -> None:
        failure = failure_of(error)
        if failure is None:
            self._emit("fault", name=item.name, text=text)
        else:
            calls = self._solution.calls - self._calls_before
            self._emit("test_failed", name=item.name, calls=calls, failure=failure.as_dict())
        ends = not isinstance(error, SolutionError) or error.failure.verdict == "unsolved"
        if self._stop_first or ends:
            item.session.shouldstop = "enough"


def failure_of(error: BaseException) -> Failure | None:
    """The solution's failure that an exception of a test means; None if it is the grader's."""
    if isinstance(error, (SolutionError, SolutionStopped)):
        return error.failure
    if isinstance(error, CallTimedOut):
        return Failure("timed_out", "", "no answer yet", "an answer in time")
    inner = getattr(error, "exceptions", ())
    failures = [
        one.failure
        for one in (*inner, error.__cause__, error.__context__)
        if isinstance(one, SolutionError)
    ]
    if failures and type(error).__name__.startswith("Flaky"):
        first = failures[0]
        note = "the same call was right another time: the solution keeps state or draws at random"
        return Failure("flaky", first.call, first.got, first.expected, note)
    return None


def _describe(item: pytest.Item) -> dict[str, Any]:
    readable = _function_name(item).removeprefix("test_").replace("_", " ")
    stated = _attribute(item, "states") or {"en": readable, "zh": readable}
    return {"name": item.name, "states": stated, "follow_up": _attribute(item, "follow_up")}


def _function_name(item: pytest.Item) -> str:
    return item.name.split("[")[0]


def _attribute(item: pytest.Item, name: str) -> Any:
    return getattr(getattr(item, "obj", None), name, None)


# ---- `pytest problems/<slug>` ----


@pytest.fixture(scope="module")
def solution(request: pytest.FixtureRequest) -> Solution:
    """The file that $INFRA_LAB_SOLUTION names, else work/<slug>/solution.py, else the starter."""
    folder = Path(str(request.path)).parent
    attempt = folder.parents[1] / "work" / folder.name / "solution.py"
    chosen = os.environ.get(SOLUTION_VARIABLE)
    path = Path(chosen) if chosen else attempt if attempt.exists() else folder / "starter.py"
    problem = catalog.load(folder.name, folder.parents[1])
    try:
        module = load_solution(path)
        failure = missing_entry_point(module, problem.required_names)
    except SolutionStopped as stopped:
        failure = stopped.failure
    if failure is not None:
        # Once is enough: every other test would say the same.
        pytest.exit(f"{path} cannot be graded: {explain(failure)}", returncode=1)
    if path.name == "starter.py":
        text = f"this is the starter: `infra-lab start {folder.name}` makes a file to write in"
        request.node.warn(pytest.PytestWarning(text))
    return Solution(module)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows a solution's failure as the call, what came back and what was expected."""
    report = yield
    failure = failure_of(call.excinfo.value) if call.excinfo is not None else None
    if failure is not None:
        report.longrepr = explain(failure)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    name = _attribute(item, "follow_up")
    tested = getattr(item, "funcargs", {}).get("solution")
    if name is not None and tested is not None and not has_follow_up(tested.module, name):
        pytest.skip(f"{name} is not attempted")
    try:
        yield
    except SolutionStopped as stopped:  # pytest would take it for its own end
        pytest.fail(explain(stopped.failure), pytrace=False)


def explain(failure: Failure) -> str:
    lines = [failure.verdict.replace("_", " ")]
    lines += [f"  {line}" for line in failure.call.splitlines()]
    for name in ("got", "expected", "note"):
        if text := getattr(failure, name):
            lines.append(f"{name + ':':9} {text}")
    if failure.line is not None:
        lines.append(f"line:     {failure.line} of the solution")
    return "\n".join(lines)
