"""`infra-lab next`: what should I do now, and why that?"""

from __future__ import annotations

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
    track_text,
)
from infra_lab.cli.problem_filter import Company, Level, Tag, Track, checked_filter
from infra_lab.cli.terminal import print_json
from infra_lab.practice.progress import Progress
from infra_lab.practice.selection import Choice, next_problem

app = new_app()


@app.command(
    cls=BilingualCommand,
    epilog=example("next", "--track", "serving"),
    help=both(
        "Pick the next problem and say why: what you began and have not solved, else the most "
        "asked of the easiest that are left.",
        "挑出下一道题并说明理由：先是已开始但没解出的，然后是剩下最容易的里面考频最高的。",
    ),
)
def next_command(
    track: Track = None,
    level: Level = None,
    tag: Tag = None,
    company: Company = None,
    json: PracticeJson = False,
    lang: Lang = None,
    progress: ProgressFile = None,
) -> None:
    """Pick the next problem."""
    desk = Desk.open(lang, progress)
    problems = desk.problems()
    wanted = checked_filter(desk, problems, track, level, tag, company)
    done = desk.store.read()
    choice = next_problem([one for one in problems if wanted.takes(one, done)], done)
    if json:
        print_json(_as_json(desk, choice, done))
    elif choice is None:
        _nothing_left(desk, has_problems=any(wanted.takes(one, done) for one in problems))
    else:
        _print_choice(desk, choice, done)


def _print_choice(desk: Desk, choice: Choice, done: Progress) -> None:
    problem = choice.problem
    typer.echo(f"{problem.number}. {problem.title[desk.language]} ({problem.slug})")
    typer.echo(problem.summary[desk.language])
    typer.echo(
        desk.say(
            f"{track_text(problem.track, desk.say)}, {level_text(problem.level, desk.say)}, "
            f"asked {problem.frequency}/5",
            f"{track_text(problem.track, desk.say)}，{level_text(problem.level, desk.say)}，"
            f"考频 {problem.frequency}/5",
        )
    )
    typer.echo()
    desk.say_line(f"Why: {_why(desk, choice, done)}.", f"理由：{_why(desk, choice, done)}。")
    desk.next_step(_command(desk, choice), *_what_it_does(desk, choice))


def _why(desk: Desk, choice: Choice, done: Progress) -> str:
    attempts = len(done.of(choice.problem.slug).attempts)
    if choice.reason == "begun":
        times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        return desk.say(
            f"you began it and have not solved it ({times} so far)",
            f"你已经开始，但还没解出（作答 {attempts} 次）",
        )
    level = level_text(choice.problem.level, desk.say)
    if choice.left == 1:
        return desk.say(
            f"the last {level} one that is not solved", f"“{level}”难度里只剩这道没解出"
        )
    return desk.say(
        f"the most asked of the {choice.left} {level} ones that are not solved",
        f"“{level}”难度还有 {choice.left} 道没解出，这道考频最高",
    )


def _command(desk: Desk, choice: Choice) -> str:
    """An attempt that is there is tested; one that is not is started."""
    slug = choice.problem.slug
    verb = "test" if desk.workspace.attempt(slug).exists() else "start"
    return f"infra-lab {verb} {slug}"


def _what_it_does(desk: Desk, choice: Choice) -> tuple[str, str]:
    if desk.workspace.attempt(choice.problem.slug).exists():
        return "grades your attempt", "评测你的作答"
    return "copies the starter and shows where the statement is", "复制 starter，并给出题面位置"


def _nothing_left(desk: Desk, has_problems: bool) -> None:
    if has_problems:
        desk.say_line("All of them are solved. Well done.", "全部解出了，干得漂亮。")
        desk.next_step("infra-lab status", "shows what you did", "看看你的成绩")
    else:
        desk.say_line("No problem is like that.", "没有符合条件的题目。")
        desk.next_step("infra-lab list", "shows all", "列出所有题目")


def _as_json(desk: Desk, choice: Choice | None, done: Progress) -> dict[str, Any]:
    if choice is None:
        return {"slug": None, "reason": None, "command": None}
    return {
        "slug": choice.problem.slug,
        "number": choice.problem.number,
        "title": choice.problem.title,
        "reason": _why(desk, choice, done),
        "command": _command(desk, choice),
    }
