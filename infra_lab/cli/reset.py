"""`infra-lab reset`: begin a problem anew; what was written is kept."""

from __future__ import annotations

from infra_lab.cli.bilingual import BilingualCommand, both, example
from infra_lab.cli.options import new_app
from infra_lab.cli.practice_view import Desk, Lang, ProgressFile, Slug, attempt_file, shown_path
from infra_lab.practice.progress import Progress

app = new_app()


@app.command(
    cls=BilingualCommand,
    epilog=example("reset", "ring_walk"),
    help=both(
        "Put the starter back; your attempt is kept in work/SLUG/attempts/, and your history too.",
        "恢复成 starter；你的作答会另存到 work/SLUG/attempts/，历史记录不变。",
    ),
)
def reset(slug: Slug, lang: Lang = None, progress: ProgressFile = None) -> None:
    """Put the starter back, and keep the attempt."""
    desk = Desk.open(lang, progress)
    problem = desk.problem(slug)
    desk.store.read()  # whatever is wrong with the progress file is said before anything is done
    attempt = attempt_file(desk, problem)
    kept = desk.workspace.reset(problem)
    if kept is None:
        desk.say_line(
            f"{shown_path(attempt)} is still the starter: there was nothing to keep.",
            f"{shown_path(attempt)} 还是 starter 原样：没有需要保留的内容。",
        )
    else:
        desk.note(lambda history: _count_reset(history, problem.slug))
        desk.say_line(
            f"Your attempt is kept: {shown_path(kept)}", f"你的作答已另存：{shown_path(kept)}"
        )
        desk.say_line(
            f"{shown_path(attempt)} is the starter again.",
            f"{shown_path(attempt)} 已恢复成 starter。",
        )
    desk.next_step(
        f"infra-lab test {problem.slug}", "once you have written something", "写好之后评测"
    )


def _count_reset(history: Progress, slug: str) -> None:
    history.touch(slug).resets += 1
