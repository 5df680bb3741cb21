"""`{{ ... }}`: a number that the build works out, so that no page carries it as text.

    {{ K4.kv_gb:.2f }}             a claim's number, as its function computes it
    {{ K4.published.kv_gb:.1f }}   what the post says instead
    {{ calc: bytes_per_token(model("llama-3-8b")) / KIB :.0f }}   any calculator
    {{ run.paged-memory.numbers.x:.0% }}, {{ measured.performance.x:.1f }}   what was recorded
    {{ count.claims }}             how many claims, problems, experiments or kernels there are

The braces stay as they are in code, where they mean something else, but not in Mermaid diagrams.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable, Iterator
from typing import Any

from docs.hooks.facts import Facts, near
from docs.hooks.faults import Fault, MarkerError, NotRecordedError
from docs.hooks.page import Line, Page
from infra_lab.errors import UsageError
from infra_lab.texts import TO, Language

EXPANDED_LANGUAGES = ("mermaid",)
GAP = "…"  # what stands for a number that has still to be recorded

_BRACES = re.compile(r"\{\{(?P<inside>.*?)\}\}")
_CODE_OR_BRACES = re.compile(r"(?P<ticks>`+).*?(?P=ticks)|" + _BRACES.pattern)
_WITH_FORMAT = re.compile(r"(?P<what>.*?)(?::(?P<format>[^:()\[\]\"']*))?", re.DOTALL)
_BUILTINS = {
    name: getattr(builtins, name)
    for name in ("abs", "float", "int", "len", "list", "max", "min", "range", "round", "sum")
}


def number_text(inside: str, facts: Facts, language: Language = "en") -> str:
    """What the inside of one pair of braces comes to. Raises MarkerError."""
    inside = inside.strip()
    calculated = inside.startswith("calc:")
    found = _WITH_FORMAT.fullmatch(inside.removeprefix("calc:").strip())
    if found is None:
        raise MarkerError(f"{inside!r} is no number")
    what, spec = found["what"].strip(), (found["format"] or "").strip()
    if calculated:
        return _formatted(_calculated(what, facts), spec, inside)
    head, _, path = what.partition(".")
    if head == "run":
        name, _, path = path.partition(".")
        return _formatted(_run_number(name, path, facts), spec, inside)
    if head == "measured":
        name, _, path = path.partition(".")
        return _formatted(_follow(facts.record(facts.measured, name), path, what), spec, inside)
    if head == "count":
        return _formatted(_follow(facts.counts, path, what), spec, inside)
    return _claim_number(head, path, spec, facts, language)


def expand_numbers(text: str, facts: Facts, language: Language, gaps: list[str]) -> str:
    """A text of prose with its numbers filled in; one that is not recorded yet becomes an ellipsis,
    and what is missing is added to `gaps`. Raises MarkerError for the first fault."""

    def replace(found: re.Match[str]) -> str:
        try:
            return _replaced(found, facts, language)
        except NotRecordedError as error:
            gaps.append(str(error))
            return GAP

    return _CODE_OR_BRACES.sub(replace, text)


def expand_lines(page: Page, facts: Facts) -> tuple[list[Line], list[Fault]]:
    """The page's lines with the numbers of its prose and diagrams filled in, and what went wrong.
    A line at fault keeps its braces; a number that is not recorded yet becomes an ellipsis."""
    lines, faults = [], []
    for line in page.lines:
        pattern = _pattern_of(line)
        text = line.text
        if pattern is not None and "{{" in text:
            text, found = _expanded_line(line, pattern, page, facts)
            faults += found
        lines.append(Line(line.number, text, line.fence, line.is_delimiter))
    return lines, faults


def braces_in(text: str) -> Iterator[str]:
    """The inside of each pair of braces of a line of prose."""
    for found in _CODE_OR_BRACES.finditer(text):
        if found["inside"] is not None:
            yield found["inside"]


def _pattern_of(line: Line) -> re.Pattern[str] | None:
    if line.fence is None:
        return _CODE_OR_BRACES
    return _BRACES if line.language in EXPANDED_LANGUAGES else None


def _expanded_line(
    line: Line, pattern: re.Pattern[str], page: Page, facts: Facts
) -> tuple[str, list[Fault]]:
    faults: list[Fault] = []

    def replace(found: re.Match[str]) -> str:
        try:
            return _replaced(found, facts, page.language)
        except MarkerError as error:
            gap = isinstance(error, NotRecordedError)
            faults.append(Fault(page.path, line.number, str(error), gap))
            return GAP if gap else found[0]

    return pattern.sub(replace, line.text), faults


def _replaced(found: re.Match[str], facts: Facts, language: Language) -> str:
    if found["inside"] is None:
        return found[0]
    return number_text(found["inside"], facts, language)


def _calculated(expression: str, facts: Facts) -> Any:
    try:
        return eval(expression, {"__builtins__": _BUILTINS}, facts.calculators)  # our own pages
    except UsageError as error:
        raise MarkerError(f"calc {expression}: {error}") from error
    except Exception as error:
        hint = ""
        if isinstance(error, NameError) and error.name:
            hint = near(error.name, facts.calculators)
        raise MarkerError(f"calc {expression}: {type(error).__name__}: {error}{hint}") from error


def _run_number(name: str, path: str, facts: Facts) -> Any:
    record = facts.record(facts.recorded, name)
    numbers = record.get("numbers", {})
    if not isinstance(numbers, dict):
        raise MarkerError(f"run.{name}: its record's numbers are no table")
    is_number = any(path == key or path.startswith(f"{key}.") for key in numbers)
    is_other = path.partition(".")[0] in record
    return _follow(record if is_other and not is_number else numbers, path, f"run.{name}.{path}")


def _claim_number(head: str, path: str, spec: str, facts: Facts, language: Language) -> str:
    outcome = facts.outcome(head)
    first, _, name = path.rpartition(".")
    if first == "published":
        values = {one.name: one for one in outcome.claim.values if one.published is not None}
        published = values[name].published if name in values else None
        if published is None:
            raise MarkerError(f"{head} has no published {name!r}{_have(values)}")
        low, high = (_formatted(end, spec, path) for end in published)
        return low if low == high else f"{low}{TO[language]}{high}"
    if first or name not in outcome.numbers:
        raise MarkerError(f"{head} has no number {path!r}{_have(outcome.numbers)}")
    return _formatted(outcome.numbers[name], spec, path)


def _have(names: Any) -> str:
    return f": it has {', '.join(names)}" if names else ": it has none"


def _follow(start: Any, path: str, what: str) -> Any:
    """`a.b.0` into nested tables and lists; a key may itself hold dots."""
    if not path:
        return start
    if isinstance(start, list):
        head, _, rest = path.partition(".")
        if head.isdigit() and int(head) < len(start):
            return _follow(start[int(head)], rest, what)
        raise MarkerError(f"{what}: {head!r} is no place in a list of {len(start)}")
    if isinstance(start, dict):
        for key in sorted(start, key=len, reverse=True):
            if path == key or path.startswith(f"{key}."):
                return _follow(start[key], path[len(key) + 1 :], what)
        raise MarkerError(f"{what}: there is no {path!r}{_have(start)}")
    raise MarkerError(f"{what}: {path!r} is asked of {start!r}")


_Format = Callable[[Any, str], str]


def _formatted(value: Any, spec: str, what: str) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise MarkerError(f"{what} is not a number but a {type(value).__name__}")
    formatter: _Format = format
    try:
        return formatter(value, spec)
    except ValueError as error:
        raise MarkerError(f"{what}: {error}") from error
