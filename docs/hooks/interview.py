"""What a page's front matter says of the interview: follow-ups with folded answers, problems."""

from __future__ import annotations

from html import escape
from typing import Any

from docs.hooks.facts import Facts
from docs.hooks.faults import MarkerError
from docs.hooks.numbers import expand_numbers
from docs.hooks.page import Page
from infra_lab.practice.problem import LEVEL_NAMES


def follow_up_lines(page: Page, facts: Facts, gaps: list[str]) -> list[str]:
    """Each question with its answer folded, as an interviewer would keep it. A number that is not
    recorded yet becomes an ellipsis, and is told in `gaps`."""
    lines: list[str] = []
    for number, one in enumerate(follow_ups(page), 1):
        question = _one_line(expand_numbers(one["question"], facts, page.language, gaps))
        answer = expand_numbers(one["answer"], facts, page.language, gaps).rstrip()
        lines += [f'??? question "{number}. {question}"', ""]
        lines += [f"    {line}" if line else "" for line in answer.split("\n")]
        lines.append("")
    return lines


def follow_ups(page: Page) -> list[dict[str, str]]:
    """The front matter's records. Raises MarkerError where one is not {question, answer}."""
    records: Any = page.front.get("follow_ups") or []
    if not isinstance(records, list):
        raise MarkerError("front matter: follow_ups must be a list")
    for one in records:
        if not isinstance(one, dict) or set(one) != {"question", "answer"}:
            raise MarkerError("front matter: each of follow_ups has a question and an answer")
        if not all(isinstance(text, str) and text.strip() for text in one.values()):
            raise MarkerError("front matter: a question and an answer are texts")
    return records


def problem_lines(page: Page, facts: Facts, up: str) -> list[str]:
    """A card a problem, with the command that starts it."""
    lines = ['<div class="problems">']
    for slug in page.texts("problems"):
        problem = facts.problem(slug)
        level = LEVEL_NAMES[problem.level][page.language]
        lines.append(
            f'<a class="problems__card" href="{up}problems/{slug}/">'
            f"<strong>{escape(problem.title[page.language])}</strong> "
            f'<span class="problems__level">{level}</span><br>'
            f"{escape(problem.summary[page.language])}<br>"
            f"<code>infra-lab start {slug}</code></a>"
        )
    return [*lines, "</div>"]


def _one_line(text: str) -> str:
    """For the title of an admonition, which stands in double quotes."""
    return " ".join(text.split()).replace('"', "&quot;")
