"""`infra-lab list`: which problems there are, how often each is asked, and where I stand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import typer

from infra_lab.cli.bilingual import BilingualCommand, both, example
from infra_lab.cli.options import new_app
from infra_lab.cli.practice_view import (
    STATUS_STYLES,
    Desk,
    Lang,
    PracticeJson,
    ProgressFile,
    is_terminal,
    level_text,
    status_text,
    track_text,
)
from infra_lab.cli.problem_filter import Company, Level, Tag, Track, checked_filter
from infra_lab.cli.terminal import make_console, print_json, print_table
from infra_lab.practice.problem import Problem
from infra_lab.practice.progress import STATUSES, Progress

app = new_app()

_NUMBER, _TITLE, _HINTS, _TAGS = 0, 2, 7, 8  # columns that are special
_WIDTH_WITH_TITLES, _WIDTH_WITH_TAGS = 90, 110


@app.command(
    cls=BilingualCommand,
    epilog=example("list", "--track", "serving", "--status", "new"),
    help=both(
        "Show the problems, how often each is asked, and where you stand.",
        "列出题目、考频和你的进度。",
    ),
)
def list_problems(
    track: Track = None,
    level: Level = None,
    tag: Tag = None,
    company: Company = None,
    status: Annotated[
        str | None,
        typer.Option(
            "--status",
            metavar="NAME",
            help=both(
                f"Only with this status: {', '.join(STATUSES)}.",
                f"只看这个状态：{', '.join(STATUSES)}。",
            ),
        ),
    ] = None,
    json: PracticeJson = False,
    lang: Lang = None,
    progress: ProgressFile = None,
) -> None:
    """Show the problems."""
    desk = Desk.open(lang, progress)
    problems = desk.problems()
    wanted = checked_filter(desk, problems, track, level, tag, company, status)
    done = desk.store.read()
    shown = [one for one in problems if wanted.takes(one, done)]
    if json:
        print_json([_row(one, done) for one in shown])
        return
    if shown:
        _print_table(desk, shown, done)
    elif problems:
        desk.say_line(
            f"No problem is like that: the filters leave none of {len(problems)}.",
            f"没有符合条件的题目：{len(problems)} 道题都被筛掉了。",
        )
        desk.next_step("infra-lab list", "shows all", "列出所有题目")
        return
    else:
        desk.say_line("There are no problems here.", "这里没有题目。")
        desk.next_step("infra-lab doctor", "checks the installation", "检查安装")
        return
    solved = sum(done.of(one.slug).is_solved for one in shown)
    typer.echo()
    desk.say_line(f"{solved} of {len(shown)} solved", f"已解出 {solved}/{len(shown)}")
    if all(done.of(one.slug).is_solved for one in problems):
        desk.next_step("infra-lab status", "shows what you did", "看看你的成绩")
    else:
        desk.next_step(
            "infra-lab next", "picks one for you, and says why", "替你挑一道，并说明理由"
        )


def _print_table(desk: Desk, problems: Sequence[Problem], done: Progress) -> None:
    """A narrow terminal goes without the tags, a very narrow one without the titles too."""
    from rich.table import Table
    from rich.text import Text

    say, width = desk.say, make_console().width
    columns = [
        say("no.", "编号"),
        say("slug", "名字"),
        say("title", "题目"),
        say("track", "方向"),
        say("level", "难度"),
        say("asked", "考频"),
        say("status", "状态"),
        say("hints", "提示"),
        say("tags", "标签"),
    ]
    shown = [
        index
        for index in range(len(columns))
        if width >= {_TITLE: _WIDTH_WITH_TITLES, _TAGS: _WIDTH_WITH_TAGS}.get(index, 0)
    ]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index in shown:
        numbers = index in (_NUMBER, _HINTS)
        justify: Literal["right", "left"] = "right" if numbers else "left"
        # Titles and tags give way where it is narrow; the rest stays whole.
        table.add_column(columns[index], justify=justify, no_wrap=index not in (_TITLE, _TAGS))
    for one in problems:
        mine = done.of(one.slug)
        cells = [
            Text(str(one.number)),
            Text(one.slug, "cyan"),
            Text(one.title[desk.language], no_wrap=True, overflow="ellipsis"),
            Text(track_text(one.track, say)),
            Text(level_text(one.level, say)),
            Text(_frequency(one.frequency)),
            Text(status_text(mine, say), STATUS_STYLES[mine.status]),
            Text(str(mine.hints or "-")),
            Text(", ".join(one.tags), "dim", no_wrap=True, overflow="ellipsis"),
        ]
        table.add_row(*(cells[index] for index in shown))
    print_table(table)


def _frequency(frequency: int) -> str:
    """Stars for the eye; piped, a number that can be sorted."""
    return "★" * frequency + "☆" * (5 - frequency) if is_terminal() else f"{frequency}/5"


def _row(problem: Problem, done: Progress) -> dict[str, Any]:
    mine = done.of(problem.slug)
    return {
        "number": problem.number,
        "slug": problem.slug,
        "title": problem.title,
        "summary": problem.summary,
        "track": problem.track,
        "level": problem.level,
        "frequency": problem.frequency,
        "tags": list(problem.tags),
        "companies": list(problem.companies),
        "status": mine.status,
        "hints": mine.hints,
        "attempts": len(mine.attempts),
        "follow_ups_solved": mine.solved_follow_ups,
        "solution_revealed": mine.revealed is not None,
    }
