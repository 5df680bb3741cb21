"""What every command says to the terminal, and how: consoles, sizes, JSON, error lines.

rich is imported when a console is made, not before: `infra-lab --help` needs none.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from infra_lab.errors import InfraLabError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID
    from rich.table import Table

    from infra_lab.models.store import ProgressCallback

StepsCallback = Callable[..., None]  # done, total, and what is going on
PIPED_WIDTH = 1000  # columns where no terminal limits them; tables take what they need


def make_console(stderr: bool = False) -> Console:
    """A console whose colours vanish, and whose lines stay whole, when output is piped."""
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    return console


def print_table(table: Table) -> None:
    """A table on stdout; piped, no line ends in blanks."""
    console = make_console()
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        sys.stdout.write(line.rstrip() + "\n")


def print_json(value: Any) -> None:
    """One JSON value on stdout, and nothing else."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def print_error(message: str, label: str = InfraLabError.label) -> None:
    """`error: message` on stderr, in red where somebody may see it."""
    line = f"{label}{message}"
    if sys.stderr.isatty() and "NO_COLOR" not in os.environ:
        line = f"\033[31m{line}\033[0m"
    with suppress(OSError):  # who closed stderr wants no messages
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def counted(count: int, noun: str) -> str:
    """1, "step" -> "1 step"; 2, "step" -> "2 steps"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def human_bytes(count: float) -> str:
    """12 -> "12 B", 98362432 -> "98.4 MB": decimal units, as disks and links are sold."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


@contextmanager
def pull_progress(quiet: bool = False) -> Iterator[ProgressCallback | None]:
    """A progress bar per phase on stderr: moving in a terminal, one line each when piped."""
    console = make_console(stderr=True)
    if quiet:
        yield None
    elif console.is_terminal:
        with _moving_bars(console) as report:
            yield report
    else:
        yield _PlainLines(console)


@contextmanager
def _moving_bars(console: Console) -> Iterator[ProgressCallback]:
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description:<22}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, TaskID] = {}

        def report(phase: str, done: int, total: int | None) -> None:
            if phase not in tasks:
                for earlier in tasks.values():
                    _complete(bars, earlier)
                tasks[phase] = bars.add_task(phase, total=total)
            bars.update(tasks[phase], completed=done, total=total)

        yield report


def _complete(bars: Progress, task_id: TaskID) -> None:
    """A finished phase shows a full bar, also where its total was a guess."""
    total = next(task.total for task in bars.tasks if task.id == task_id)
    if total:
        bars.update(task_id, completed=total)


class _PlainLines:
    """Says each phase once, when it begins."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said: set[str] = set()

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        if phase not in self._said:
            self._said.add(phase)
            size = f" ({human_bytes(total)})" if total else ""
            self._console.print(f"{phase}{size}")


@contextmanager
def steps_progress(noun: str, quiet: bool = False) -> Iterator[StepsCallback]:
    """How many of so many steps are done, on stderr: a bar in a terminal, else a line at every
    tenth part. What it gives takes the number done, of all, and may name what is going on."""
    console = make_console(stderr=True)
    if quiet:
        yield _say_nothing
    elif not console.is_terminal:
        yield _PlainSteps(console, noun)
    else:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console) as bars:
            task = bars.add_task(noun, total=None)

            def report(done: int, total: int, what: str = "") -> None:
                bars.update(task, completed=done, total=total, description=what or noun)

            yield report


def _say_nothing(done: int, total: int, what: str = "") -> None:
    """For who wants no progress."""


class _PlainSteps:
    """A line when another tenth is done."""

    def __init__(self, console: Console, noun: str) -> None:
        self._console = console
        self._noun = noun
        self._said = 0

    def __call__(self, done: int, total: int, what: str = "") -> None:
        if done == 0:
            self._said = 0
        tenths = 10 * done // total
        if tenths > self._said:
            self._said = tenths
            what = f"{what}: " if what else ""
            self._console.print(f"{what}{done} of {total} {self._noun}", markup=False)
