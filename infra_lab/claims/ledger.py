"""Reads the ledger: every claim of `data/*.toml`, checked for what a record must have.

A fault in a file is ours, not a user's: LedgerError names the claim and what it lacks.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra_lab.claims.claim import EVIDENCE, EXPERIMENTS, POSTS, VERDICTS, Claim, Value, Verdict
from infra_lab.errors import UsageError
from infra_lab.texts import Say, Text, english

DATA = Path(__file__).parent / "data"
DEFAULT_TOLERANCE = 0.01

_ID = re.compile(r"[A-Z]\d+")
_KEYS = {
    "id",
    "says",
    "en",
    "zh",
    "verdict",
    "evidence",
    "answer_en",
    "answer_zh",
    "source",
    "experiment",
    "errors",
    "values",
}
_VALUE_KEYS = {"name", "unit", "published", "worked", "tolerance", "holds"}


class LedgerError(ValueError):
    """A record of the ledger is not as it must be."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A file of claims; `title` by language, `order` its place in the list."""

    name: str
    title: Text
    order: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """All claims by id, in the order of topics and of their files."""

    claims: Mapping[str, Claim]
    topics: Mapping[str, Topic]

    def find(self, claim_id: str, say: Say = english) -> Claim:
        """Raises UsageError with near ids for an unknown one."""
        wanted = claim_id.strip().upper()
        if wanted in self.claims:
            return self.claims[wanted]
        near = [one for one in self.claims if one[0] == wanted[:1]]
        if near:
            first, last = near[0], near[-1]
            hint = say(
                f"{wanted[0]} goes from {first} to {last}", f"{wanted[0]} 从 {first} 到 {last}"
            )
        else:
            hint = say("`infra-lab claims` lists all", "见 `infra-lab claims`")
        raise UsageError(
            say(f"there is no claim {claim_id!r}: {hint}", f"没有论断 {claim_id!r}：{hint}")
        )

    def select(
        self,
        topic: str | None = None,
        verdict: str | None = None,
        source: str | None = None,
        evidence: str | None = None,
        say: Say = english,
    ) -> list[Claim]:
        """The claims that pass every given filter; raises UsageError for a value that none has."""
        _require_known(say("topic", "主题"), topic, self.topics, say)
        _require_known(say("verdict", "结论"), verdict, VERDICTS, say)
        _require_known(say("source", "出处"), source, POSTS, say)
        _require_known(say("evidence", "依据"), evidence, EVIDENCE, say)
        return [
            one
            for one in self.claims.values()
            if topic in (None, one.topic)
            and verdict in (None, one.verdict)
            and (source is None or source in one.says)
            and evidence in (None, one.evidence)
        ]

    def by_verdict(self) -> dict[Verdict, int]:
        counts = dict.fromkeys(VERDICTS, 0)
        for one in self.claims.values():
            counts[one.verdict] += 1
        return counts


def read_ledger(folder: Path = DATA) -> Ledger:
    """Every topic and claim of a folder of TOML files."""
    files = [(path, _parsed(path)) for path in sorted(folder.glob("*.toml"))]
    files.sort(key=lambda one: one[1]["order"])
    claims: dict[str, Claim] = {}
    topics = {}
    for path, content in files:
        topics[path.stem] = Topic(path.stem, content["title"], content["order"])
        for record in content["claim"]:
            claim = _claim(path.stem, record)
            if claim.id in claims:
                raise LedgerError(f"{path.name}: {claim.id} is there twice")
            claims[claim.id] = claim
    return Ledger(claims, topics)


def _parsed(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise LedgerError(f"{path.name}: {error}") from error
    missing = {"title", "order", "claim"} - set(content)
    if missing:
        raise LedgerError(f"{path.name}: {', '.join(sorted(missing))} is missing")
    return content


def _claim(topic: str, record: Mapping[str, Any]) -> Claim:
    name = str(record.get("id", "a claim without an id"))
    wanted = _KEYS - {"experiment", "errors", "values"}
    if missing := wanted - set(record):
        raise LedgerError(f"{name}: {', '.join(sorted(missing))} is missing")
    if unknown := set(record) - _KEYS:
        raise LedgerError(f"{name}: {', '.join(sorted(unknown))} is no field of a claim")
    if not _ID.fullmatch(name):
        raise LedgerError(f"{name}: an id is a capital letter and a number")
    for key in ("en", "zh", "answer_en", "answer_zh", "source"):
        if not str(record[key]).strip():
            raise LedgerError(f"{name}: {key} is empty")
    _require_one_of(name, "verdict", record["verdict"], VERDICTS)
    _require_one_of(name, "evidence", record["evidence"], EVIDENCE)
    for post in record["says"]:
        _require_one_of(name, "says", post, POSTS)
    experiment = record.get("experiment")
    if experiment is not None:
        _require_one_of(name, "experiment", experiment, EXPERIMENTS)
    return Claim(
        id=name,
        topic=topic,
        says=tuple(record["says"]),
        statement={"en": record["en"], "zh": record["zh"]},
        verdict=record["verdict"],
        evidence=record["evidence"],
        answer={"en": record["answer_en"], "zh": record["answer_zh"]},
        source=record["source"],
        experiment=experiment,
        errors=tuple(record.get("errors", ())),
        values=tuple(_value(name, record["verdict"], one) for one in record.get("values", ())),
    )


def _value(claim: str, verdict: Verdict, record: Mapping[str, Any]) -> Value:
    if unknown := set(record) - _VALUE_KEYS:
        raise LedgerError(f"{claim}: {', '.join(sorted(unknown))} is no field of a value")
    if "name" not in record or "unit" not in record:
        raise LedgerError(f"{claim}: a value has a name and a unit")
    given = record.get("published")
    if given is not None and "holds" not in record and verdict not in ("right", "wrong"):
        raise LedgerError(f"{claim}: say whether the published {record['name']} holds")
    published = None
    if given is not None:
        low, high = given if isinstance(given, list) else (given, given)
        published = (float(low), float(high))
    return Value(
        name=record["name"],
        unit=record["unit"],
        published=published,
        worked=record.get("worked"),
        tolerance=record.get("tolerance", DEFAULT_TOLERANCE),
        holds=record.get("holds", verdict == "right"),
    )


def _require_one_of(claim: str, key: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        raise LedgerError(f"{claim}: {key} {value!r} is none of {', '.join(known)}")


def _require_known(kind: str, value: str | None, known: Iterable[str], say: Say) -> None:
    if value is not None and value not in known:
        names = ", ".join(known)
        raise UsageError(
            say(
                f"no claim has the {kind} {value!r}: choose one of {names}",
                f"没有{kind}为 {value!r} 的论断：可选 {names}",
            )
        )
