"""`infra-lab hint`: one hint at a time, from a nudge to the plan."""

from __future__ import annotations

from typing import Annotated

import typer

from infra_lab.cli.bilingual import BilingualCommand, both, example
from infra_lab.cli.options import new_app
from infra_lab.cli.practice_view import Desk, Lang, ProgressFile, Slug
from infra_lab.practice.problem import Problem
from infra_lab.practice.progress import ProblemProgress

app = new_app()


@app.command(
    cls=BilingualCommand,
    epilog=example("hint", "ring_walk"),
    help=both(
        "Reveal the next hint; the number of hints is counted.",
        "显示下一条提示；用掉的提示会计数。",
    ),
)
def hint(
    slug: Slug,
    all_revealed: Annotated[
        bool,
        typer.Option(
            "--all",
            help=both(
                "Repeat the hints revealed so far, and reveal no other.",
                "重新显示已经看过的提示，不显示新的。",
            ),
        ),
    ] = False,
    lang: Lang = None,
    progress: ProgressFile = None,
) -> None:
    """Reveal the next hint."""
    desk = Desk.open(lang, progress)
    problem = desk.problem(slug)
    hints = problem.hints()
    if all_revealed:
        history = desk.store.read().of(problem.slug)
        first, revealed = 0, history.hints
        if revealed == 0:
            desk.say_line("No hint has been revealed yet.", "还没有看过提示。")
    else:
        with desk.store.change() as changed:
            history = changed.touch(problem.slug)
            first = history.hints  # what an earlier command revealed
            history.hints = max(min(first + 1, len(hints)), first)
            revealed = history.hints
        if first >= len(hints):
            desk.say_line(
                f"All {len(hints)} hints are revealed: `infra-lab hint {problem.slug} --all` "
                "shows them again.",
                f"{len(hints)} 条提示都已显示过：用 `infra-lab hint {problem.slug} --all` 重看。",
            )
    for number, text in enumerate(hints[first:revealed], first + 1):
        desk.say_line(f"Hint {number} of {len(hints)}", f"提示 {number}/{len(hints)}")
        typer.echo(f"  {text[desk.language]}")
    _next_step(desk, problem, history, len(hints))


def _next_step(desk: Desk, problem: Problem, history: ProblemProgress, count: int) -> None:
    slug = problem.slug
    if history.is_solved:
        desk.next_step(
            f"infra-lab solution {slug}", "compare with other approaches", "对比其他解法"
        )
    elif not desk.workspace.attempt(slug).exists():
        desk.next_step(f"infra-lab start {slug}", "copies the starter", "复制 starter")
    elif history.hints < count:
        desk.next_step(
            f"infra-lab test {slug}",
            f"or `infra-lab hint {slug}` for the next of {count} hints",
            f"也可以用 `infra-lab hint {slug}` 看下一条，共 {count} 条",
        )
    elif history.revealed:
        desk.next_step(
            f"infra-lab test {slug}",
            f"or `infra-lab solution {slug}`, which you have seen",
            f"也可以用 `infra-lab solution {slug}` 重看题解",
        )
    else:
        desk.next_step(
            f"infra-lab test {slug}",
            f"or `infra-lab solution {slug} --reveal`, which is recorded",
            f"也可以用 `infra-lab solution {slug} --reveal` 看题解，会留下记录",
        )
