"""Section C: three jobs in one batch, alone and in a queue."""

from __future__ import annotations

from infra_lab.calculators.scheduling import continuous_batches, static_batches
from infra_lab.claims.claim import Numbers

_JOBS = [200, 50, 100]
_QUEUE = _JOBS * 50


def c3() -> Numbers:
    return {
        "occupancy": static_batches(_JOBS, 3).occupancy,
        "first": 1 / 3,
        "second": 2 / 3,
    }


def c4() -> Numbers:
    alone, queued = continuous_batches(_JOBS, 3), continuous_batches(_QUEUE, 3)
    return {
        "steps": alone.num_steps,
        "alone": alone.occupancy,
        "queued": queued.occupancy,
        "gain": static_batches(_QUEUE, 3).num_steps / queued.num_steps,
    }
