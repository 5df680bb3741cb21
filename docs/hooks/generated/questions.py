"""The list of question pages, by topic and by how often they are asked, from their front matter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from docs.hooks.cards import pick
from docs.hooks.facts import Facts
from docs.hooks.faults import MarkerError
from docs.hooks.generated.problems import stars
from docs.hooks.page import read_page
from infra_lab.claims.claim import POSTS
from infra_lab.texts import Language

LEVELS = {"core": ("core", "基础"), "senior": ("senior", "进阶"), "staff": ("staff", "专家")}


@dataclass(frozen=True, slots=True)
class Question:
    slug: str
    title: str
    description: str
    topic: str
    level: str
    frequency: int
    minutes: int
    asked_in: tuple[str, ...]


def questions(facts: Facts, language: Language) -> list[Question]:
    """Those that are written, most asked first; a page with faults in its front matter is left to
    the check."""
    return facts.once(_questions, facts.root / "docs" / language / "questions")


def _questions(folder: Path) -> list[Question]:
    found = []
    for path in sorted(folder.glob("*.md")):
        try:
            front = read_page(path).front
            question = Question(
                slug=path.stem,
                title=str(front["title"]),
                description=str(front["description"]),
                topic=str(front["topic"]),
                level=str(front["level"]),
                frequency=int(front["frequency"]),
                minutes=int(front["minutes"]),
                asked_in=tuple(front["asked_in"]),
            )
        except (MarkerError, KeyError, TypeError, ValueError):
            continue
        found.append(question)
    return sorted(found, key=lambda one: (-one.frequency, one.slug))


def pages(facts: Facts, language: Language) -> Iterator[tuple[str, str]]:
    title = pick(("Questions", "问题"), language)
    lines = ["---", f"title: {title}", "---", "", *_intro(facts, language), ""]
    found = questions(facts, language)
    lines += [f"## {pick(('Most asked first', '按频率'), language)}", ""]
    lines += [*_table(found, language), "", f"## {pick(('By topic', '按主题'), language)}", ""]
    for name, topic in facts.ledger.topics.items():
        rows = [one for one in found if one.topic == name]
        if rows:
            lines += [f"### {topic.title[language]}", ""]
            lines += [f"- [{one.title}]({one.slug}.md): {one.description}" for one in rows]
            lines.append("")
    yield "questions/index.md", "\n".join(lines)


def most_asked_lines(facts: Facts, language: Language, up: str) -> list[str]:
    """For the home page: the questions that come first."""
    lines = ['<ol class="most-asked">']
    for one in questions(facts, language)[:6]:
        lines.append(
            f'<li><a href="{up}questions/{one.slug}/">{one.title}</a> {stars(one.frequency)}</li>'
        )
    return [*lines, "</ol>"]


def _intro(facts: Facts, language: Language) -> list[str]:
    posts = ", ".join(POSTS.values())
    return [
        pick(
            (
                "Each page answers one question as it is asked: aloud in half a minute, then in "
                "full, with the derivation, the numbers computed at build, what the interview "
                f"posts ({posts}) get wrong, a command that shows it, and the code that does it.",
                "每页回答一个真实的面试问题：先用 30 秒口头回答，再给完整推导；数字在构建时算出；"
                f"指出面经帖（{posts}）里的错误；给出可以自己跑的命令，以及对应的源码。",
            ),
            language,
        )
    ]


def _table(found: list[Question], language: Language) -> list[str]:
    heads = pick(("Question | Level | Asked | Minutes", "问题 | 级别 | 频率 | 分钟"), language)
    lines = [f"| {heads} |", "|---|---|---|---|"]
    lines += [
        f"| [{one.title}]({one.slug}.md) | {_level(one, language)} | {stars(one.frequency)} "
        f"| {one.minutes} |"
        for one in found
    ]
    return lines


def _level(question: Question, language: Language) -> str:
    return pick(LEVELS.get(question.level, (question.level, question.level)), language)
