"""How an experiment is shown: what it asks, its tables, what it concludes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from infra_lab.claims.check import compute
from infra_lab.claims.claim import Claim
from infra_lab.claims.experiments.experiment import Experiment, Result, Table
from infra_lab.cli.claims_view import verdict_text
from infra_lab.cli.terminal import make_console, print_table
from infra_lab.texts import Language, speaker


def print_question(experiment: Experiment, claim: Claim | None, language: Language) -> None:
    """What is asked, and the claim on whose behalf."""
    from rich.text import Text

    say, console = speaker(language), make_console()
    console.print(Text(f"{experiment.title[language]}  ({experiment.name})", "bold"))
    console.print(Text(experiment.question[language]))
    if claim is None:
        return
    answer = claim.answered(language, compute(claim))
    label = say("claim", "论断")
    console.print(Text(f"\n{label} {claim.id}: ", "dim") + Text(claim.statement[language]))
    console.print(Text(say("verdict: ", "结论："), "dim") + verdict_text(claim, say))
    console.print(Text(say("so is: ", "事实："), "dim") + Text(answer))


def print_result(result: Result, seconds: float, figure: Path | None, language: Language) -> None:
    """The tables, then a tick or a cross before every conclusion."""
    from rich.text import Text

    say, console = speaker(language), make_console()
    for table in result.tables:
        typer.echo()
        _print_table(table, language)
    typer.echo()
    for one in result.conclusions:
        mark = Text("✓ ", "green") if one.holds else Text("✗ ", "bold red")
        console.print(mark + Text(result.said(one, language)))
    took = say(f"took {seconds:.1f} s", f"用时 {seconds:.1f} 秒")
    if figure is None:
        how = say("--figure FILE.svg draws it", "加 --figure FILE.svg 可画图")
    else:
        how = say(f"figure: {figure}", f"图：{figure}")
    typer.echo(say(f"\n{took}; {how}", f"\n{took}；{how}"))


def print_experiments(
    found: Sequence[tuple[Experiment, Sequence[str]]], language: Language
) -> None:
    """A line each: name, title, about how long it takes and what it needs, its claims."""
    from rich.table import Table as Grid
    from rich.text import Text

    say = speaker(language)
    grid = Grid(box=None, show_header=False, pad_edge=False)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold", style="dim")
    for one, ids in found:
        what = ", ".join((say(f"{one.seconds:g} s", f"{one.seconds:g} 秒"), *one.needs))
        grid.add_row(
            Text(one.name, "bold"), Text(one.title[language]), Text(what), Text(" ".join(ids))
        )
    print_table(grid)
    typer.echo(say("\nRun one: infra-lab claims run NAME", "\n运行：infra-lab claims run NAME"))


def _print_table(table: Table, language: Language) -> None:
    from rich.table import Table as Grid
    from rich.text import Text

    make_console().print(Text(table.title[language], "bold"))
    grid = Grid(box=None, pad_edge=False)
    for index, one in enumerate(table.columns):
        numeric = all(isinstance(row[index], int | float) for row in table.rows)
        grid.add_column(Text(one.title[language]), justify="right" if numeric else "left")
    for row in table.shown(language):
        grid.add_row(*map(Text, row))
    print_table(grid)
