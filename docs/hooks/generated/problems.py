"""A page a problem, from its folder: the statement open, hints, approaches and answers folded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs.hooks.cards import pick
from docs.hooks.facts import Facts
from infra_lab.practice.problem import LEVEL_NAMES, NOTES, TRACK_NAMES, Problem
from infra_lab.texts import Language

_HEADING = re.compile(r"^(#{1,6}) +(.+?) *$")


def pages(facts: Facts, language: Language) -> Iterator[tuple[str, str]]:
    problems = list(facts.problems.values())
    yield "problems/index.md", _index(problems, language)
    for problem in problems:
        yield f"problems/{problem.slug}.md", "\n".join(_page(problem, language))


def stars(frequency: int) -> str:
    """How often it is asked, for the eye; the title says it for a screen reader."""
    return (
        f'<span class="stars" title="{frequency}/5">{"★" * frequency}{"☆" * (5 - frequency)}</span>'
    )


def folded(kind: str, title: str, lines: list[str]) -> list[str]:
    """A block that opens at a click."""
    title = " ".join(title.split()).replace('"', "&quot;")
    return [f'??? {kind} "{title}"', "", *(f"    {line}" if line else "" for line in lines), ""]


def code_block(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8").rstrip("\n")
    return ["```python", *text.split("\n"), "```"]


def without_headings(markdown: str) -> list[str]:
    """For the inside of a fold: headings become bold lines, so that no table of contents lists
    what is hidden; the first one, which repeats the page's title, goes."""
    lines: list[str] = []
    fenced = False
    for line in markdown.rstrip("\n").split("\n"):
        fenced ^= line.lstrip().startswith("```")
        found = None if fenced else _HEADING.match(line)
        if found is None:
            lines.append(line)
        elif len(found[1]) > 1:
            lines += ["", f"**{found[2]}**", ""]
    return lines


def _index(problems: list[Problem], language: Language) -> str:
    title = pick(("Problems", "题目"), language)
    intro = pick(
        (
            "Each is a folder with a statement, a grader and follow-ups. `infra-lab start NAME` "
            "copies the starter, `infra-lab test NAME` grades it; the grader shows the smallest "
            "call that goes wrong. The graders are graded too: wrong solutions that each must "
            "reject, right ones in other styles that each must accept.",
            "每道题是一个文件夹：题面、评测器、追问。`infra-lab start 题名` 复制起始代码，"
            "`infra-lab test 题名` 评测，并给出能复现错误的最小调用。评测器本身也受检验："
            "一组错误解法必须被拒绝，一组不同写法的正确解法必须被接受。",
        ),
        language,
    )
    heads = pick(("Problem | What it is | Level | Asked", "题目 | 内容 | 难度 | 频率"), language)
    lines = ["---", f"title: {title}", "---", "", intro, ""]
    for track, names in TRACK_NAMES.items():
        rows = [one for one in problems if one.track == track]
        if not rows:
            continue
        lines += [f"## {names[language]}", "", f"| {heads} |", "|---|---|---|---|"]
        for one in sorted(rows, key=lambda problem: (-problem.frequency, problem.number)):
            level = LEVEL_NAMES[one.level][language]
            name = f"[{one.title[language]}]({one.slug}.md)"
            lines.append(f"| {name} | {one.summary[language]} | {level} | {stars(one.frequency)} |")
        lines.append("")
    return "\n".join(lines)


def _page(problem: Problem, language: Language) -> Iterator[str]:
    level = LEVEL_NAMES[problem.level][language]
    track = TRACK_NAMES[problem.track][language]
    yield from ("---", f'title: "{problem.title[language]}"')
    yield f'description: "{problem.summary[language]}"'
    yield f"tags: [{', '.join(problem.tags)}]"
    yield from ("---", "")
    facts_line = f"{track} · {level} · {stars(problem.frequency)}"
    yield from (f'<p class="facts">{facts_line}</p>', "")
    yield from ("```bash", f"infra-lab start {problem.slug}", f"infra-lab test {problem.slug}")
    yield from ("```", "")
    yield from _statement(problem.statement(language))
    yield from ("", f"## {pick(('Hints', '提示'), language)}", "")
    for number, hint in enumerate(problem.hints(), 1):
        title = f"{pick(('Hint', '提示'), language)} {number}"
        yield from folded("tip", title, [hint[language]])
    yield from _approaches(problem, language)
    yield from _interview(problem.interview(), language)
    yield from _sources(problem, language)


def _statement(text: str) -> Iterator[str]:
    """Without its first heading, which the page's title is."""
    lines = text.rstrip("\n").split("\n")
    yield from lines[1:] if lines[0].startswith("# ") else lines


def _approaches(problem: Problem, language: Language) -> Iterator[str]:
    yield from ("", f"## {pick(('Approaches', '解法'), language)}", "")
    notes = problem.solutions / NOTES[language]
    if notes.is_file():
        title = pick(("The approaches compared", "各种解法的比较"), language)
        yield from folded("note", title, without_headings(notes.read_text(encoding="utf-8")))
    for path in problem.approaches():
        name = path.stem.removeprefix("approach_").replace("_", " ")
        if path.stem == "solution":
            name = pick(("Reference solution", "参考解法"), language)
        yield from folded("code", name, code_block(path))


def _interview(interview: dict[str, Any], language: Language) -> Iterator[str]:
    minutes = interview["minutes"]
    yield from ("", f"## {pick(('In the interview', '面试现场'), language)}", "")
    yield pick(
        (f"An interviewer gives it {minutes} minutes.", f"面试官一般给 {minutes} 分钟。"), language
    )
    yield ""
    for one in interview.get("follow_up", ()):
        yield from folded("question", one["question"][language], [one["answer"][language]])
    title = pick(("What is scored", "评分点"), language)
    items = [f"- {one['text'][language]}" for one in interview.get("rubric", ())]
    yield from folded("success", title, items)


def _sources(problem: Problem, language: Language) -> Iterator[str]:
    if problem.sources:
        yield from ("", f"## {pick(('Sources', '来源'), language)}", "")
        yield from (
            f"- <{one}>" if one.startswith("http") else f"- {one}" for one in problem.sources
        )
