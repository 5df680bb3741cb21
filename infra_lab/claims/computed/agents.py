"""Section G: nines, chains and scans."""

from __future__ import annotations

from infra_lab.calculators.parallel import transfer_s
from infra_lab.calculators.reliability import chain_success, downtime_hours, scan_bytes
from infra_lab.calculators.units import GB
from infra_lab.claims.claim import Numbers


def g3() -> Numbers:
    return {
        "year_h": downtime_hours(0.999),
        "month_min": 60 * downtime_hours(0.999, 30 * 24),
        "ten": chain_success(0.999, 10),
        "twenty": chain_success(0.999, 20),
    }


def g4() -> Numbers:
    size = scan_bytes(1_000_000, 768)
    return {"gb": size / GB, "ms": 1000 * transfer_s(size, 20 * GB)}


def g10() -> Numbers:
    return {"p95": chain_success(0.95, 10), "p99": chain_success(0.99, 10)}
