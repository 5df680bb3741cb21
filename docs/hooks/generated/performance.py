"""What was measured, from `docs/measured/*.json`: each table with its conditions and date."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from docs.hooks.cards import pick
from docs.hooks.facts import Facts
from docs.hooks.runs import texts_of, well_formed
from infra_lab.texts import TO, Language

FILE = "performance"


def pages(facts: Facts, language: Language) -> Iterator[tuple[str, str]]:
    with well_formed(f"docs/measured/{FILE}.json"):
        text = "\n".join(_page(facts, language))
    yield "performance.md", text


def _page(facts: Facts, language: Language) -> Iterator[str]:
    yield from ("---", f"title: {pick(('Measured performance', '实测性能'), language)}")
    yield from ("hide: [navigation]", "---", "")
    record = facts.record(facts.measured, FILE)
    yield from (texts_of(record["introduction"], language), "")
    for table in record["tables"]:
        yield from (f"## {texts_of(table['title'], language)}", "")
        yield from (texts_of(table["conditions"], language), "")
        if "command" in table:
            yield from ("```bash", table["command"], "```", "")
        yield from _rows(table, language)
        if "note" in table:
            yield from (texts_of(table["note"], language), "")


def _rows(table: dict[str, Any], language: Language) -> Iterator[str]:
    columns = [texts_of(one, language) for one in table["columns"]]
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' + '---:|' * (len(columns) - 1)}"
    for row in table["rows"]:
        yield f"| {' | '.join(_cell(one, language) for one in row)} |"
    yield ""


def _cell(value: Any, language: Language) -> str:
    if isinstance(value, list):  # the ends of several rounds
        return TO[language].join(_cell(one, language) for one in value)
    return f"{value:,g}" if isinstance(value, int | float) else texts_of(value, language)
