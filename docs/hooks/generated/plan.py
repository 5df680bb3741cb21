"""The study plan: for a role and a number of weeks, which pages to read and problems to solve.

`docs/plan.toml` lists each role's steps in the order to take them, each with the shortest plan that
has room for it. The steps of a plan are cut into weeks of about equal length.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from docs.hooks.cards import pick
from docs.hooks.facts import Facts
from docs.hooks.faults import MarkerError
from docs.hooks.generated.questions import Question, questions
from docs.hooks.runs import well_formed
from infra_lab.texts import Language

LENGTHS = (1, 2, 4, 8)
READING_MINUTES = 45  # to read a page, run its command and answer its follow-ups aloud
TIMES_INTERVIEW = 4  # a problem takes this many times what an interviewer gives it


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a plan. `weeks`: the shortest plan that has it."""

    text: str
    minutes: int
    weeks: int


def pages(facts: Facts, language: Language) -> Iterator[tuple[str, str]]:
    with well_formed("docs/plan.toml"):
        text = "\n".join(_page(facts, language))
    yield "plan.md", text


def cut_into_weeks(steps: list[Step], num_weeks: int) -> list[list[Step]]:
    """In order; a step goes where its middle falls when the whole is cut into equal parts. No week
    is empty while there are as many steps as weeks."""
    total = sum(step.minutes for step in steps)
    weeks: list[list[Step]] = [[] for _ in range(num_weeks)]
    before = 0
    for index, step in enumerate(steps):
        middle = before + step.minutes / 2
        wanted = min(int(middle / total * num_weeks), num_weeks - 1)
        left = len(steps) - index
        wanted = max(wanted, num_weeks - left)  # enough steps for the weeks to come
        first_empty = next((week for week, found in enumerate(weeks) if not found), num_weeks)
        weeks[min(wanted, first_empty)].append(step)
        before += step.minutes
    return weeks


def _page(facts: Facts, language: Language) -> Iterator[str]:
    plan = tomllib.loads((facts.root / "docs/plan.toml").read_text(encoding="utf-8"))
    written = {one.slug: one for one in questions(facts, language)}
    yield from ("---", f"title: {pick(('Study plan', '学习计划'), language)}")
    yield from ("hide: [navigation]", "---", "")
    yield from (plan["introduction"][language], "")
    for role in plan["role"]:
        yield from (f"## {role['title'][language]}", "", role["about"][language], "")
        steps = [step for one in role["steps"] if (step := _step(one, written, facts, language))]
        for length in LENGTHS:
            yield from _plan([one for one in steps if one.weeks <= length], length, language)


def _plan(steps: list[Step], length: int, language: Language) -> Iterator[str]:
    weeks = "1 week" if length == 1 else f"{length} weeks"
    yield from (f'=== "{pick((weeks, f"{length} 周"), language)}"', "")
    for number, week in enumerate(cut_into_weeks(steps, length), 1):
        hours = max(round(sum(step.minutes for step in week) / 60), 1)
        title = pick(
            (f"Week {number}, about {hours} h", f"第 {number} 周，约 {hours} 小时"), language
        )
        yield from (f"    **{title}**", "")
        yield from (f"    - {step.text}" for step in week)
        yield ""


def _step(
    record: dict[str, Any], written: dict[str, Question], facts: Facts, language: Language
) -> Step | None:
    """None for a page that is still to be written."""
    weeks = record["weeks"]
    if "page" in record:
        one = written.get(record["page"])
        if one is None:
            return None
        verb = pick(("Read", "阅读"), language)
        return Step(f"{verb} [{one.title}](questions/{one.slug}.md)", READING_MINUTES, weeks)
    if "problem" in record:
        problem = facts.problem(record["problem"])
        verb = pick(("Solve", "完成"), language)
        minutes = problem.interview()["minutes"] * TIMES_INTERVIEW
        link = f"[{problem.title[language]}](problems/{problem.slug}.md)"
        return Step(f"{verb} {link}", minutes, weeks)
    if "do" in record:
        return Step(record["do"][language], record["minutes"], weeks)
    raise MarkerError(f"plan.toml: a step has page, problem or do, not {sorted(record)}")
