"""`infra-lab start`: a file to write in, the statement to read, and the command to run then."""

from __future__ import annotations

import typer

from infra_lab.cli.bilingual import BilingualCommand, both, example
from infra_lab.cli.options import new_app
from infra_lab.cli.practice_view import Desk, Lang, ProgressFile, Slug, shown_path
from infra_lab.practice.problem import STATEMENTS
from infra_lab.practice.progress import Progress, now

app = new_app()


@app.command(
    cls=BilingualCommand,
    epilog=example("start", "ring_walk"),
    help=both(
        "Begin a problem: copy its starter to work/SLUG/solution.py. An attempt that is there "
        "already stays as it is.",
        "开始一道题：把 starter 复制到 work/SLUG/solution.py。已有的作答不会被覆盖。",
    ),
)
def start(slug: Slug, lang: Lang = None, progress: ProgressFile = None) -> None:
    """Begin a problem."""
    desk = Desk.open(lang, progress)
    problem = desk.problem(slug)
    desk.store.read()  # whatever is wrong with the progress file is said before anything is done
    is_new = desk.workspace.start(problem)
    desk.note(lambda history: _begin(history, problem.slug))
    statement = problem.folder / STATEMENTS[desk.language]
    attempt = desk.workspace.attempt(problem.slug)
    typer.echo(f"{problem.number}. {problem.title[desk.language]}")
    typer.echo(problem.summary[desk.language])
    typer.echo()
    desk.say_line(f"statement:  {shown_path(statement)}", f"题面：{shown_path(statement)}")
    desk.say_line(f"write in:   {shown_path(attempt)}", f"作答：{shown_path(attempt)}")
    if not is_new:
        typer.echo()
        desk.say_line(
            "You had begun already: your attempt stays as it is. "
            f"`infra-lab reset {problem.slug}` begins anew and keeps it.",
            f"你之前已经开始过：作答原样保留。想重来请用 `infra-lab reset {problem.slug}`，"
            "旧的作答会另存。",
        )
    desk.next_step(
        f"infra-lab test {problem.slug}",
        f"once you have written something; `infra-lab watch {problem.slug}` grades on every save",
        f"写好之后评测；`infra-lab watch {problem.slug}` 会在每次保存时评测",
    )


def _begin(history: Progress, slug: str) -> None:
    mine = history.touch(slug)
    mine.started = mine.started or now()
