"""What a learner has done so far: attempts, hints, solutions seen; and how it stands in JSON.

`progress_store.py` keeps it in a file.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any

from infra_lab.practice.grade import Grade, Verdict

VERSION = 1
STATUSES = ("new", "attempted", "solved")


class DamagedError(ValueError):
    """The file's content is not what this module writes."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One graded attempt.

    Attributes:
        time: UTC, ISO 8601.
        verdict: of the whole grade.
        solved: every property but those of follow-ups held.
        seed: of the generated inputs.
        hints: revealed before it.
        elapsed_s: that grading took.
        follow_ups: those solved.
        extra: fields of a later release, kept as they are.
    """

    time: str
    verdict: str
    solved: bool
    seed: int = 0
    hints: int = 0
    elapsed_s: float = 0.0
    follow_ups: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class ProblemProgress:
    """What was done on one problem.

    Attributes:
        started: when `start` copied the starter.
        hints: how many tiers were revealed.
        revealed: when the solution was shown before the problem was solved.
        resets: attempts set aside.
        extra: fields of other parts, or of a later release, kept as they are.
    """

    started: str | None = None
    attempts: list[Attempt] = field(default_factory=list)
    hints: int = 0
    revealed: str | None = None
    resets: int = 0
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def is_solved(self) -> bool:
        return any(attempt.solved for attempt in self.attempts)

    @property
    def status(self) -> str:
        if self.is_solved:
            return "solved"
        return "attempted" if self.attempts or self.started else "new"

    @property
    def solved_follow_ups(self) -> list[str]:
        return sorted({name for attempt in self.attempts for name in attempt.follow_ups})

    @property
    def solved_after_reveal(self) -> bool:
        first = next((attempt.time for attempt in self.attempts if attempt.solved), None)
        return first is not None and self.revealed is not None and self.revealed <= first

    @property
    def last_time(self) -> str:
        """Of the last thing done, "" if nothing was."""
        times = (self.started, self.revealed, *(attempt.time for attempt in self.attempts))
        return max((time for time in times if time), default="")


@dataclass(slots=True)
class Progress:
    """All problems, by slug; those that are not there were never touched."""

    problems: dict[str, ProblemProgress] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    def of(self, slug: str) -> ProblemProgress:
        """To read from; what is never touched is new."""
        return self.problems.get(slug) or ProblemProgress()

    def touch(self, slug: str) -> ProblemProgress:
        """To write to."""
        return self.problems.setdefault(slug, ProblemProgress())

    def record(self, grade: Grade, seed: int) -> None:
        """Adds a grade to the history. A fault of the grader's is nobody's attempt, and neither
        is the starter."""
        if grade.verdict in (Verdict.GRADER_FAULT, Verdict.UNSOLVED):
            return
        problem = self.touch(grade.slug)
        problem.attempts.append(
            Attempt(
                now(),
                str(grade.verdict),
                grade.is_solved,
                seed,
                problem.hints,
                round(grade.elapsed_s, 3),
                tuple(name for name, state in grade.follow_ups().items() if state == "solved"),
            )
        )


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


# ---- JSON ----

ATTEMPT_FIELDS = [one.name for one in fields(Attempt) if one.name != "extra"]


def as_table(progress: Progress) -> dict[str, Any]:
    problems = {
        slug: {
            "started": one.started,
            "hints": one.hints,
            "revealed": one.revealed,
            "resets": one.resets,
            "attempts": [_attempt_table(attempt) for attempt in one.attempts],
            **one.extra,
        }
        for slug, one in sorted(progress.problems.items())
    }
    return {"version": VERSION, "problems": problems, **progress.extra}


def _attempt_table(attempt: Attempt) -> dict[str, Any]:
    table = {name: getattr(attempt, name) for name in ATTEMPT_FIELDS}
    return table | {"follow_ups": list(attempt.follow_ups)} | attempt.extra


def parse(table: dict[str, Any]) -> Progress:
    """Raises DamagedError for what no release has written."""
    problems = table.get("problems")
    if not isinstance(problems, dict):
        raise DamagedError("no problems")
    extra = {key: value for key, value in table.items() if key not in ("version", "problems")}
    return Progress({slug: _parse_problem(one) for slug, one in problems.items()}, extra)


def _parse_problem(table: Any) -> ProblemProgress:
    known: dict[str, Any] = {
        "started": None,
        "hints": 0,
        "revealed": None,
        "resets": 0,
        "attempts": [],
    }
    if not isinstance(table, dict):
        raise DamagedError("a problem is no object")
    values = known | {key: table[key] for key in known if key in table}
    times = [values["started"], values["revealed"]]
    if not all(time is None or isinstance(time, str) for time in times):
        raise DamagedError("a time is no text")
    if not all(is_whole(values[key]) and values[key] >= 0 for key in ("hints", "resets")):
        raise DamagedError("a count is no whole number")
    if not isinstance(values["attempts"], list):
        raise DamagedError("attempts is no list")
    return ProblemProgress(
        values["started"],
        [_parse_attempt(one) for one in values["attempts"]],
        values["hints"],
        values["revealed"],
        values["resets"],
        {key: value for key, value in table.items() if key not in known},
    )


def _parse_attempt(table: Any) -> Attempt:
    if not isinstance(table, dict):
        raise DamagedError("an attempt is no object")
    known = {key: table[key] for key in ATTEMPT_FIELDS if key in table}
    extra = {key: value for key, value in table.items() if key not in known}
    try:
        attempt = Attempt(**known, extra=extra)
    except TypeError as error:
        raise DamagedError(str(error)) from None
    are_right = (
        isinstance(attempt.time, str),
        isinstance(attempt.verdict, str),
        isinstance(attempt.solved, bool),
        is_whole(attempt.seed),
        is_whole(attempt.hints),
        isinstance(attempt.elapsed_s, (int, float)),
        isinstance(attempt.follow_ups, (list, tuple))
        and all(isinstance(name, str) for name in attempt.follow_ups),
    )
    if not all(are_right):
        raise DamagedError("an attempt's field is of the wrong type")
    return replace(
        attempt, elapsed_s=float(attempt.elapsed_s), follow_ups=tuple(attempt.follow_ups)
    )


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
