"""What chains of calls do to a success rate, and what a nine is in hours.

Answers "each step of my agent is right in 95 of 100 cases: how often is the whole task?": ten
steps, 60 %. The same product makes ten services of 99.9 % one of 99.0 %.
"""

from __future__ import annotations

from infra_lab.calculators.checks import require_count, require_not_negative, require_share

HOURS_PER_YEAR = 365 * 24


def chain_success(step_success: float, num_steps: int) -> float:
    """p^n: all of n independent steps in a row are right."""
    require_share("step_success", step_success)
    require_count("num_steps", num_steps, 0)
    return step_success**num_steps


def downtime_hours(availability: float, hours: float = HOURS_PER_YEAR) -> float:
    """(1 - availability) x hours; 99.9 % of a year leaves out 8.76."""
    require_share("availability", availability)
    require_not_negative("hours", hours)
    return (1 - availability) * hours


def scan_bytes(num_vectors: int, dim: int, bytes_per_element: float = 4) -> float:
    """What a brute-force search reads for every query: all vectors."""
    require_count("num_vectors", num_vectors)
    require_count("dim", dim)
    return num_vectors * dim * bytes_per_element
