"""Pages made of a line or two, and all pages that there are."""

from __future__ import annotations

from pathlib import Path

from docs.hooks.facts import Facts
from docs.hooks.faults import ROOT
from docs.hooks.markers import expand
from docs.hooks.page import Page, parse_page
from infra_lab.texts import Language

FACTS = Facts()
PAGES = sorted(
    path for language in ("en", "zh") for path in (ROOT / "docs" / language).rglob("*.md")
)


def page(body: str, front: str = "", language: Language = "en") -> Page:
    text = f"---\n{front}\n---\n{body}" if front else body
    return parse_page(Path("made.md"), text, language)


def expanded(body: str, front: str = "", language: Language = "en") -> str:
    """The page's text; the test fails if anything is wrong with it."""
    text, faults = expand(page(body, front, language), FACTS, "../")
    assert faults == []
    return text


def complaints(body: str, front: str = "") -> list[tuple[int, str]]:
    """Line and text of everything that is wrong."""
    return [(one.line, one.message) for one in expand(page(body, front), FACTS)[1]]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT / "docs").as_posix() if path.is_relative_to(ROOT) else path.name
