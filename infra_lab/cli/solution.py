"""`infra-lab solution`: how others solve it, and what each approach costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infra_lab.cli.bilingual import BilingualCommand, both, example
from infra_lab.cli.options import new_app
from infra_lab.cli.practice_view import Desk, Lang, ProgressFile, Slug, is_terminal, shown_path
from infra_lab.cli.terminal import make_console
from infra_lab.practice.problem import NOTES, Problem, ProblemError
from infra_lab.practice.progress import now

app = new_app()


@app.command(
    cls=BilingualCommand,
    epilog=example("solution", "ring_walk"),
    help=both(
        "Show the approaches and the notes that compare them, after you have solved the problem "
        "or with --reveal.",
        "显示各种解法和对比笔记；需先解出题目，或加 --reveal。",
    ),
)
def solution(
    slug: Slug,
    reveal: Annotated[
        bool,
        typer.Option(
            "--reveal",
            help=both(
                "Show them before the problem is solved; this is recorded.",
                "还没解出也显示；会留下记录。",
            ),
        ),
    ] = False,
    lang: Lang = None,
    progress: ProgressFile = None,
) -> None:
    """Show the approaches and the notes."""
    desk = Desk.open(lang, progress)
    problem = desk.problem(slug)
    history = desk.store.read().of(problem.slug)
    if not (history.is_solved or history.revealed or reveal):
        raise desk.refusal(
            f"{problem.slug} is not solved yet: `infra-lab test {problem.slug}` grades your "
            f"attempt, `infra-lab hint {problem.slug}` helps, and `infra-lab solution "
            f"{problem.slug} --reveal` shows the solution all the same (it is recorded)",
            f"{problem.slug} 还没解出：`infra-lab test {problem.slug}` 评测你的作答，"
            f"`infra-lab hint {problem.slug}` 给提示；"
            f"`infra-lab solution {problem.slug} --reveal` 可直接看题解（会留下记录）",
        )
    texts = [(path, _read(path)) for path in _files(problem, desk.language)]
    if not (history.is_solved or history.revealed):
        with desk.store.change() as changed:
            changed.touch(problem.slug).revealed = now()
    for path, text in texts:
        _show(path, text)
    if history.is_solved:
        desk.next_step("infra-lab next", "the next problem", "下一道题")
    elif not desk.workspace.attempt(problem.slug).exists():
        desk.next_step(
            f"infra-lab start {problem.slug}",
            "write it yourself, without looking",
            "合上题解自己写一遍",
        )
    else:
        desk.next_step(
            f"infra-lab test {problem.slug}",
            "write it yourself, without looking, then grade it",
            "合上题解自己写一遍，再评测",
        )


def _files(problem: Problem, language: str) -> list[Path]:
    return [*problem.approaches(), problem.solutions / NOTES[language]]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ProblemError(f"{path} is missing") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ProblemError(f"{path}: {error}") from None


def _show(path: Path, text: str) -> None:
    if not is_terminal():
        typer.echo(f"---- {shown_path(path)} ----\n{text.rstrip()}\n")
        return
    from rich.markdown import Markdown
    from rich.rule import Rule
    from rich.syntax import Syntax

    console = make_console()
    console.print(Rule(shown_path(path), align="left", style="cyan"))
    if path.suffix == ".md":
        console.print(Markdown(text))
    else:
        console.print(Syntax(text, "python", theme="ansi_dark", background_color="default"))
    console.print()
