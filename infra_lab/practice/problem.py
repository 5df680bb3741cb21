"""A problem is a folder; this reads one, and says which file and field is wrong if it cannot.

Nothing else registers a problem: a folder with a `problem.toml` is one.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra_lab.errors import InfraLabError
from infra_lab.texts import LANGUAGES

TRACK_NAMES = {
    "algorithms": {"en": "Algorithms", "zh": "算法"},
    "attention": {"en": "Attention", "zh": "注意力"},
    "serving": {"en": "Serving", "zh": "推理服务"},
    "quantization": {"en": "Quantization", "zh": "量化"},
}
LEVEL_NAMES = {
    "easy": {"en": "easy", "zh": "简单"},
    "medium": {"en": "medium", "zh": "中等"},
    "hard": {"en": "hard", "zh": "困难"},
}
TRACKS = tuple(TRACK_NAMES)
LEVELS = tuple(LEVEL_NAMES)
STATEMENTS = {"en": "README.md", "zh": "README.zh.md"}
NOTES = {"en": "notes.md", "zh": "notes.zh.md"}


class ProblemError(InfraLabError):
    """A problem's folder is not as it must be."""

    exit_status = 3  # the fault is ours, not the learner's


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """What a solution must define.

    Attributes:
        name: of a function or class.
        signature: as the statement shows it, without `def` or `class`.
        is_follow_up: graded only where the solution has it; the problem is solved without.
    """

    name: str
    signature: str
    is_follow_up: bool = False


@dataclass(frozen=True, slots=True)
class Budget:
    """What one grade may take.

    Attributes:
        wall_s: of the whole grade.
        cpu_s: of the whole grade, all threads together.
        call_s: of one call of the solution.
        memory_mb: beyond what Python and the libraries take.
    """

    wall_s: float = 60.0
    cpu_s: float = 60.0
    call_s: float = 5.0
    memory_mb: int = 512


@dataclass(frozen=True, slots=True)
class Problem:
    """One folder of `problems/`, with its twin in `solutions/`."""

    slug: str
    folder: Path
    solutions: Path
    number: int
    title: dict[str, str]
    summary: dict[str, str]
    track: str
    level: str
    frequency: int  # 1 (rare) to 5 (asked everywhere)
    tags: tuple[str, ...]
    companies: tuple[str, ...]
    entry_points: tuple[EntryPoint, ...]
    requires: tuple[str, ...]
    budget: Budget
    sources: tuple[str, ...]

    @property
    def required_names(self) -> list[str]:
        """The entry points that every solution must have."""
        return [entry.name for entry in self.entry_points if not entry.is_follow_up]

    @property
    def starter(self) -> Path:
        return self.folder / "starter.py"

    @property
    def grader(self) -> Path:
        return self.folder / "grader.py"

    def statement(self, language: str) -> str:
        return (self.folder / STATEMENTS[language]).read_text(encoding="utf-8")

    def hints(self) -> list[dict[str, str]]:
        """Three, each {en, zh}, from a nudge to the plan."""
        path = self.folder / "hints.toml"
        hints = _read_toml(path).get("hint", [])
        if not isinstance(hints, list) or not all(map(_is_text_pair, hints)):
            raise ProblemError(f"{path}: each [[hint]] needs the texts en and zh, and only those")
        return list(hints)

    def interview(self) -> dict[str, Any]:
        """minutes, [[follow_up]] {question, answer} and [[rubric]], all texts {en, zh}."""
        return _read_toml(self.folder / "interview.toml")

    def approaches(self) -> list[Path]:
        """solution.py first, then approach_*.py by name."""
        others = sorted(self.solutions.glob("approach_*.py"))
        return [self.solutions / "solution.py", *others]


@dataclass(slots=True)
class _Fields:
    """Takes fields out of a table one by one, and complains of what is wrong or left."""

    path: Path
    table: dict[str, Any]
    taken: set[str] = field(default_factory=set)

    def take(self, name: str, kind: type, default: Any = None) -> Any:
        self.taken.add(name)
        if name not in self.table:
            if default is None:
                raise ProblemError(f"{self.path}: {name} is missing")
            return default
        value = self.table[name]
        if kind is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
            raise ProblemError(f"{self.path}: {name} must be a {kind.__name__}, not {value!r}")
        return value

    def take_choice(self, name: str, choices: tuple[str, ...]) -> str:
        value: str = self.take(name, str)
        if value not in choices:
            raise ProblemError(f"{self.path}: {name} must be one of {choices}, not {value!r}")
        return value

    def take_texts(self, name: str) -> dict[str, str]:
        texts: dict[str, str] = self.take(name, dict)
        if not _is_text_pair(texts):
            raise ProblemError(f"{self.path}: {name} needs the texts en and zh, and only those")
        return texts

    def take_names(self, name: str) -> tuple[str, ...]:
        names: list[str] = self.take(name, list, [])
        if not all(isinstance(one, str) for one in names):
            raise ProblemError(f"{self.path}: {name} must be a list of texts")
        return tuple(names)

    def finish(self) -> None:
        if unknown := sorted(set(self.table) - self.taken):
            raise ProblemError(f"{self.path}: unknown field {unknown[0]!r}")


def load_problem(folder: Path, solutions_root: Path) -> Problem:
    """Raises ProblemError, which names the file and the field."""
    path = folder / "problem.toml"
    fields = _Fields(path, _read_toml(path))
    problem = Problem(
        slug=folder.name,
        folder=folder,
        solutions=solutions_root / folder.name,
        number=fields.take("number", int),
        title=fields.take_texts("title"),
        summary=fields.take_texts("summary"),
        track=fields.take_choice("track", TRACKS),
        level=fields.take_choice("level", LEVELS),
        frequency=fields.take("frequency", int),
        tags=fields.take_names("tags"),
        companies=fields.take_names("companies"),
        entry_points=tuple(_entry_point(path, table) for table in fields.take("entry", list)),
        requires=fields.take_names("requires"),
        budget=_budget(path, fields.take("budget", dict, {})),
        sources=fields.take_names("sources"),
    )
    fields.finish()
    if not 1 <= problem.frequency <= 5:
        raise ProblemError(f"{path}: frequency must be 1 to 5, not {problem.frequency}")
    if not problem.required_names:
        raise ProblemError(f"{path}: at least one [[entry]] must not be a follow-up")
    return problem


def _entry_point(path: Path, table: Any) -> EntryPoint:
    if not isinstance(table, dict):
        raise ProblemError(f"{path}: entry must be a list of tables, [[entry]]")
    fields = _Fields(path, table)
    entry = EntryPoint(
        fields.take("name", str),
        fields.take("signature", str),
        fields.take("follow_up", bool, False),
    )
    fields.finish()
    return entry


def _budget(path: Path, table: dict[str, Any]) -> Budget:
    fields = _Fields(path, table)
    usual = Budget()
    budget = Budget(
        wall_s=fields.take("wall_s", float, usual.wall_s),
        cpu_s=fields.take("cpu_s", float, usual.cpu_s),
        call_s=fields.take("call_s", float, usual.call_s),
        memory_mb=fields.take("memory_mb", int, usual.memory_mb),
    )
    fields.finish()
    return budget


def _is_text_pair(value: Any) -> bool:
    """A text in each language."""
    return (
        isinstance(value, dict)
        and set(value) == set(LANGUAGES)
        and all(isinstance(text, str) for text in value.values())
    )


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ProblemError(f"{path} is missing") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ProblemError(f"{path}: {error}") from None
