"""Every experiment is run once for all tests that ask about its result."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from infra_lab.claims.experiments import experiment
from infra_lab.claims.experiments.experiment import Result, silent
from infra_lab.claims.experiments.needs import missing


@pytest.fixture(scope="session")
def result_of() -> Callable[[str], Result]:
    """The result of an experiment under seed 0; skips where the machine lacks what it needs."""
    kept: dict[str, Result] = {}

    def run(name: str) -> Result:
        found = experiment(name)
        for need in found.needs:
            if (how := missing(need)) is not None:
                pytest.skip(f"{name} {how}")
        if name not in kept:
            kept[name] = found.run(silent, 0)
        return kept[name]

    return run
