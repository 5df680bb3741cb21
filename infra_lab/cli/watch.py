"""`infra-lab watch`: grades again on every save, until Ctrl-C."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from infra_lab.cli.bilingual import BilingualCommand, both, example
from infra_lab.cli.grading import grade_file, print_report, record
from infra_lab.cli.options import new_app
from infra_lab.cli.practice_view import (
    Desk,
    Lang,
    ProgressFile,
    Slug,
    attempt_file,
    is_terminal,
    shown_path,
    warn,
)
from infra_lab.cli.test import next_step_after
from infra_lab.practice.grade import Verdict
from infra_lab.practice.problem import Problem

app = new_app()


@app.command(
    cls=BilingualCommand,
    epilog=example("watch", "ring_walk"),
    help=both(
        "Grade your attempt now and on every save; Ctrl-C ends it.",
        "立即评测，并在每次保存时重新评测；Ctrl-C 结束。",
    ),
)
def watch(
    slug: Slug,
    poll: Annotated[
        bool,
        typer.Option(
            "--poll",
            help=both(
                "Look at the file twice a second instead of waiting for the system's events.",
                "每秒检查文件两次，不依赖系统的文件事件。",
            ),
        ),
    ] = False,
    lang: Lang = None,
    progress: ProgressFile = None,
) -> None:
    """Grade on every save."""
    from infra_lab.practice.watching import contents_on_save

    desk = Desk.open(lang, progress)
    problem = desk.problem(slug)
    attempt = attempt_file(desk, problem)
    desk.store.read()  # whatever is wrong with the progress file is said before the wait

    def on_polling(why: str) -> None:
        warn(
            desk.say,
            f"no file events here ({why}): looking at the file twice a second instead",
            f"这里收不到文件事件（{why}）：改为每秒检查文件两次",
        )

    def on_gone() -> None:
        desk.say_line(
            f"{shown_path(attempt)} is gone: waiting until it is there again",
            f"{shown_path(attempt)} 不见了：等它重新出现",
        )

    desk.say_line(
        f"watching {shown_path(attempt)}: save it to grade, Ctrl-C to end",
        f"正在监视 {shown_path(attempt)}：保存即评测，Ctrl-C 结束",
    )
    try:
        for _ in contents_on_save(attempt, poll, on_polling, on_gone):
            _grade(desk, problem)
    except KeyboardInterrupt:
        typer.echo()
        desk.say_line("Stopped watching.", "已停止监视。")
        desk.next_step(f"infra-lab test {problem.slug}", "grades it once", "单次评测")


def _grade(desk: Desk, problem: Problem) -> None:
    attempt = desk.workspace.attempt(problem.slug)
    _rule(time.strftime("%H:%M:%S"))
    grade = grade_file(desk, problem, attempt, seed=0)
    print_report(desk, grade, attempt)
    history = record(desk, grade, seed=0)
    if grade.verdict is Verdict.PASSED:
        next_step_after(desk, problem, grade, history)
        return
    typer.echo()
    desk.say_line(
        f"next: save the file to grade it again; `infra-lab hint {problem.slug}` helps",
        f"下一步：保存文件即重新评测；需要提示请用 `infra-lab hint {problem.slug}`",
    )


def _rule(text: str) -> None:
    if is_terminal():
        from rich.rule import Rule

        from infra_lab.cli.terminal import make_console

        make_console().print(Rule(text, align="left", style="dim"))
    else:
        typer.echo(f"---- {text} ----")
