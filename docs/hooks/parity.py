"""Both languages have the same pages, with the same structure: one is never behind the other."""

from __future__ import annotations

from pathlib import Path

from docs.hooks.faults import ROOT, Fault
from docs.hooks.markers import markers_of
from docs.hooks.numbers import braces_in
from docs.hooks.page import Page

SAME_KEYS = ("topic", "level", "frequency", "asked_in", "minutes", "problems", "claims", "tags")
COUNTED_KEYS = ("key_points", "follow_ups")


def page_names(language: str, root: Path = ROOT) -> set[str]:
    folder = root / "docs" / language
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.md")}


def missing_pages(root: Path = ROOT) -> list[Fault]:
    """A page that only one language has."""
    english, chinese = page_names("en", root), page_names("zh", root)
    return [
        Fault(root / "docs" / have / name, 1, f"docs/{lack}/{name} is missing")
        for have, lack, names in (("en", "zh", english - chinese), ("zh", "en", chinese - english))
        for name in sorted(names)
    ]


def parity_faults(english: Page, chinese: Page) -> list[Fault]:
    """In what the Chinese page differs from its English twin."""
    found: list[tuple[int, str]] = []
    if set(english.front) != set(chinese.front):
        differing = ", ".join(sorted(set(english.front) ^ set(chinese.front)))
        found.append((1, f"front matter: only one language has {differing}"))
    for key in SAME_KEYS:
        if english.front.get(key) != chinese.front.get(key):
            found.append((1, f"front matter: {key} differs from the English page"))
    for key in COUNTED_KEYS:
        lists = [one.front.get(key) or [] for one in (english, chinese)]
        if not all(isinstance(one, list) for one in lists):
            continue  # told where the contract is checked
        counts = [len(one) for one in lists]
        if counts[0] != counts[1]:
            found.append((1, f"front matter: {counts[1]} {key}, the English page has {counts[0]}"))
    found += _heading_faults(english, chinese) + _marker_faults(english, chinese)
    return [Fault(chinese.path, line, text) for line, text in found]


def _heading_faults(english: Page, chinese: Page) -> list[tuple[int, str]]:
    levels = [[level for level, _, _ in one.headings()] for one in (english, chinese)]
    found = []
    for level in (1, 2, 3):
        here, there = levels[1].count(level), levels[0].count(level)
        if here != there:
            found.append((1, f"{here} headings of level {level}, the English page has {there}"))
    if not found and levels[0] != levels[1]:
        found.append((1, "headings are nested otherwise than on the English page"))
    return found


def _marker_faults(english: Page, chinese: Page) -> list[tuple[int, str]]:
    here = [(name, argument) for _, name, argument in markers_of(chinese)]
    there = [(name, argument) for _, name, argument in markers_of(english)]
    if here != there:
        place = next(
            (
                index
                for index, pair in enumerate(zip(here, there, strict=False))
                if pair[0] != pair[1]
            ),
            min(len(here), len(there)),
        )
        names = [
            " ".join(one[place]).strip() if place < len(one) else "none" for one in (here, there)
        ]
        lines = [line for line, _, _ in markers_of(chinese)]
        line = lines[place] if place < len(lines) else 1
        return [(line, f"marker {place + 1} is {names[0]}; on the English page {names[1]}")]
    numbers = [sorted(_braces(one)) for one in (chinese, english)]
    if set(numbers[0]) != set(numbers[1]):
        differing = ", ".join(sorted(set(numbers[0]) ^ set(numbers[1])))
        return [(1, f"only one language has the numbers {differing}")]
    return []


def _braces(page: Page) -> list[str]:
    return [
        " ".join(inside.split()).rsplit(":", 1)[0].strip()
        for line in page.lines
        if line.fence is None
        for inside in braces_in(line.text)
    ]


def is_question(path: Path) -> bool:
    """A page that the contract of question pages binds."""
    return path.parent.name == "questions" and path.stem != "index"
