"""What every question page has: front matter, headings in one order, markers that belong there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from docs.hooks.facts import Facts
from docs.hooks.faults import Fault, MarkerError
from docs.hooks.generated.questions import LEVELS
from docs.hooks.interview import follow_ups
from docs.hooks.markers import markers_of
from docs.hooks.page import Page
from infra_lab.claims.claim import POSTS
from infra_lab.texts import Language

HEADINGS: dict[Language, tuple[str, ...]] = {
    "en": (
        "In 30 seconds",
        "The full answer",
        "The numbers",
        "What the posts get wrong",
        "Run it",
        "The code",
        "Follow-up questions",
        "Train it",
        "Sources",
    ),
    "zh": (
        "30 秒回答",
        "完整回答",
        "数字",
        "帖子里的错误",
        "动手跑",
        "代码",
        "追问",
        "练习",
        "来源",
    ),
}
KEY_POINTS = (5, 8)
FOLLOW_UPS = (6, 10)
KEYS = (
    "title",
    "description",
    "topic",
    "level",
    "frequency",
    "asked_in",
    "minutes",
    "key_points",
    "follow_ups",
    "problems",
    "claims",
)

# What a page must have at least one of: what it is, how it is brought in, and under which names.
BELONGING = (
    ("a correction", "<!-- claim ID --> or <!-- claims wrong -->", ("claim", "claims")),
    ("a run", "<!-- run EXPERIMENT --> or <!-- command NAME -->", ("run", "command")),
    ("code", "<!-- code module:name -->", ("code",)),
    ("a picture", "a Mermaid diagram or <!-- steps NAME -->", ("mermaid", "steps")),
)


def contract_faults(page: Page, facts: Facts) -> list[Fault]:
    """Everything in which a question page differs from the contract."""
    faults = [Fault(page.path, _line_of(page, key), text) for key, text in _front(page, facts)]
    return faults + _heading_faults(page) + _marker_faults(page)


def _front(page: Page, facts: Facts) -> Iterator[tuple[str, str]]:
    front = page.front
    for key in KEYS:
        if front.get(key) in (None, "", [], ()) and key != "problems":
            yield key, f"front matter: {key} is missing"
    for key in set(front) - set(KEYS):
        yield key, f"front matter: {key} is no key of a question page"
    if front.get("level") not in (None, *LEVELS):
        yield "level", f"front matter: level is one of {', '.join(LEVELS)}"
    for key in ("title", "description"):
        if not isinstance(front.get(key), str | None):
            yield key, f"front matter: {key} is a text"
    if front.get("topic") not in (None, *facts.ledger.topics):
        yield "topic", f"front matter: topic is one of {', '.join(facts.ledger.topics)}"
    for key, low, high in (("frequency", 1, 5), ("minutes", 1, 60)):
        value = front.get(key)
        if value is not None and not (type(value) is int and low <= value <= high):
            yield key, f"front matter: {key} is a whole number from {low} to {high}"
    yield from _lists(page, facts)


def _lists(page: Page, facts: Facts) -> Iterator[tuple[str, str]]:
    checks: tuple[tuple[str, Callable[[str], object] | None], ...] = (
        ("asked_in", _post),
        ("problems", facts.problem),
        ("claims", facts.outcome),
        ("key_points", None),
    )
    for key, check in checks:
        try:
            texts = page.texts(key)
        except MarkerError as error:
            yield key, str(error)
            continue
        for text in texts if check else ():
            try:
                assert check is not None
                check(text)
            except MarkerError as error:
                yield key, f"front matter: {error}"
        if key == "key_points" and texts and not _within(texts, KEY_POINTS):
            yield key, f"front matter: {len(texts)} key points; {_range(KEY_POINTS)} are wanted"
    try:
        records = follow_ups(page)
    except MarkerError as error:
        yield "follow_ups", str(error)
        return
    if records and not _within(records, FOLLOW_UPS):
        count = f"{len(records)} follow-ups; {_range(FOLLOW_UPS)} are wanted"
        yield "follow_ups", f"front matter: {count}"


def _post(name: str) -> None:
    if name not in POSTS:
        raise MarkerError(f"asked_in is of {', '.join(POSTS)}, not {name!r}")


def _within(values: list[Any], ends: tuple[int, int]) -> bool:
    return ends[0] <= len(values) <= ends[1]


def _range(ends: tuple[int, int]) -> str:
    return f"{ends[0]} to {ends[1]}"


def _heading_faults(page: Page) -> list[Fault]:
    wanted = HEADINGS[page.language]
    found = [(number, text) for level, number, text in page.headings() if level == 2]
    faults = [
        Fault(page.path, number, f"heading {text!r}: the contract has {', '.join(wanted)}")
        for number, text in found
        if text not in wanted
    ]
    texts = [text for _, text in found]
    missing = [one for one in wanted if one not in texts]
    if missing:
        faults.append(Fault(page.path, page.first_line, f"headings missing: {', '.join(missing)}"))
    elif not faults and tuple(texts) != wanted:
        faults.append(Fault(page.path, found[0][0], "level-2 headings are not in the given order"))
    faults += [
        Fault(page.path, number, "the title comes from the front matter: no level-1 heading")
        for level, number, _ in page.headings()
        if level == 1
    ]
    return faults


def _marker_faults(page: Page) -> list[Fault]:
    names = [name for _, name, _ in markers_of(page)]
    if any(line.language == "mermaid" for line in page.lines):
        names.append("mermaid")
    told = [
        f"the marker <!-- {name} --> must stand once"
        for name in ("follow-ups", "problems")
        if names.count(name) != 1
    ]
    told += [
        f"{what} is missing: {how}"
        for what, how, wanted in BELONGING
        if not any(name in names for name in wanted)
    ]
    return [Fault(page.path, page.first_line, text) for text in told]


def _line_of(page: Page, key: str) -> int:
    """The line of a key of the front matter; the first one where it is missing."""
    lines = page.path.read_text(encoding="utf-8").split("\n") if page.path.is_file() else []
    for number, line in enumerate(lines[: page.first_line], 1):
        if line.startswith(f"{key}:"):
            return number
    return 1
