"""Section H: the ring's numbers, by dynamic programming."""

from __future__ import annotations

from itertools import count

from infra_lab.claims.claim import Numbers


def ring_walks(num_places: int, num_steps: int) -> int:
    """Walks of `num_steps` steps of one place, either way, that end where they began."""
    ways = [1] + [0] * (num_places - 1)
    for _ in range(num_steps):
        ways = [ways[i - 1] + ways[(i + 1) % num_places] for i in range(num_places)]
    return ways[0]


def h1() -> Numbers:
    return {
        **{f"n{steps}": ring_walks(10, steps) for steps in (4, 10, 12, 20)},
        # The closed form sums m x ways before it divides by m.
        "double_steps": next(n for n in count() if 10 * ring_walks(10, n) > 2**53),
        "int64_steps": next(n for n in count() if ring_walks(10, n) >= 2**63),
    }
