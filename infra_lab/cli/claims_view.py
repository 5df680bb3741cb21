"""How the ledger of claims is shown: as a list, one claim whole, and the outcome of a check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from infra_lab.claims.check import Outcome
from infra_lab.claims.claim import (
    EVIDENCE_NAMES,
    POSTS,
    VERDICT_NAMES,
    Claim,
    Evidence,
    Value,
    Verdict,
    number_text,
)
from infra_lab.claims.ledger import Ledger
from infra_lab.cli.terminal import counted, make_console, print_table
from infra_lab.texts import Language, Say, speaker

if TYPE_CHECKING:
    from rich.text import Text

VERDICT_STYLES: dict[Verdict, str] = {
    "right": "green",
    "wrong": "bold red",
    "conditions": "yellow",
    "unverifiable": "dim",
}
DIGITS = 6  # of a number in a table


def as_dict(outcome: Outcome) -> dict[str, Any]:
    """One claim for other programs: the record, and the numbers as computed now."""
    claim, numbers = outcome.claim, outcome.numbers
    return {
        "id": claim.id,
        "topic": claim.topic,
        "says": list(claim.says),
        "statement": dict(claim.statement),
        "verdict": claim.verdict,
        "evidence": claim.evidence,
        "answer": {"en": claim.answered("en", numbers), "zh": claim.answered("zh", numbers)},
        "values": [
            {
                "name": value.name,
                "unit": value.unit,
                "published": None if value.published is None else list(value.published),
                "computed": numbers.get(value.name),
                "holds": None if value.published is None else value.holds,
                "tolerance": value.tolerance,
            }
            for value in claim.values
        ],
        "source": claim.source,
        "experiment": claim.experiment,
        "errors": list(claim.errors),
        "faults": list(outcome.faults),
    }


def print_list(ledger: Ledger, claims: Sequence[Claim], language: str) -> None:
    """A table a topic; the verdict's colour tells what to distrust."""
    from rich.table import Table
    from rich.text import Text

    say = speaker(language)
    console = make_console()
    for topic in ledger.topics.values():
        rows = [one for one in claims if one.topic == topic.name]
        if not rows:
            continue
        console.print(
            Text(f"{topic.title[language_key(language)]}  ({topic.name})", "bold"), soft_wrap=True
        )
        table = Table(box=None, show_header=False, pad_edge=False)
        for _ in range(3):
            table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for one in rows:
            table.add_row(
                one.id,
                verdict_text(one, say),
                Text(evidence_text(one, say), "dim"),
                Text(statement(one, language)),
            )
        print_table(table)
        typer.echo()
    counts = ", ".join(
        f"{number} {verdict_name(name, say)}"
        for name in VERDICT_STYLES
        if (number := sum(one.verdict == name for one in claims))
    )
    total = say(counted(len(claims), "claim"), f"{len(claims)} 条论断")
    typer.echo(f"{total}{say(': ', '：') + counts if counts else ''}")


def print_claim(outcome: Outcome, language: str) -> None:
    """Everything about one claim."""
    from rich.table import Table
    from rich.text import Text

    claim, say = outcome.claim, speaker(language)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    posts = say("; ", "；").join(f"{post} {POSTS[post]}" for post in claim.says)
    rows: list[tuple[str, Text]] = [
        (say("claim", "论断"), Text(statement(claim, language))),
        (say("said by", "出自"), Text(posts)),
        (say("verdict", "结论"), verdict_text(claim, say)),
        (say("so is", "事实"), Text(claim.answered(language_key(language), outcome.numbers))),
        (say("evidence", "依据"), Text(evidence_text(claim, say))),
        (say("source", "来源"), Text(claim.source)),
    ]
    if claim.experiment:
        command = f"infra-lab claims run {claim.id}"
        rows.append((say("run it", "动手跑"), Text(f"{command}  ({claim.experiment})")))
    if claim.errors:
        rows.append((say("errors", "勘误"), Text(", ".join(claim.errors))))
    rows += [(say("FAULT", "不符"), Text(fault, "bold red")) for fault in outcome.faults]
    make_console().print(Text(claim.id, "bold"))
    for label, value in rows:
        table.add_row(label, value)
    print_table(table)
    if claim.values:
        _print_values(claim.values, outcome.numbers, language)


def _print_values(values: Sequence[Value], numbers: Mapping[str, float], language: str) -> None:
    from rich.table import Table

    say = speaker(language)
    table = Table(box=None, pad_edge=False)
    table.add_column(say("number", "数值"))
    for title in (say("published", "原文"), say("computed", "计算")):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column(say("unit", "单位"))
    table.add_column("")
    for value in values:
        mark = "" if value.published is None else say(*_MARKS[value.holds])
        style = None if not mark else "green" if value.holds else "red"
        computed = numbers.get(value.name)
        table.add_row(
            value.name,
            value.published_text(language_key(language), DIGITS) or "-",
            "-" if computed is None else number_text(computed, DIGITS),
            value.unit,
            mark,
            style=style,
        )
    typer.echo()
    print_table(table)


_MARKS = {True: ("agrees", "相符"), False: ("differs", "不符")}


def print_check(found: Mapping[str, Any], language: str) -> None:
    """Totals, and each claim whose record and computation differ."""
    say = speaker(language)
    verdicts = ", ".join(
        f"{number} {verdict_name(name, say)}" for name, number in found["by_verdict"].items()
    )
    evidence = ", ".join(
        f"{number} {evidence_name(name, say)}" for name, number in found["by_evidence"].items()
    )
    typer.echo(
        say(
            f"{found['total']} claims: {verdicts}\nevidence: {evidence}\n"
            f"recomputed {found['values']} numbers of {found['recomputed']} claims",
            f"{found['total']} 条论断：{verdicts}\n依据：{evidence}\n"
            f"重新计算了 {found['recomputed']} 条论断的 {found['values']} 个数值",
        )
    )
    for one in found["failed"]:
        typer.echo(f"{one['id']}: {'; '.join(one['faults'])}")
    if not found["failed"]:
        typer.echo(say("Every number is as recorded.", "全部与记录一致。"))


def statement(claim: Claim, language: str) -> str:
    return claim.statement[language_key(language)]


def verdict_text(claim: Claim, say: Say) -> Text:
    from rich.text import Text

    return Text(verdict_name(claim.verdict, say), VERDICT_STYLES[claim.verdict])


def evidence_text(claim: Claim, say: Say) -> str:
    return evidence_name(claim.evidence, say)


def verdict_name(verdict: Verdict, say: Say) -> str:
    """In English the word that `--verdict` takes."""
    return say(verdict, VERDICT_NAMES[verdict]["zh"])


def evidence_name(evidence: Evidence, say: Say) -> str:
    return say(evidence, EVIDENCE_NAMES[evidence]["zh"])


def language_key(language: str) -> Language:
    return "zh" if language == "zh" else "en"
