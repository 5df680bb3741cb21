"""`infra-lab test`: is my solution right, and if not, on which call does it fail?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infra_lab.cli.bilingual import BilingualCommand, both, example
from infra_lab.cli.grading import grade_file, print_report, record
from infra_lab.cli.options import new_app
from infra_lab.cli.practice_view import (
    Desk,
    Lang,
    PracticeJson,
    ProgressFile,
    Slug,
    attempt_file,
    quoted,
    shown_path,
)
from infra_lab.cli.terminal import print_json
from infra_lab.practice.grade import Grade, Verdict
from infra_lab.practice.problem import Problem
from infra_lab.practice.progress import ProblemProgress

app = new_app()


@app.command(
    cls=BilingualCommand,
    epilog=example("test", "ring_walk"),
    help=both(
        "Grade your attempt, or any file. "
        "Exit status: 0 passed, 1 failed, 2 wrong usage, 3 the grader itself is at fault.",
        "评测你的解答，或任意文件。退出码：0 通过，1 未通过，2 用法错误，3 评测程序自身出错。",
    ),
)
def grade_attempt(
    slug: Slug,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            metavar="PATH",
            help=both(
                "Grade this file; it is not recorded as an attempt.",
                "评测这个文件；不计入作答记录。",
            ),
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            "--seed",
            metavar="N",
            show_default=False,
            help=both("Of the generated inputs; default: 0.", "生成输入用的随机种子，默认 0。"),
        ),
    ] = 0,
    json: PracticeJson = False,
    lang: Lang = None,
    progress: ProgressFile = None,
) -> None:
    """Grade your attempt, or any file."""
    desk = Desk.open(lang, progress)
    problem = desk.problem(slug)
    if file is None:
        graded = attempt_file(desk, problem)
        desk.store.read()  # whatever is wrong with the progress file is said before the wait
    else:
        graded = _other_file(desk, file)
    grade = grade_file(desk, problem, graded, seed)
    if json:
        print_json(grade.exercism())
    else:
        print_report(desk, grade, graded)
    if file is None:
        history = record(desk, grade, seed)
        if not json:
            next_step_after(desk, problem, grade, history)
    elif not json:
        _next_step_of_other_file(desk, problem, grade, file)
    raise typer.Exit(grade.exit_status)


def next_step_after(desk: Desk, problem: Problem, grade: Grade, history: ProblemProgress) -> None:
    """What to do now that the attempt has been graded."""
    slug = problem.slug
    open_follow_ups = [name for name, state in grade.follow_ups().items() if state != "solved"]
    if grade.verdict is Verdict.GRADER_FAULT:
        desk.next_step(f"infra-lab test {slug}", "try once more", "再试一次")
    elif grade.verdict is Verdict.PASSED:
        if open_follow_ups:
            names = ", ".join(open_follow_ups)
            desk.say_line(f"To go on here: the follow-up {names}.", f"还可以继续做进阶：{names}。")
        desk.next_step(
            f"infra-lab solution {slug}",
            "compare with other approaches, then `infra-lab next`",
            "对比其他解法，然后运行 `infra-lab next`",
        )
    elif grade.verdict is Verdict.UNSOLVED:
        desk.next_step(
            f"infra-lab watch {slug}", "grades again on every save", "每次保存都会重新评测"
        )
    elif len(history.attempts) >= 2 and history.hints < len(problem.hints()):
        desk.next_step(f"infra-lab hint {slug}", "or mend and test again", "也可以改好后再评测")
    else:
        desk.next_step(f"infra-lab test {slug}", "after mending it", "改好之后再评测")


def _next_step_of_other_file(desk: Desk, problem: Problem, grade: Grade, file: Path) -> None:
    typer.echo()
    desk.say_line(
        f"Graded with --file, so not recorded: {shown_path(file)}",
        f"用 --file 评测，不计入记录：{shown_path(file)}",
    )
    if grade.verdict is Verdict.PASSED:
        desk.next_step("infra-lab next", "the next problem", "下一道题")
    else:
        command = f"infra-lab test {problem.slug} --file {quoted(file)}"
        desk.next_step(command, "after mending it", "改好之后再评测")


def _other_file(desk: Desk, file: Path) -> Path:
    if file.is_dir():
        raise desk.refusal(
            f"--file needs a Python file, and {file} is a folder",
            f"--file 需要一个 Python 文件，而 {file} 是文件夹",
        )
    if not file.exists():
        raise desk.refusal(f"there is no file {file}", f"没有文件 {file}")
    return file
