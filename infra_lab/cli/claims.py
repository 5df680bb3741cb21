"""`infra-lab claims`: what interview answers assert, and what is so; every number recomputed.

Answers "the post says 13.4 GB: is that right?" with the arithmetic, the source and, where it is a
matter of behaviour, the experiment that shows it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from infra_lab.claims.check import check as recompute
from infra_lab.claims.check import report
from infra_lab.claims.claim import EVIDENCE, POSTS, VERDICTS
from infra_lab.claims.ledger import read_ledger
from infra_lab.cli import claims_run
from infra_lab.cli import claims_view as view
from infra_lab.cli.bilingual import BilingualCommand, BilingualGroup, both, example
from infra_lab.cli.options import new_app
from infra_lab.cli.practice_view import Lang, PracticeJson
from infra_lab.cli.terminal import print_json
from infra_lab.practice.language import choose_language
from infra_lab.texts import speaker

WHEN_BARE = ["list"]  # what `infra-lab claims` without a word does


class ListByDefault(BilingualGroup):
    """A group whose options without a command are those of `list`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in ("--help", "-h"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


app = new_app(
    cls=ListByDefault,
    help="What interview answers assert, and what is so: a ledger, recomputed.",
    epilog="Example: infra-lab claims --topic kv_cache --verdict wrong",
)

Id = Annotated[
    str,
    typer.Argument(metavar="ID", help=both("A claim's id, like K4.", "论断编号，如 K4。")),
]


def _choice(name: str, en: str, zh: str, known: Iterable[str]) -> Any:
    names = ", ".join(known)
    return typer.Option(name, metavar="NAME", help=both(f"{en}: {names}.", f"{zh}：{names}。"))


@app.command(
    "list",
    cls=BilingualCommand,
    epilog=example("claims", "list", "--topic", "kv_cache", "--verdict", "wrong"),
    help=both(
        "List the claims: what is said, and whether it is so.",
        "列出全部论断：说了什么，对不对。",
    ),
)
def list_claims(
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            metavar="NAME",
            help=both("Only this topic, like kv_cache.", "只看这个主题，如 kv_cache。"),
        ),
    ] = None,
    verdict: Annotated[
        str | None, _choice("--verdict", "Only with this verdict", "只看这种结论", VERDICTS)
    ] = None,
    source: Annotated[
        str | None, _choice("--source", "Only what this post says", "只看这篇帖子", POSTS)
    ] = None,
    evidence: Annotated[
        str | None, _choice("--evidence", "Only with this evidence", "只看这种依据", EVIDENCE)
    ] = None,
    json: PracticeJson = False,
    lang: Lang = None,
) -> None:
    """List the claims."""
    language = choose_language(lang)
    ledger = read_ledger()
    claims = ledger.select(topic, verdict, source, evidence, speaker(language))
    if json:
        print_json([view.as_dict(recompute(one)) for one in claims])
    else:
        view.print_list(ledger, claims, language)


@app.command(
    cls=BilingualCommand,
    epilog=example("claims", "show", "K4"),
    help=both(
        "Show one claim: what was published, what is computed, the source.",
        "查看一条论断：原文数字、计算结果、出处。",
    ),
)
def show(claim: Id, json: PracticeJson = False, lang: Lang = None) -> None:
    """Show one claim."""
    language = choose_language(lang)
    outcome = recompute(read_ledger().find(claim, speaker(language)))
    if json:
        print_json(view.as_dict(outcome))
    else:
        view.print_claim(outcome, language)


@app.command(
    cls=BilingualCommand,
    epilog=example("claims", "check", "--json"),
    help=both(
        "Recompute every claim; exit status 1 if one differs from its record.",
        "重新计算全部论断；与记录不符则退出码为 1。",
    ),
)
def check(json: PracticeJson = False, lang: Lang = None) -> None:
    """Recompute every claim."""
    language = choose_language(lang)
    found = report(read_ledger())
    if json:
        print_json(found)
    else:
        view.print_check(found, language)
    if found["failed"]:
        raise typer.Exit(1)


claims_run.add_commands(app)
