"""Recomputes the ledger: does every computed number come out as worked, and does the published one
agree or disagree as the verdict says?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from infra_lab.claims.claim import Claim, Numbers, Value
from infra_lab.claims.ledger import Ledger

COMPUTED = "infra_lab.claims.computed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one claim: its numbers, and every way in which record and computation differ."""

    claim: Claim
    numbers: Numbers
    faults: tuple[str, ...]


def topic_functions(topic: str) -> ModuleType | None:
    """The module that computes a topic's claims; None where none of them is arithmetic."""
    try:
        return import_module(f"{COMPUTED}.{topic}")
    except ModuleNotFoundError as error:
        if error.name != f"{COMPUTED}.{topic}":
            raise
        return None


def function_of(claim: Claim) -> Callable[[], Numbers] | None:
    """The function of the claim's name, in lower case, in its topic's module."""
    module = topic_functions(claim.topic)
    found: Callable[[], Numbers] | None = getattr(module, claim.id.lower(), None)
    return found


def compute(claim: Claim) -> Numbers:
    """The claim's numbers; none where it is not a matter of arithmetic."""
    function = function_of(claim)
    return {} if function is None else function()


def check(claim: Claim) -> Outcome:
    """Recomputes one claim; never raises for what it finds."""
    numbers = compute(claim)
    faults = [
        f"{name} is {wanted}"
        for names, wanted in (
            ({one.name for one in claim.values} - set(numbers), "recorded and not computed"),
            (set(numbers) - {one.name for one in claim.values}, "computed and not recorded"),
        )
        for name in sorted(names)
    ]
    for value in claim.values:
        if value.name in numbers:
            faults += _faults(value, numbers[value.name])
    if claim.evidence == "calculated" and not claim.values:
        faults.append("evidence is 'calculated', and there is no value")
    return Outcome(claim, numbers, tuple(faults))


def check_all(claims: Iterable[Claim]) -> list[Outcome]:
    return [check(one) for one in claims]


def report(ledger: Ledger) -> dict[str, Any]:
    """What `infra-lab claims check --json` prints."""
    outcomes = check_all(ledger.claims.values())
    by_evidence: dict[str, int] = {}
    for one in ledger.claims.values():
        by_evidence[one.evidence] = by_evidence.get(one.evidence, 0) + 1
    return {
        "total": len(outcomes),
        "by_verdict": ledger.by_verdict(),
        "by_evidence": by_evidence,
        "recomputed": sum(bool(one.numbers) for one in outcomes),
        "values": sum(len(one.numbers) for one in outcomes),
        "failed": [
            {"id": one.claim.id, "faults": list(one.faults)} for one in outcomes if one.faults
        ],
    }


def _faults(value: Value, computed: float) -> list[str]:
    found = []
    if not value.confirms(computed):
        found.append(f"{value.name} is {computed:.6g}, worked out as {value.worked}")
    if value.published is not None and value.agrees(computed) != value.holds:
        word = "differs from" if value.holds else "agrees with"
        found.append(f"{value.name} is {computed:.6g} and {word} what was published")
    return found
