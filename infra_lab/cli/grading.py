"""Grading a learner's file and showing what came of it: what `test` and `watch` share."""

from __future__ import annotations

import ast
from pathlib import Path

import typer

from infra_lab.cli.practice_view import Desk, is_terminal, quoted, shown_path
from infra_lab.cli.terminal import make_console
from infra_lab.practice.grade import Grade, Verdict
from infra_lab.practice.problem import Problem
from infra_lab.practice.progress import ProblemProgress
from infra_lab.practice.report import Line, report

_STYLES = {"good": "green", "bad": "bold red", "dim": "dim", "title": "bold", "": ""}
# What such a grade shows is no call, or one that would end the learner's interpreter.
_NOT_TO_BE_TRIED = (Verdict.SYNTAX_ERROR, Verdict.EXITED)


def grade_file(desk: Desk, problem: Problem, file: Path, seed: int) -> Grade:
    """Grades in a process of its own, with a sign of life on stderr."""
    from infra_lab.practice.sandbox import grade

    waiting = desk.say(f"grading {problem.slug}", f"正在评测 {problem.slug}")
    with make_console(stderr=True).status(waiting):
        return grade(problem, file, seed)


def record(desk: Desk, grade: Grade, seed: int) -> ProblemProgress:
    """Adds the grade to the learner's history, and returns that of the problem."""
    return desk.note(lambda progress: progress.record(grade, seed)).of(grade.slug)


def print_report(desk: Desk, grade: Grade, file: Path) -> None:
    """In colours in a terminal, plain when piped."""
    lines = report(grade, desk.language, shown_path(file))
    if is_terminal():
        _print_coloured(lines)
    else:
        typer.echo("\n".join(line.text for line in lines))
    code = "\n".join(line.text for line in lines if line.style == "code")
    if _can_be_run(code) and grade.verdict not in _NOT_TO_BE_TRIED:
        typer.echo()
        desk.say_line(
            f"To try the call: python -i {quoted(file)}, then paste it.",
            f"想亲手试这个调用：运行 python -i {quoted(file)}，然后粘贴。",
        )


def _can_be_run(code: str) -> bool:
    """Whether it is Python with nothing left out."""
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    is_whole = not any(isinstance(node, ast.Constant) and node.value is ... for node in nodes)
    return bool(code) and is_whole


def _print_coloured(lines: list[Line]) -> None:
    from rich.syntax import Syntax
    from rich.text import Text

    console = make_console()
    python = Syntax("", "python", theme="ansi_dark", background_color="default")
    for line in lines:
        if line.style == "code":
            text = python.highlight(line.text)
            text.rstrip()
        else:
            text = Text(line.text, _STYLES[line.style])
        # Code stays one line, so that it can be pasted.
        console.print(text, soft_wrap=line.style == "code")
