"""Notices a solution that replaces parts of Python, of hypothesis or of the grader.

It guards against accidents and against the obvious tricks: a grade is for the learner, who can
cheat only themself. It is no wall against hostile code.
"""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any

WATCHED = (
    "_pytest",
    "bisect",
    "builtins",
    "collections",
    "copy",
    "fractions",
    "functools",
    "heapq",
    "hypothesis",
    "infra_lab.practice",
    "itertools",
    "json",
    "math",
    "numpy",
    "operator",
    "pytest",
    "random",
    "statistics",
    "time",
)
OURS = "infra_lab.practice"


class Integrity:
    """Remembers the functions and classes that graders rely on, and the methods of our own."""

    def __init__(self) -> None:
        self._before: list[tuple[str, Any, dict[str, Any]]] = []
        for name, module in [*sys.modules.items()]:
            if not _is_watched(name) or not isinstance(module, ModuleType):
                continue
            self._before.append((name, module, _callables(module)))
            if name.startswith(OURS):
                self._before += [
                    (f"{name}.{key}", value, _callables(value))
                    for key, value in vars(module).items()
                    if inspect.isclass(value) and value.__module__ == name
                ]

    def replaced(self) -> str | None:
        """The name of one that is another object now, or gone."""
        for name, owner, before in self._before:
            now = vars(owner)
            for key, value in before.items():
                if now.get(key) is not value:
                    return f"{name}.{key}"
        return None


def _is_watched(name: str) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in WATCHED)


def _callables(owner: Any) -> dict[str, Any]:
    return {key: value for key, value in vars(owner).items() if callable(value)}
