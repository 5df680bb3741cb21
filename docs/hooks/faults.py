"""What can be wrong with a page, and where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class MarkerError(ValueError):
    """A marker names something that is not there; the message says what, and what is."""


class PageError(MarkerError):
    """A page that cannot be read. `line` is counted from 1."""

    def __init__(self, message: str, line: int = 1) -> None:
        super().__init__(message)
        self.line = line


class NotRecordedError(MarkerError):
    """A marker asks for a run whose record has still to be made: a gap, not a slip."""


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """`is_gap`: something is still to be recorded; a build goes on unless it is CI's."""

    path: Path
    line: int
    message: str
    is_gap: bool = False

    def __str__(self) -> str:
        path = self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path
        return f"{path}:{self.line}: {self.message}"
