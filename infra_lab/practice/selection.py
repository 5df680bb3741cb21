"""Which problems a learner asks for, and which one is the obvious next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from infra_lab.practice.problem import LEVELS, Problem
from infra_lab.practice.progress import Progress


@dataclass(frozen=True, slots=True)
class Filter:
    """What problems must be like; None takes any."""

    track: str | None = None
    level: str | None = None
    tag: str | None = None
    company: str | None = None
    status: str | None = None

    def takes(self, problem: Problem, progress: Progress) -> bool:
        wanted_and_there = (
            (self.track, (problem.track,)),
            (self.level, (problem.level,)),
            (self.tag, problem.tags),
            (self.company, problem.companies),
            (self.status, (progress.of(problem.slug).status,)),
        )
        return all(wanted is None or wanted in there for wanted, there in wanted_and_there)


@dataclass(frozen=True, slots=True)
class Choice:
    """The problem to do next.

    Attributes:
        reason: "begun" if the learner began it and has not solved it, else "most asked".
        left: unsolved problems of the same level, this one included.
    """

    problem: Problem
    reason: str
    left: int


def next_problem(problems: Sequence[Problem], progress: Progress) -> Choice | None:
    """What was begun last and is unsolved; else the easiest level that has unsolved problems, the
    most asked first, then by number. None if all are solved."""
    unsolved = [one for one in problems if not progress.of(one.slug).is_solved]
    if not unsolved:
        return None
    begun = [one for one in unsolved if progress.of(one.slug).status == "attempted"]
    if begun:
        chosen = max(begun, key=lambda one: progress.of(one.slug).last_time)
    else:
        chosen = min(
            unsolved, key=lambda one: (LEVELS.index(one.level), -one.frequency, one.number)
        )
    left = sum(one.level == chosen.level for one in unsolved)
    return Choice(chosen, "begun" if begun else "most asked", left)
