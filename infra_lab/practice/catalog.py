"""All problems: found by their folders, in the order of their numbers."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from infra_lab.errors import UsageError
from infra_lab.practice.problem import Problem, ProblemError, load_problem

ROOT_VARIABLE = "INFRA_LAB_PROBLEMS"


def default_root() -> Path:
    """The repository: the folder that holds problems/ and solutions/."""
    chosen = os.environ.get(ROOT_VARIABLE)
    return Path(chosen) if chosen else Path(__file__).resolve().parents[2]


def slugs(root: Path | None = None) -> list[str]:
    folder = (root or default_root()) / "problems"
    return sorted(path.parent.name for path in folder.glob("*/problem.toml"))


def load(slug: str, root: Path | None = None) -> Problem:
    """Raises UsageError for a slug that is none, ProblemError for a folder that is damaged."""
    root = root or default_root()
    folder = root / "problems" / slug
    if not (folder / "problem.toml").is_file():
        raise UsageError(f"there is no problem {slug!r}{_near(slug, slugs(root))}")
    return load_problem(folder, root / "solutions")


def load_all(root: Path | None = None) -> list[Problem]:
    """By number. Raises ProblemError for the first damaged folder."""
    problems = sorted((load(slug, root) for slug in slugs(root)), key=lambda one: one.number)
    for first, second in itertools.pairwise(problems):
        if first.number == second.number:
            raise ProblemError(
                f"problems {first.slug} and {second.slug} have the same number {first.number}"
            )
    return problems


def _near(slug: str, known: list[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(slug, known, n=1)
    return f": did you mean {close[0]!r}?" if close else ": `infra-lab list` shows all"
