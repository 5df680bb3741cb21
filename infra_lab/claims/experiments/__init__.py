"""Experiments that claims about behaviour rest on, one module each, found by name.

The names are those of `claim.EXPERIMENTS`; the module of `paged-memory` is `paged_memory`, and its
`EXPERIMENT` says what it needs, runs it and draws it. Nothing heavy is imported before it runs.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from infra_lab.claims.claim import EXPERIMENTS
from infra_lab.claims.experiments.experiment import Experiment


def is_written(name: str) -> bool:
    """Whether there is an experiment of that name yet, and not a plan only."""
    return name in EXPERIMENTS and find_spec(_module(name)) is not None


def written() -> list[str]:
    """The names of all that can be run, in the order of EXPERIMENTS."""
    return [name for name in EXPERIMENTS if is_written(name)]


def experiment(name: str) -> Experiment:
    """The experiment of a name for which `is_written` holds."""
    found: Experiment = import_module(_module(name)).EXPERIMENT
    return found


def _module(name: str) -> str:
    return f"{__name__}.{name.replace('-', '_')}"
