"""What the learner's commands share: options, help in two languages, the catalog, the next step."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from infra_lab.cli.bilingual import both
from infra_lab.cli.usage import suggestion
from infra_lab.errors import UsageError
from infra_lab.practice import catalog
from infra_lab.practice.language import LANGUAGE_VARIABLE, choose_language
from infra_lab.practice.problem import LEVEL_NAMES, TRACK_NAMES, Problem, ProblemError
from infra_lab.practice.progress import ProblemProgress, Progress
from infra_lab.practice.progress_store import (
    PROGRESS_VARIABLE,
    ProgressError,
    ProgressStore,
    default_path,
)
from infra_lab.practice.workspace import Workspace
from infra_lab.texts import LANGUAGES, Say, speaker

Slug = Annotated[
    str,
    typer.Argument(
        metavar="SLUG",
        help=both(
            "A problem's name or number, from `infra-lab list`.",
            "题目的名字或编号，见 `infra-lab list`。",
        ),
    ),
]
Lang = Annotated[
    str | None,
    typer.Option(
        "--lang",
        metavar="|".join(LANGUAGES),
        help=both(
            f"Language; default: ${LANGUAGE_VARIABLE}, else the locale.",
            f"语言；默认取 ${LANGUAGE_VARIABLE}，其次取系统语言环境。",
        ),
    ),
]
ProgressFile = Annotated[
    Path | None,
    typer.Option(
        "--progress",
        metavar="FILE",
        help=both(
            f"Progress file; default: ${PROGRESS_VARIABLE}, else work/progress.json.",
            f"进度文件；默认取 ${PROGRESS_VARIABLE}，其次是 work/progress.json。",
        ),
    ),
]
PracticeJson = Annotated[
    bool,
    typer.Option("--json", help=both("Print JSON and nothing else.", "只输出 JSON。")),
]


@dataclass(frozen=True, slots=True)
class Desk:
    """Where a learner works: their language, their files, their progress."""

    language: str
    say: Say
    workspace: Workspace
    store: ProgressStore

    @classmethod
    def open(cls, lang: str | None, progress: Path | None) -> Desk:
        """Raises UsageError for a language that is none."""
        language = choose_language(lang)
        say = speaker(language)

        def on_damage(kept: Path) -> None:
            warn(
                say,
                f"the progress file was damaged: it is kept as {kept}, and a new one begins. "
                "Put a good copy in its place to get your history back.",
                f"进度文件已损坏：原文件保留为 {kept}，现在从空白进度开始。"
                "如果有备份，放回原处即可恢复历史。",
            )

        return cls(
            language,
            say,
            Workspace.default(),
            ProgressStore(progress or default_path(), on_damage, say),
        )

    def problem(self, name: str) -> Problem:
        """By slug or number. Raises UsageError, or ProblemError for a damaged folder."""
        known = catalog.slugs()
        if name in known:
            return catalog.load(name)
        if name.isdecimal():
            for problem in self.problems():
                if problem.number == int(name):
                    return problem
        if not known:
            raise self.refusal(
                f"there are no problems in {catalog.default_root() / 'problems'}",
                f"{catalog.default_root() / 'problems'} 里没有题目",
            )
        near = suggestion(name.replace("-", "_"), known, "")
        guess = near.removeprefix(": did you mean ").removesuffix("?") if near else ""
        raise self.refusal(
            f"there is no problem {name!r}"
            + (f": did you mean {guess}?" if guess else ": `infra-lab list` shows all"),
            f"没有题目 {name!r}"
            + (f"：是不是 {guess}？" if guess else "：`infra-lab list` 会列出所有题目"),
        )

    def problems(self) -> list[Problem]:
        """All that can be read, by number; a warning on stderr for each that cannot."""
        found: list[Problem] = []
        for slug in catalog.slugs():
            try:
                found.append(catalog.load(slug))
            except ProblemError as error:
                warn(
                    self.say,
                    f"problem {slug} is left out, its folder is damaged: {error}",
                    f"题目 {slug} 的文件夹已损坏，已跳过：{error}",
                )
        return sorted(found, key=lambda one: (one.number, one.slug))

    def note(self, change: Callable[[Progress], None]) -> Progress:
        """Records what has been done already. Where that cannot be written, a warning says so:
        what was done stays done."""
        history = Progress()
        try:
            with self.store.change() as history:
                change(history)
        except ProgressError as error:
            warn(self.say, f"this was not recorded: {error}", f"这一次没有记录下来：{error}")
        return history

    def refusal(self, en: str, zh: str) -> UsageError:
        return UsageError(self.say(en, zh))

    def say_line(self, en: str, zh: str) -> None:
        typer.echo(self.say(en, zh))

    def next_step(self, command: str, en: str, zh: str) -> None:
        """The last line of every command: what to type now, and why."""
        typer.echo()
        typer.echo(self.say(f"next: {command}  ({en})", f"下一步：{command}（{zh}）"))


def warn(say: Say, en: str, zh: str) -> None:
    typer.echo(say(f"warning: {en}", f"警告：{zh}"), err=True)


def status_text(progress: ProblemProgress, say: Say) -> str:
    """solved, attempted or new, with what qualifies it."""
    words = {
        "solved": say("solved", "已解出"),
        "attempted": say("attempted", "已作答"),
        "new": say("new", "未开始"),
    }
    text = words[progress.status]
    if progress.solved_after_reveal:
        text += say(" (after the solution)", "（看过题解）")
    return text


def track_text(track: str, say: Say) -> str:
    """In English the word that `--track` takes."""
    return say(track, TRACK_NAMES[track]["zh"])


def level_text(level: str, say: Say) -> str:
    return say(level, LEVEL_NAMES[level]["zh"])


STATUS_STYLES = {"solved": "green", "attempted": "yellow", "new": "dim"}


def shown_path(path: Path) -> str:
    """Relative to the working folder where it lies below it, in the system's own spelling."""
    try:
        return str(path.resolve().relative_to(Path.cwd().resolve()))
    except (ValueError, OSError):
        return str(path)


def quoted(path: Path) -> str:
    """For a command line that can be pasted."""
    text = shown_path(path)
    if os.name == "nt":
        return f'"{text}"' if " " in text else text
    return shlex.quote(text)


def is_terminal() -> bool:
    return sys.stdout.isatty()


def only(desk: Desk, option: str, wanted: str | None, choices: Sequence[str]) -> str | None:
    """The choice that an option's value names, whatever its letters' case; UsageError if none."""
    if wanted is None:
        return None
    for choice in choices:
        if choice.casefold() == wanted.casefold():
            return choice
    listed = ", ".join(choices) or desk.say("none", "（无）")
    raise desk.refusal(
        f"{option} must be one of {listed}, not {wanted!r}",
        f"{option} 的值 {wanted!r} 无效，可选：{listed}",
    )


def attempt_file(desk: Desk, problem: Problem) -> Path:
    """The learner's file; UsageError if the problem was not begun."""
    path = desk.workspace.attempt(problem.slug)
    if not path.exists():
        raise desk.refusal(
            f"you have not begun {problem.slug}: `infra-lab start {problem.slug}` makes "
            f"{shown_path(path)} (or `infra-lab test {problem.slug} --file PATH` grades "
            "another file)",
            f"你还没有开始 {problem.slug}：先运行 `infra-lab start {problem.slug}`，它会创建 "
            f"{shown_path(path)}（也可以用 `infra-lab test {problem.slug} --file PATH` "
            "评测别的文件）",
        )
    return path
