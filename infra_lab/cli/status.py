"""`infra-lab status`: how far am I, track by track?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from infra_lab.cli.bilingual import BilingualCommand, both, example
from infra_lab.cli.options import new_app
from infra_lab.cli.practice_view import (
    Desk,
    Lang,
    PracticeJson,
    ProgressFile,
    level_text,
    shown_path,
    track_text,
)
from infra_lab.cli.terminal import print_json, print_table
from infra_lab.practice.problem import LEVELS, TRACKS, Problem
from infra_lab.practice.progress import STATUSES, Progress

app = new_app()


@app.command(
    cls=BilingualCommand,
    epilog=example("status", "--json"),
    help=both("Show how far you are, track by track.", "按方向显示你的进度。"),
)
def status(json: PracticeJson = False, lang: Lang = None, progress: ProgressFile = None) -> None:
    """Show how far you are."""
    desk = Desk.open(lang, progress)
    problems = desk.problems()
    done = desk.store.read()
    if json:
        print_json(_summary(desk, problems, done))
        return
    _print_tables(desk, problems, done)
    _print_sums(desk, problems, done)
    if not problems:
        desk.next_step("infra-lab doctor", "checks the installation", "检查安装")
    elif all(done.of(one.slug).is_solved for one in problems):
        desk.say_line("All of them are solved. Well done.", "全部解出了，干得漂亮。")
        desk.next_step(
            "infra-lab list",
            "choose one to do again: `infra-lab reset SLUG` puts its starter back",
            "挑一道重做：`infra-lab reset SLUG` 会放回 starter",
        )
    else:
        desk.next_step("infra-lab next", "picks the next problem", "挑出下一道题")


def _counts(problems: Sequence[Problem], done: Progress) -> dict[str, int]:
    """How many are new, attempted, solved."""
    statuses = [done.of(one.slug).status for one in problems]
    return {name: statuses.count(name) for name in STATUSES}


def _print_tables(desk: Desk, problems: Sequence[Problem], done: Progress) -> None:
    from rich.table import Table

    say = desk.say
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", no_wrap=True)
    for name in (
        say("solved", "已解出"),
        say("attempted", "已作答"),
        say("new", "未开始"),
        say("all", "共"),
    ):
        table.add_column(name, justify="right")
    groups = [
        *((track_text(name, say), [p for p in problems if p.track == name], "") for name in TRACKS),
        *((level_text(name, say), [p for p in problems if p.level == name], "") for name in LEVELS),
        (say("total", "合计"), list(problems), "bold"),
    ]
    for name, group, style in groups:
        counts = _counts(group, done)
        numbers = (counts["solved"], counts["attempted"], counts["new"], len(group))
        table.add_row(name, *map(str, numbers), style=style)
    print_table(table)


def _print_sums(desk: Desk, problems: Sequence[Problem], done: Progress) -> None:
    mine = [done.of(one.slug) for one in problems]
    attempts = sum(len(one.attempts) for one in mine)
    hints = sum(one.hints for one in mine)
    revealed = sum(one.revealed is not None for one in mine)
    typer.echo()
    desk.say_line(
        f"attempts: {attempts}   hints: {hints}   solutions revealed: {revealed}",
        f"作答 {attempts} 次，用过提示 {hints} 条，提前看过题解 {revealed} 道",
    )
    path = shown_path(desk.store.path)
    desk.say_line(
        f"All of it stands in {path}: copy that file to go on elsewhere.",
        f"进度都在 {path} 里：把它复制到别的机器即可接着做。",
    )


def _summary(desk: Desk, problems: Sequence[Problem], done: Progress) -> dict[str, Any]:
    mine = [done.of(one.slug) for one in problems]
    return {
        "counts": _counts(problems, done),
        "tracks": {
            name: _counts([one for one in problems if one.track == name], done) for name in TRACKS
        },
        "levels": {
            name: _counts([one for one in problems if one.level == name], done) for name in LEVELS
        },
        "attempts": sum(len(one.attempts) for one in mine),
        "hints": sum(one.hints for one in mine),
        "solutions_revealed": sum(one.revealed is not None for one in mine),
        "progress_file": str(desk.store.path),
    }
