"""Recorded runs: an experiment's tables, conclusions and figure, or a command with its output.

An experiment's record is `docs/recorded/<name>.json`, as `infra-lab claims run <name> --json` gives
it, with `recorded` (date, machine) added; a figure in each language lies beside it. A command is
one of `docs/recorded/commands.toml`, its output in `<name>.txt`, and in `<name>.json` the date and
machine of one that is prepared. All is made by `python -m docs.hooks.record`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from docs.hooks.cards import DIGITS, pick
from docs.hooks.facts import Facts, near
from docs.hooks.faults import MarkerError, NotRecordedError
from infra_lab.claims.claim import EXPERIMENTS, number_text
from infra_lab.figures import INK
from infra_lab.texts import Language


@dataclass(frozen=True, slots=True)
class Command:
    """`is_prepared`: too slow, or too much of one machine, to be run again by a test.
    `is_bilingual`: a prepared one that is to be run in Chinese too."""

    name: str
    command: str
    is_prepared: bool
    is_bilingual: bool


def read_commands(recorded: Path) -> dict[str, Command]:
    """Raises MarkerError for a record that is not as it must be."""
    path = recorded / "commands.toml"
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:  # no TOML, or no UTF-8
        raise MarkerError(f"commands.toml: {error}") from error
    commands = {}
    for name, record in content.items():
        if not isinstance(record, dict) or set(record) - {"command", "prepared", "bilingual"}:
            raise MarkerError(
                f"commands.toml: [{name}] may have command, prepared and bilingual only"
            )
        command = record.get("command", "")
        if not str(command).startswith("infra-lab "):
            raise MarkerError(f"commands.toml: [{name}] command must begin with `infra-lab `")
        if name in EXPERIMENTS:
            raise MarkerError(f"commands.toml: [{name}] is an experiment's name: find another")
        flags = [record.get(key, False) for key in ("prepared", "bilingual")]
        if not all(isinstance(flag, bool) for flag in flags):
            raise MarkerError(f"commands.toml: [{name}] prepared and bilingual are true or false")
        prepared, bilingual = flags
        if bilingual and not prepared:
            raise MarkerError(f"commands.toml: [{name}] only prepared ones need bilingual")
        commands[name] = Command(name, command, *flags)
    return commands


def command_lines(name: str, facts: Facts, language: Language) -> list[str]:
    """The command and what it prints, as a console block. Under a prepared one, whose figures are
    those of one machine and day, these two are named."""
    commands = facts.once(read_commands, facts.recorded)
    if name not in commands:
        raise MarkerError(f"commands.toml has no command {name!r}{near(name, commands)}")
    own = facts.recorded / f"{name}.{language}.txt"
    path = own if own.is_file() else facts.recorded / f"{name}.txt"
    if not path.is_file():
        raise NotRecordedError(
            f"{path.relative_to(facts.root)} is not there yet: python -m docs.hooks.record {name}"
        )
    output = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    lines = ["```console", f"$ {commands[name].command}", *output, "```"]
    if commands[name].is_prepared:
        record = facts.record(facts.recorded, name)
        with well_formed(f"docs/recorded/{name}.json"):
            lines += ["", _footer(record, language)]
    return lines


def run_lines(name: str, facts: Facts, language: Language) -> list[str]:
    """An experiment: the command, its tables, conclusions and figure, when and where it ran."""
    if name not in EXPERIMENTS:
        raise MarkerError(f"there is no experiment {name!r}{near(name, EXPERIMENTS)}")
    command = f"infra-lab claims run {name}"
    try:
        record = facts.record(facts.recorded, name)
    except NotRecordedError as error:
        raise NotRecordedError(f"{error}: python -m docs.hooks.record {name}") from error
    lines = ["```bash", command, "```", ""]
    with well_formed(f"docs/recorded/{name}.json"):
        for table in record.get("tables", ()):
            lines += [*_table_lines(table, language), ""]
        lines += _conclusion_lines(record.get("conclusions", ()), language)
        footer = _footer(record, language)
    lines += figure_lines(facts.recorded / f"{name}.{language}.svg", name)
    return [*lines, "", footer]


@contextmanager
def well_formed(name: str) -> Iterator[None]:
    """Within it, what a file lacks is told as the file's fault: MarkerError with its name."""
    try:
        yield
    except MarkerError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        told = f"{type(error).__name__}: {error}"
        raise MarkerError(f"{name} is not as it must be: {told}") from error


def gap_lines(command: str, language: Language) -> list[str]:
    """What stands where a record is still missing."""
    text = pick(("Not recorded yet; run it yourself:", "尚未录制，可自行运行："), language)
    return [f'<p class="run__gap">{text} <code>{escape(command)}</code></p>']


def figure_lines(path: Path, title: str) -> list[str]:
    """An SVG inlined, so that its ink is the theme's; none where there is no such file."""
    if not path.is_file():
        return []
    svg = path.read_text(encoding="utf-8")
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor").replace(INK.upper(), "currentColor")
    # A blank line would end the block of HTML, and Markdown would read on in the middle of it.
    whole = " ".join(line.strip() for line in svg.splitlines() if line.strip())
    opening = f'<figure class="plot" role="img" aria-label="{escape(title)}">'
    return ["", f"{opening}{whole}</figure>", ""]


def texts_of(value: Any, language: Language) -> str:
    """A text, or the one of a pair {en, zh}."""
    if isinstance(value, Mapping) and set(value) >= {"en", "zh"}:
        return str(value[language])
    return number_text(value, DIGITS) if isinstance(value, float) else str(value)


def _table_lines(table: Mapping[str, Any], language: Language) -> list[str]:
    columns = [texts_of(one, language) for one in table["columns"]]
    lines = ['<div class="run__table"><table class="rows">']
    if table.get("title"):
        lines.append(f"<caption>{escape(texts_of(table['title'], language))}</caption>")
    heads = "".join(f'<th scope="col">{escape(one)}</th>' for one in columns)
    lines.append(f"<thead><tr>{heads}</tr></thead><tbody>")
    for row in table["rows"]:
        cells = zip(row, table["formats"], strict=True)
        shown = "".join(f"<td>{escape(_cell(one, spec, language))}</td>" for one, spec in cells)
        lines.append(f"<tr>{shown}</tr>")
    return [*lines, "</tbody></table></div>"]


def _cell(value: Any, spec: str, language: Language) -> str:
    return format(value, spec) if isinstance(value, int | float) else texts_of(value, language)


def _conclusion_lines(conclusions: Any, language: Language) -> list[str]:
    if not conclusions:
        return []
    lines = ['<ul class="run__conclusions">']
    for one in conclusions:
        mark, style = ("✓", "holds") if one["holds"] else ("✗", "fails")
        text = escape(texts_of(one["statement"], language))
        lines.append(f'<li class="run__{style}"><span aria-hidden="true">{mark}</span> {text}</li>')
    return [*lines, "</ul>"]


def _footer(record: Mapping[str, Any], language: Language) -> str:
    recorded = record.get("recorded", {})
    parts = [str(recorded[key]) for key in ("date", "machine") if recorded.get(key)]
    if "seconds" in record:
        parts.append(f"{record['seconds']:.1f} s")
    label = pick(("Recorded", "录制于"), language)
    return f'<p class="run__foot">{label} {escape(" · ".join(parts))}</p>'
