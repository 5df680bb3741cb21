"""`<!-- name argument -->`, alone on a line: a card, a run, code, a figure, follow-ups, problems.

What a marker becomes is Markdown or HTML, indented as the marker is. An unknown name is a fault.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from docs.hooks import code_view, interview, runs, steps
from docs.hooks.cards import ANSWERING_VERDICTS, claim_card
from docs.hooks.facts import Facts, near
from docs.hooks.faults import Fault, MarkerError, NotRecordedError
from docs.hooks.generated.questions import most_asked_lines
from docs.hooks.numbers import expand_lines
from docs.hooks.page import Line, Page

MARKER = re.compile(
    r"^(?P<indent>[ \t]*)<!--[ \t]+(?P<name>[a-z-]+)(?P<argument>[ \t][^\n]*?)?[ \t]*-->"
)


@dataclass
class Context:
    """Where a marker stands. `up`: what leads from the page to its site's root, like "../../".
    `gaps`: numbers within a marker's text that have still to be recorded."""

    page: Page
    facts: Facts
    up: str = ""
    shown: set[str] = field(default_factory=set)
    gaps: list[str] = field(default_factory=list)


def expand(page: Page, facts: Facts, up: str = "") -> tuple[str, list[Fault]]:
    """The body with every marker and number filled in, and everything that was wrong with it."""
    lines, faults = expand_lines(page, facts)
    context = Context(page, facts, up, set(shown_claims(page)))
    out: list[str] = []
    for line in lines:
        found = MARKER.match(line.text) if line.fence is None else None
        if found is None:
            out.append(_plain(line))
            continue
        try:
            out += _expanded(found, context)
            faults += [Fault(page.path, line.number, gap, is_gap=True) for gap in context.gaps]
            context.gaps.clear()
        except NotRecordedError as error:
            faults.append(Fault(page.path, line.number, str(error), is_gap=True))
            name, argument = found["name"], (found["argument"] or "").strip()
            command = f"infra-lab claims run {argument}"
            if name == "command":
                command = facts.once(runs.read_commands, facts.recorded)[argument].command
            gap = runs.gap_lines(command, page.language)
            out += ["", *(found["indent"] + one for one in gap), ""]
        except MarkerError as error:
            faults.append(Fault(page.path, line.number, str(error)))
    return "\n".join(out), faults


def markers_of(page: Page) -> list[tuple[int, str, str]]:
    """Line, name and argument of every marker."""
    return [
        (line.number, found["name"], (found["argument"] or "").strip())
        for line in page.lines
        if line.fence is None and (found := MARKER.match(line.text))
    ]


def shown_claims(page: Page) -> list[str]:
    """The claims that have a card of their own on the page."""
    return [argument for _, name, argument in markers_of(page) if name == "claim"]


def _plain(line: Line) -> str:
    """`python { .fragment }` marks code that does not run alone: for a test, not for the reader."""
    if line.is_delimiter and line.fence and ".fragment" in line.fence:
        return re.sub(r"[ \t]*\{[^}]*\.fragment[^}]*\}", "", line.text)
    return line.text


def _expanded(found: re.Match[str], context: Context) -> list[str]:
    name, argument = found["name"], (found["argument"] or "").strip()
    if name not in MARKERS:
        raise MarkerError(f"there is no marker {name!r}{near(name, MARKERS)}")
    expander = MARKERS[name]
    if bool(argument) is not (name not in WITHOUT_ARGUMENT):
        wants = "no argument" if name in WITHOUT_ARGUMENT else "a name after it"
        raise MarkerError(f"the marker {name!r} takes {wants}")
    # Blank lines around it end the paragraph before and begin the next.
    return ["", *(found["indent"] + one if one else "" for one in expander(argument, context)), ""]


def _claim(argument: str, context: Context) -> list[str]:
    return claim_card(context.facts.outcome(argument), context.page.language, context.up)


def _claims(argument: str, context: Context) -> list[str]:
    if argument != "wrong":
        raise MarkerError(f"claims {argument!r}: only `claims wrong` is known")
    lines: list[str] = []
    for claim_id in context.page.texts("claims"):
        outcome = context.facts.outcome(claim_id)
        if claim_id in context.shown or outcome.claim.verdict not in ANSWERING_VERDICTS:
            continue
        context.shown.add(claim_id)
        lines += ["", *claim_card(outcome, context.page.language, context.up)]
    return lines


def _run(argument: str, context: Context) -> list[str]:
    return runs.run_lines(argument, context.facts, context.page.language)


def _command(argument: str, context: Context) -> list[str]:
    return runs.command_lines(argument, context.facts, context.page.language)


def _code(argument: str, context: Context) -> list[str]:
    return code_view.code_lines(argument, context.facts, context.page.language, context.up)


def _steps(argument: str, context: Context) -> list[str]:
    return steps.steps_lines(argument, context.page.language, context.up)


def _follow_ups(_: str, context: Context) -> list[str]:
    return interview.follow_up_lines(context.page, context.facts, context.gaps)


def _problems(_: str, context: Context) -> list[str]:
    return interview.problem_lines(context.page, context.facts, context.up)


def _most_asked(_: str, context: Context) -> list[str]:
    return most_asked_lines(context.facts, context.page.language, context.up)


Expander = Callable[[str, Context], list[str]]
MARKERS: dict[str, Expander] = {
    "claim": _claim,
    "claims": _claims,
    "run": _run,
    "command": _command,
    "code": _code,
    "steps": _steps,
    "follow-ups": _follow_ups,
    "problems": _problems,
    "most-asked": _most_asked,
}
WITHOUT_ARGUMENT = ("follow-ups", "problems", "most-asked")
