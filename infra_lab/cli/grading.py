"""Grading a learner's file and showing what came of it: what `test` and `watch` share."""

from __future__ import annotations

from pathlib import Path

import typer

from infra_lab.cli.practice_view import Desk, is_terminal, quoted, shown_path
from infra_lab.cli.terminal import make_console
from infra_lab.practice.grade import Grade, Verdict
from infra_lab.practice.problem import Problem
from infra_lab.practice.progress import ProblemProgress
from infra_lab.practice.report import plain_report, report

_STYLES = {"good": "green", "bad": "bold red", "dim": "dim", "title": "bold", "": ""}
_RUNNABLE = (Verdict.SYNTAX_ERROR, Verdict.IMPORT_FAILED, Verdict.EXITED, Verdict.UNSOLVED)


def grade_file(desk: Desk, problem: Problem, file: Path, seed: int) -> Grade:
    """Grades in a process of its own, with a sign of life on stderr."""
    from infra_lab.practice.sandbox import grade

    waiting = desk.say(f"grading {problem.slug}", f"正在评测 {problem.slug}")
    with make_console(stderr=True).status(waiting):
        return grade(problem, file, seed)


def record(desk: Desk, grade: Grade, seed: int) -> ProblemProgress:
    """Adds the grade to the learner's history, and returns that of the problem."""
    with desk.store.change() as progress:
        progress.record(grade, seed)
    return progress.of(grade.slug)


def print_report(desk: Desk, grade: Grade, file: Path) -> None:
    """In colours in a terminal, plain when piped."""
    if not is_terminal():
        typer.echo(plain_report(grade, desk.language, shown_path(file)), nl=False)
    else:
        _print_coloured(desk, grade, file)
    failure = grade.first_failure
    if failure is not None and failure.call and grade.verdict not in _RUNNABLE:
        typer.echo()
        desk.say_line(
            f"To try the call: python -i {quoted(file)}, then paste it.",
            f"想亲手试这个调用：运行 python -i {quoted(file)}，然后粘贴。",
        )


def _print_coloured(desk: Desk, grade: Grade, file: Path) -> None:
    from rich.syntax import Syntax
    from rich.text import Text

    console = make_console()
    python = Syntax("", "python", theme="ansi_dark", background_color="default")
    for line in report(grade, desk.language, shown_path(file)):
        if line.style == "code":
            text = python.highlight(line.text)
            text.rstrip()
        else:
            text = Text(line.text, _STYLES[line.style])
        # Code stays one line, so that it can be pasted.
        console.print(text, soft_wrap=line.style == "code")
