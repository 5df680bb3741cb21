"""Loads a solution's file as a module, and says what is wrong with one that cannot be."""

from __future__ import annotations

import ast
import difflib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from infra_lab.practice.failures import CallTimedOut, Failure, SolutionStopped
from infra_lab.practice.memory import release_memory_limit

MODULE_NAME = "solution"
_MISSING = object()


def load_solution(path: Path) -> ModuleType:
    """Raises SolutionStopped: syntax_error, import_failed, exited, timed_out, memory_exceeded."""
    source = _read_source(path)
    try:
        ast.parse(source, str(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SolutionStopped(_syntax_failure(path, source, error)) from None
    spec = importlib.util.spec_from_file_location(MODULE_NAME, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE_NAME] = module  # dataclasses and pickle look a class's module up
    try:
        spec.loader.exec_module(module)
    except CallTimedOut:
        raise SolutionStopped(
            Failure("timed_out", f"import {path.name}", "no end yet", "a file that loads at once")
        ) from None
    except SystemExit as error:
        said = f"SystemExit({error.code!r})"
        raise SolutionStopped(
            Failure("exited", f"import {path.name}", said, "a file that only defines things")
        ) from None
    except MemoryError:
        release_memory_limit()
        raise SolutionStopped(
            Failure("memory_exceeded", f"import {path.name}", "MemoryError", "less memory")
        ) from None
    except BaseException as error:
        lines = [
            f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)
        ]
        said = f"{type(error).__name__}: {error}".split("\n")[0][:300]
        raise SolutionStopped(
            Failure(
                "import_failed",
                f"import {path.name}",
                said,
                "a file that loads",
                line=lines[-1] if lines else None,
            )
        ) from None
    return module


def missing_entry_point(module: ModuleType, names: Sequence[str]) -> Failure | None:
    """A failure for the first of `names` that is no function or class of the module."""
    defined = [
        name
        for name, value in vars(module).items()
        if inspect.isroutine(value) or inspect.isclass(value)
    ]
    for name in names:
        value = vars(module).get(name, _MISSING)
        if callable(value):
            continue
        if value is not _MISSING:
            kind = type(value).__name__
            article = "an" if kind[0] in "aeiouAEIOU" else "a"
            found = f"{name} is {article} {kind}, not a function or class"
            wanted = f"a function or class named {name}"
            return Failure("missing_entry_point", "", found, wanted)
        close = difflib.get_close_matches(name, defined, n=1, cutoff=0.5)
        found = f"{close[0]} is there" if close else f"defined are: {', '.join(defined) or 'none'}"
        return Failure("missing_entry_point", "", found, f"{name}, by exactly this name")
    return None


def _read_source(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SolutionStopped(
            Failure("syntax_error", "", f"bytes that are not UTF-8: {error}", "Python in UTF-8")
        ) from None
    except OSError as error:
        raise SolutionStopped(
            Failure("import_failed", "", f"{error.strerror}: {path}", "a file that can be read")
        ) from None


def _syntax_failure(path: Path, source: str, error: Exception) -> Failure:
    line = getattr(error, "lineno", None)
    said = getattr(error, "msg", None) or str(error) or type(error).__name__
    lines = source.splitlines()
    text = lines[line - 1].strip() if line and line <= len(lines) else ""
    return Failure("syntax_error", text, str(said), "Python that compiles", line=line)
