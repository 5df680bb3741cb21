"""What can be wrong with a solution, as exceptions that carry a report.

A grader raises them through `infra_lab.practice.kit`. Any other exception that leaves a test is
the grader's own fault, and is reported as such.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure as the learner reads it.

    Attributes:
        verdict: one of `infra_lab.practice.grade.Verdict`'s values.
        call: Python that can be pasted, one line a call.
        got: what came back, or what was raised.
        expected: what should have come back.
        note: anything else that helps.
        line: of the solution's file, where an exception was raised.
    """

    verdict: str
    call: str = ""
    got: str = ""
    expected: str = ""
    note: str = ""
    line: int | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class SolutionError(AssertionError):
    """The solution is at fault."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.call}: got {failure.got}, expected {failure.expected}")
        self.failure = failure


class SolutionStopped(BaseException):
    """The call did not come back by itself: it ran too long, or ended the process. Not an
    Exception, so that neither the solution nor hypothesis goes on after it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.verdict)
        self.failure = failure


class CallTimedOut(BaseException):
    """Raised by the watchdog inside a call that runs too long."""
