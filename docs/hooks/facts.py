"""What pages may name: claims, calculators, records and problems, each read once a build."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import infra_lab.calculators
from docs.hooks.faults import ROOT, MarkerError, NotRecordedError
from infra_lab.calculators.hardware import device
from infra_lab.claims.check import Outcome, check
from infra_lab.claims.claim import EXPERIMENTS
from infra_lab.claims.ledger import Ledger, read_ledger
from infra_lab.practice import catalog
from infra_lab.practice.problem import Problem

_Made = TypeVar("_Made")


@dataclass
class Facts:
    """`root` is the repository."""

    root: Path = ROOT
    _outcomes: dict[str, Outcome] = field(default_factory=dict)
    _records: dict[Path, dict[str, Any]] = field(default_factory=dict)
    _made: dict[Hashable, Any] = field(default_factory=dict)

    @property
    def recorded(self) -> Path:
        return self.root / "docs" / "recorded"

    @property
    def measured(self) -> Path:
        return self.root / "docs" / "measured"

    @cached_property
    def ledger(self) -> Ledger:
        return read_ledger()

    def outcome(self, claim_id: str) -> Outcome:
        """A claim with its numbers as computed now."""
        if claim_id not in self.ledger.claims:
            raise MarkerError(f"there is no claim {claim_id!r}{near(claim_id, self.ledger.claims)}")
        if claim_id not in self._outcomes:
            self._outcomes[claim_id] = check(self.ledger.claims[claim_id])
        return self._outcomes[claim_id]

    @cached_property
    def problems(self) -> dict[str, Problem]:
        return {one.slug: one for one in catalog.load_all(self.root)}

    def problem(self, slug: str) -> Problem:
        if slug not in self.problems:
            raise MarkerError(f"there is no problem {slug!r}{near(slug, self.problems)}")
        return self.problems[slug]

    @cached_property
    def calculators(self) -> dict[str, Any]:
        """Every public name of infra_lab.calculators' modules, and `gpu`."""
        names: dict[str, Any] = {}
        for module in pkgutil.iter_modules(infra_lab.calculators.__path__):
            if module.name == "checks":
                continue
            found = importlib.import_module(f"infra_lab.calculators.{module.name}")
            names |= {key: value for key, value in vars(found).items() if _is_public(key, value)}
        return names | {"gpu": device}

    @cached_property
    def counts(self) -> dict[str, int]:
        """What the repository holds, by kind."""
        verdicts = self.ledger.by_verdict()
        quality = json.loads((self.root / "kernels/testing/quality.json").read_text("utf-8"))
        return {
            "claims": len(self.ledger.claims),
            "corrected": verdicts["wrong"] + verdicts["conditions"],
            "problems": len(self.problems),
            "experiments": len(EXPERIMENTS),
            "kernels": len({row["kernel"] for row in quality["rows"]}),
            "models": len(self.calculators["MODELS"]),
            "gpus": len(self.calculators["DEVICES"]),
        }

    def record(self, folder: Path, name: str) -> dict[str, Any]:
        """The JSON of a recorded run or a measurement."""
        path = folder / f"{name}.json"
        if path not in self._records:
            if not path.is_file():
                raise NotRecordedError(f"{path.relative_to(self.root)} is not there yet")
            self._records[path] = self._read_record(path)
        return self._records[path]

    def once(self, make: Callable[..., _Made], *arguments: Hashable) -> _Made:
        """What a function gives for these arguments, worked out once a build."""
        key = (make, arguments)
        if key not in self._made:
            self._made[key] = make(*arguments)
        made: _Made = self._made[key]
        return made

    def _read_record(self, path: Path) -> dict[str, Any]:
        name = path.relative_to(self.root)
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise MarkerError(f"{name}:{error.lineno}: {error.msg}") from error
        except UnicodeDecodeError as error:
            raise MarkerError(f"{name}: {error}") from error
        if not isinstance(record, dict):
            raise MarkerError(f"{name}:1: a record is a table, not a {type(record).__name__}")
        return record


def near(name: str, known: Any) -> str:
    """ ": did you mean ...?", with the nearest of the known names."""
    close = get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f": did you mean {' or '.join(map(repr, close))}?" if close else ""


def _is_public(key: str, value: object) -> bool:
    return not key.startswith("_") and not isinstance(value, type(json))
