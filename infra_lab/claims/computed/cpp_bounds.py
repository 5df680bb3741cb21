"""Section D: what can be counted of a fault's place; the rest is for the laboratory."""

from __future__ import annotations

from infra_lab.calculators.units import KIB
from infra_lab.claims.claim import Numbers

_PAGE = 4 * KIB


def d3() -> Numbers:
    """Offsets at which the audit's program last read and first faulted."""
    ok, fault = 132_000, 135_168
    return {
        "ok_bytes": ok,
        "fault_bytes": fault,
        "fault_kib": fault / KIB,
        "pages": fault / _PAGE,
    }
