"""What a grade is: a verdict for the whole, and a result for each property."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from infra_lab.practice.failures import Failure


class Verdict(StrEnum):
    """What came of grading one file, most of them also of one property."""

    PASSED = "passed"
    UNSOLVED = "unsolved"
    WRONG_ANSWER = "wrong_answer"
    OVER_BUDGET = "over_budget"
    CRASHED = "crashed"
    FLAKY = "flaky"
    MISSING_ENTRY_POINT = "missing_entry_point"
    SYNTAX_ERROR = "syntax_error"
    IMPORT_FAILED = "import_failed"
    TIMED_OUT = "timed_out"
    MEMORY_EXCEEDED = "memory_exceeded"
    OUTPUT_FLOOD = "output_flood"
    EXITED = "exited"
    TAMPERED = "tampered"
    GRADER_FAULT = "grader_fault"


# Exit status of a command that graded.
PASS, FAIL, USAGE, FAULT = 0, 1, 2, 3


@dataclass(slots=True)
class TestResult:
    """One test of the grader.

    Attributes:
        name: the test function's, with its parameters in brackets.
        states: the property, {en, zh}.
        follow_up: the entry point, if the test belongs to a follow-up.
        verdict: None if the test did not run to its end.
        failure: set unless the verdict is "passed".
        calls: of the solution.
        budgets: name -> (used, allowed), the use that came nearest to each.
    """

    __test__ = False  # not a test, whatever pytest thinks of its name

    name: str
    states: dict[str, str]
    follow_up: str | None = None
    verdict: Verdict | None = None
    failure: Failure | None = None
    calls: int = 0
    budgets: dict[str, tuple[int, int]] = field(default_factory=dict)
    skipped: bool = False


@dataclass(slots=True)
class Grade:
    """What came of grading one file.

    Attributes:
        failure: of the whole, where the verdict is not that of a test: a syntax error, say.
        tests: in the grader's order.
        output: what the solution printed, its middle left out where it is long.
        fault: what is wrong with the grader, where the verdict says so.
    """

    slug: str
    verdict: Verdict
    tests: list[TestResult] = field(default_factory=list)
    failure: Failure | None = None
    output: str = ""
    fault: str = ""
    elapsed_s: float = 0.0

    @property
    def exit_status(self) -> int:
        if self.verdict is Verdict.PASSED:
            return PASS
        return FAULT if self.verdict is Verdict.GRADER_FAULT else FAIL

    @property
    def first_failure(self) -> Failure | None:
        if self.failure is not None:
            return self.failure
        return next((test.failure for test in self.tests if test.failure is not None), None)

    def failed_tests(self) -> list[TestResult]:
        return [test for test in self.tests if test.failure is not None]

    @property
    def is_solved(self) -> bool:
        """Whether every property but those of follow-ups holds."""
        required = [test for test in self.tests if test.follow_up is None]
        holds = bool(required) and all(test.verdict is Verdict.PASSED for test in required)
        return holds and self.failure is None and self.verdict is not Verdict.GRADER_FAULT

    def follow_ups(self) -> dict[str, str]:
        """Entry point -> solved, failed, not attempted or not graded."""
        states: dict[str, str] = {}
        for name in dict.fromkeys(test.follow_up for test in self.tests if test.follow_up):
            tests = [test for test in self.tests if test.follow_up == name]
            if all(test.skipped for test in tests):
                states[name] = "not attempted"
            elif any(test.failure is not None for test in tests):
                states[name] = "failed"
            elif all(test.verdict is Verdict.PASSED for test in tests):
                states[name] = "solved"
            else:
                states[name] = "not graded"
        return states

    def exercism(self) -> dict[str, Any]:
        """The result format that exercism's test runners print (version 3), and `verdict`."""
        status = {PASS: "pass", FAIL: "fail", FAULT: "error"}[self.exit_status]
        if self.failure is not None and not self.tests:
            status = "error"
        message = self.fault or (_message(self.failure) if self.failure else None)
        return {
            "version": 3,
            "status": status,
            "message": message,
            "verdict": str(self.verdict),
            "slug": self.slug,
            "tests": [_exercism_test(test) for test in self.tests if not test.skipped],
        }


def _exercism_test(test: TestResult) -> dict[str, Any]:
    if test.verdict is Verdict.PASSED:
        status = "pass"
    elif test.failure is not None and test.verdict in (Verdict.WRONG_ANSWER, Verdict.OVER_BUDGET):
        status = "fail"
    else:
        status = "error"
    _, bracket, parameters = test.name.partition("[")
    suffix = f" [{parameters}" if bracket else ""  # a name stands for one test only
    return {
        "name": test.states.get("en", test.name) + suffix,
        "status": status,
        "message": _message(test.failure) if test.failure else None,
        "output": None,
        "test_code": test.failure.call if test.failure else None,
        "task_id": None,
    }


def _message(failure: Failure) -> str:
    lines = [
        f"{name}: {text}"
        for name, text in (
            ("call", failure.call),
            ("got", failure.got),
            ("expected", failure.expected),
            ("note", failure.note),
            ("line", "" if failure.line is None else str(failure.line)),
        )
        if text
    ]
    return "\n".join(lines)
