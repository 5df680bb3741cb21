"""What an experiment is: a question, what it needs, how it runs, and what it then says.

Its conclusions are statements that hold or not, about ratios and counts, so that they can be
asserted on any machine; the numbers in them are the run's own, by name. Deterministic under the
seed wherever no clock is involved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from infra_lab.texts import Language, Text

Need = Literal["model", "compiler", "linux"]
Cell = str | float | Text
Progress = Callable[[int, int, Text], None]
"""Told the parts done, of all, and what is going on."""


@dataclass(frozen=True, slots=True)
class Column:
    """`format` is how a number of this column is shown, as in an f-string: ".1%", ",.0f"."""

    title: Text
    format: str = ""

    def shown(self, cell: Cell, language: Language) -> str:
        if isinstance(cell, str):
            return cell
        return format(cell, self.format) if isinstance(cell, int | float) else cell[language]


def column(en: str, zh: str, spec: str = "") -> Column:
    return Column({"en": en, "zh": zh}, spec)


@dataclass(frozen=True, slots=True)
class Table:
    """Every row has a cell for every column: a number, a text, or a text in both languages."""

    title: Text
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of {len(row)} cells under {len(self.columns)} columns")

    def texts(self, index: int, language: Language) -> list[str]:
        """A column as it is shown."""
        return [self.columns[index].shown(row[index], language) for row in self.rows]

    def numbers(self, index: int) -> list[float]:
        """A column of numbers as they are."""
        return [float(cell) for row in self.rows if not isinstance(cell := row[index], Mapping)]

    def shown(self, language: Language) -> list[list[str]]:
        """The rows as texts."""
        return [
            [one.shown(cell, language) for one, cell in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]


@dataclass(frozen=True, slots=True)
class Conclusion:
    """`statement` names the numbers of the result in braces, with a format, and holds none."""

    statement: Text
    holds: bool


@dataclass(frozen=True, slots=True)
class Result:
    """What came out. `series` is what only the figure shows, too long for a table."""

    numbers: Mapping[str, float]
    tables: tuple[Table, ...]
    conclusions: tuple[Conclusion, ...]
    series: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether every conclusion does."""
        return all(one.holds for one in self.conclusions)

    def said(self, conclusion: Conclusion, language: Language) -> str:
        """A conclusion with its numbers filled in."""
        return conclusion.statement[language].format(**self.numbers)

    def as_dict(self) -> dict[str, Any]:
        """For other programs: numbers as they are, every text in both languages."""
        return {
            "numbers": dict(self.numbers),
            "tables": [
                {
                    "title": dict(table.title),
                    "columns": [dict(one.title) for one in table.columns],
                    "formats": [one.format for one in table.columns],
                    "rows": [[_plain(cell) for cell in row] for row in table.rows],
                }
                for table in self.tables
            ],
            "conclusions": [
                {
                    "statement": {"en": self.said(one, "en"), "zh": self.said(one, "zh")},
                    "holds": one.holds,
                }
                for one in self.conclusions
            ],
        }


@dataclass(frozen=True, slots=True)
class Experiment:
    """`run` takes a progress report and a seed; `draw` writes an SVG file in one language.
    `seconds`: about how long it takes on two cores."""

    name: str
    title: Text
    question: Text
    run: Callable[[Progress, int], Result]
    draw: Callable[[Result, Path, Language], None]
    seconds: float
    needs: tuple[Need, ...] = ()


def silent(done: int, total: int, what: Text) -> None:
    """The progress report of who wants none."""


def _plain(cell: Cell) -> Any:
    return cell if isinstance(cell, str | int | float) else dict(cell)
