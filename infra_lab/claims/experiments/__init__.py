"""Experiments that claims about behaviour rest on, one module each, found by name.

The names are those of `claim.EXPERIMENTS`; the module of `paged-memory` is `paged_memory`, and its
`EXPERIMENT` says what it needs, runs it and draws it. Nothing heavy is imported before it runs.
"""

from __future__ import annotations

from importlib import import_module

from infra_lab.claims.experiments.experiment import Experiment


def experiment(name: str) -> Experiment:
    """The experiment of a name of EXPERIMENTS."""
    module = import_module(f"{__name__}.{name.replace('-', '_')}")
    found: Experiment = module.EXPERIMENT
    return found
