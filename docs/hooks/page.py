"""A page as its author wrote it: front matter, and lines of which we know which are code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from docs.hooks.faults import ROOT, MarkerError, PageError
from infra_lab.texts import Language

_FENCE = re.compile(r"^(?P<indent>[ \t]*)(?P<ticks>`{3,}|~{3,})(?P<info>[^`]*)$")
_HEADING = re.compile(r"^(?P<marks>#{1,6})[ \t]+(?P<text>.+?)[ \t]*(?:\{[^}]*\})?$")


@dataclass(frozen=True, slots=True)
class Line:
    """`fence` is the info string of the code block that the line is in, or opens or closes; None
    for prose."""

    number: int
    text: str
    fence: str | None
    is_delimiter: bool = False

    @property
    def language(self) -> str:
        """The language of the code block: "python" of `python title="x"`; "" where none is said."""
        found = re.match(r"\s*\{?\s*\.?([\w+#-]*)", self.fence or "")
        return found[1] if found else ""


@dataclass(frozen=True)
class Page:
    """`first_line`: the number of the body's first line in the file."""

    path: Path
    language: Language
    front: dict[str, Any]
    body: str
    first_line: int

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        return tuple(_lines(self.body, self.first_line))

    def headings(self) -> list[tuple[int, int, str]]:
        """Level, line and text of every heading outside code."""
        return [
            (len(found["marks"]), line.number, found["text"])
            for line in self.lines
            if line.fence is None and (found := _HEADING.match(line.text))
        ]

    def texts(self, key: str) -> list[str]:
        """A list of texts of the front matter; none where it is absent."""
        value = self.front.get(key) or []
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise MarkerError(f"front matter: {key} must be a list of texts")
        return value


def read_page(path: Path) -> Page:
    """Raises PageError for text that is not UTF-8 and front matter that is not keys and values."""
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise PageError(f"is not UTF-8: byte 0x{error.object[error.start]:02x}", line) from error
    return parse_page(path, text.replace("\r\n", "\n"))


def parse_page(path: Path, text: str, language: Language | None = None) -> Page:
    front, body, first_line = _split(text)
    return Page(path, language or language_of(path), front, body, first_line)


def language_of(path: Path) -> Language:
    """zh for what lies under docs/zh."""
    inside = path.relative_to(ROOT / "docs") if path.is_relative_to(ROOT / "docs") else path
    return "zh" if "zh" in inside.parts[:1] else "en"


def _split(text: str) -> tuple[dict[str, Any], str, int]:
    found = re.match(r"\A---[ \t]*\n(.*?\n)---[ \t]*(?:\n|\Z)", text, re.DOTALL)
    if found is None:
        return {}, text, 1
    try:
        front = yaml.safe_load(found[1]) or {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 2 if mark else 1  # marks count from 0, after the line of dashes
        raise PageError(f"front matter: {' '.join(str(error).split())}", line) from error
    if not isinstance(front, dict):
        raise PageError("front matter: must be keys and values")
    if odd := [key for key in front if not isinstance(key, str)]:
        raise PageError(f"front matter: the key {odd[0]!r} is no text", _line_of(found[1], odd[0]))
    return front, text[found.end() :], text[: found.end()].count("\n") + 1


def _line_of(front: str, key: object) -> int:
    lines = front.split("\n")
    return next((at for at, line in enumerate(lines, 2) if line.startswith(f"{key}:")), 1)


def _lines(body: str, first: int) -> Iterator[Line]:
    opened: re.Match[str] | None = None
    for number, text in enumerate(body.split("\n"), first):
        found = _FENCE.match(text)
        if opened is None:
            opened = found
            yield Line(number, text, found["info"].strip() if found else None, found is not None)
            continue
        closes = (
            found is not None
            and found["ticks"].startswith(opened["ticks"])
            and not found["info"].strip()
        )
        yield Line(number, text, opened["info"].strip(), closes)
        if closes:
            opened = None
