"""`infra-lab claims run`: the experiment behind a claim, run here, with what it concludes.

Answers "how do you know?": the engine's own parts at work, a table, a figure, and statements that
hold or do not, for which the exit status stands.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from infra_lab.claims.check import compute
from infra_lab.claims.claim import EXPERIMENTS, Claim
from infra_lab.claims.experiments import experiment as experiment_of
from infra_lab.claims.experiments.experiment import Progress, Result
from infra_lab.claims.experiments.needs import check_needs
from infra_lab.claims.ledger import Ledger, read_ledger
from infra_lab.cli import claims_run_view as view
from infra_lab.cli.bilingual import BilingualCommand, both, example
from infra_lab.cli.claims_view import language_key
from infra_lab.cli.practice_view import Lang, PracticeJson
from infra_lab.cli.terminal import print_json, steps_progress
from infra_lab.errors import UsageError
from infra_lab.figures import checked_figure_path
from infra_lab.practice.language import choose_language
from infra_lab.texts import Language, Say, Text, speaker

_CLAIM_ID = re.compile(r"[A-Za-z]\d+")

Wanted = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help=both(
            "An experiment's name, like paged-memory, or the id of a claim, like P3.",
            "实验名，如 paged-memory；或论断编号，如 P3。",
        ),
    ),
]
Figure = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help=both("Draw the result there, as SVG.", "把结果画成 SVG 存到该文件。")
    ),
]
RunSeed = Annotated[
    int,
    typer.Option(
        "--seed", metavar="N", help=both("Another draw of what is random.", "换一组随机数。")
    ),
]


def add_commands(app: typer.Typer) -> None:
    """Adds `run` and `experiments` to the commands of `infra-lab claims`."""
    app.command(
        "run",
        cls=BilingualCommand,
        epilog=example("claims", "run", "paged-memory", "--figure", "paged.svg"),
        help=both(
            "Run an experiment; exit status 1 if one of its conclusions does not hold.",
            "运行实验；有结论不成立则退出码为 1。",
        ),
    )(run)
    app.command(
        "experiments",
        cls=BilingualCommand,
        epilog=example("claims", "experiments"),
        help=both("List the experiments and the claims they answer.", "列出全部实验及对应的论断。"),
    )(experiments)


def run(
    wanted: Wanted,
    figure: Figure = None,
    seed: RunSeed = 0,
    json: PracticeJson = False,
    lang: Lang = None,
) -> None:
    """Run an experiment."""
    key = language_key(choose_language(lang))
    say = speaker(key)
    name, claim = _named(wanted, read_ledger(), say)
    if seed < 0:
        raise UsageError(
            say(f"--seed must be at least 0, not {seed}", f"--seed 至少为 0，而不是 {seed}")
        )
    path = checked_figure_path(figure, say=say)
    found = experiment_of(name)
    check_needs(found, say)
    if not json:
        view.print_question(found, claim, key)
    started = time.perf_counter()
    with _progress(key, quiet=json) as progress:
        result = found.run(progress, seed)
    seconds = time.perf_counter() - started
    if path is not None:
        found.draw(result, path, key)
    if json:
        print_json(_report(name, claim, result, seconds))
    else:
        view.print_result(result, seconds, path, key)
    if not result.holds:
        raise typer.Exit(1)


def experiments(json: PracticeJson = False, lang: Lang = None) -> None:
    """List the experiments."""
    key = language_key(choose_language(lang))
    claims = read_ledger().claims.values()
    found = [
        (experiment_of(name), [one.id for one in claims if one.experiment == name])
        for name in EXPERIMENTS
    ]
    if json:
        print_json(
            [
                {
                    "experiment": one.name,
                    "title": dict(one.title),
                    "question": dict(one.question),
                    "needs": list(one.needs),
                    "about_seconds": one.seconds,
                    "claims": ids,
                }
                for one, ids in found
            ]
        )
    else:
        view.print_experiments(found, key)


def _named(wanted: str, ledger: Ledger, say: Say) -> tuple[str, Claim | None]:
    """The experiment that is meant, and the claim that it was asked for by."""
    claim = None
    name = wanted.strip().lower()
    if _CLAIM_ID.fullmatch(name):
        claim = ledger.find(wanted, say)
        if claim.experiment is None:
            raise UsageError(
                say(
                    f"{claim.id} has no experiment: `infra-lab claims show {claim.id}` says what "
                    "it rests on",
                    f"{claim.id} 没有对应的实验：`infra-lab claims show {claim.id}` 给出它的依据",
                )
            )
        name = claim.experiment
    if name in EXPERIMENTS:
        return name, claim
    raise UsageError(_unknown(wanted, say))


def _unknown(wanted: str, say: Say) -> str:
    from difflib import get_close_matches

    near = get_close_matches(wanted.strip().lower(), EXPERIMENTS, n=1, cutoff=0.5)
    if near:
        hint = say(f"did you mean {near[0]!r}?", f"是不是 {near[0]!r}？")
    else:
        hint = say("`infra-lab claims experiments` lists all", "见 `infra-lab claims experiments`")
    return say(f"there is no experiment {wanted!r}: {hint}", f"没有实验 {wanted!r}：{hint}")


def _report(name: str, claim: Claim | None, result: Result, seconds: float) -> dict[str, Any]:
    """What --json prints; `claim` is there where the experiment was asked for by one."""
    report: dict[str, Any] = {"experiment": name}
    if claim is not None:
        numbers = compute(claim)
        report["claim"] = {
            "id": claim.id,
            "statement": dict(claim.statement),
            "verdict": claim.verdict,
            "answer": {"en": claim.answered("en", numbers), "zh": claim.answered("zh", numbers)},
        }
    return {**report, **result.as_dict(), "seconds": round(seconds, 3)}


@contextmanager
def _progress(language: Language, quiet: bool) -> Iterator[Progress]:
    """A bar on stderr, in the reader's language."""
    with steps_progress("parts" if language == "en" else "部分", quiet) as steps:
        parts = 1

        def report(done: int, total: int, what: Text) -> None:
            nonlocal parts
            parts = total
            steps(done, total, what[language])

        yield report
        steps(parts, parts, "done" if language == "en" else "完成")
