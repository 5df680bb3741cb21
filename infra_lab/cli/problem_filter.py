"""The options that pick problems, for `list` and `next`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from infra_lab.cli.bilingual import both
from infra_lab.cli.practice_view import Desk, only
from infra_lab.practice.problem import LEVELS, TRACKS, Problem
from infra_lab.practice.progress import STATUSES
from infra_lab.practice.selection import Filter

Track = Annotated[
    str | None,
    typer.Option(
        "--track",
        metavar="NAME",
        help=both(f"Only this track: {', '.join(TRACKS)}.", f"只看这个方向：{', '.join(TRACKS)}。"),
    ),
]
Level = Annotated[
    str | None,
    typer.Option(
        "--level",
        metavar="NAME",
        help=both(f"Only this level: {', '.join(LEVELS)}.", f"只看这个难度：{', '.join(LEVELS)}。"),
    ),
]
Tag = Annotated[
    str | None,
    typer.Option("--tag", metavar="NAME", help=both("Only with this tag.", "只看带这个标签的。")),
]
Company = Annotated[
    str | None,
    typer.Option(
        "--company",
        metavar="NAME",
        help=both("Only those reported from this company.", "只看这家公司考过的。"),
    ),
]


def checked_filter(
    desk: Desk,
    problems: Sequence[Problem],
    track: str | None = None,
    level: str | None = None,
    tag: str | None = None,
    company: str | None = None,
    status: str | None = None,
) -> Filter:
    """Raises UsageError for a value that nothing can match, and names the choices."""
    tags = _distinct(tag for one in problems for tag in one.tags)
    companies = _distinct(company for one in problems for company in one.companies)
    return Filter(
        only(desk, "--track", track, TRACKS),
        only(desk, "--level", level, LEVELS),
        only(desk, "--tag", tag, tags),
        only(desk, "--company", company, companies),
        only(desk, "--status", status, STATUSES),
    )


def _distinct(values: Iterable[str]) -> list[str]:
    return sorted(set(values), key=str.casefold)
