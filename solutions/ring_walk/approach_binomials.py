"""Closed form: choose which of the steps go right; O(steps / ring_size) binomials.

With `ups` steps right and the others left, the walk ends at 2 * ups - steps, and is closed if
that is a multiple of ring_size. Follow-up: all C(steps, ups) with ups in one residue class are
one coefficient of (1 + y)^steps modulo y^ring_size - 1: O(ring_size**2 * log(steps)).
"""

from math import comb


def count_ways(ring_size: int, steps: int) -> int:
    furthest = steps // ring_size  # times around
    return sum(
        comb(steps, (steps + turns * ring_size) // 2)
        for turns in range(-furthest, furthest + 1)
        if (steps + turns * ring_size) % 2 == 0
    )


def count_ways_mod(ring_size: int, steps: int, modulus: int) -> int:
    sums = _binomials_by_residue(ring_size, steps, modulus)
    return sum(sums[r] for r in range(ring_size) if (2 * r - steps) % ring_size == 0) % modulus


def _binomials_by_residue(ring_size: int, steps: int, modulus: int) -> list[int]:
    """sums[r]: all C(steps, ups) with ups % ring_size == r, modulo `modulus`."""
    if steps == 0:
        return [1 % modulus] + [0] * (ring_size - 1)
    half = _binomials_by_residue(ring_size, steps // 2, modulus)
    # Vandermonde: C(2m, k) is the sum of C(m, i) C(m, k - i) over i.
    sums = [
        sum(half[i] * half[(r - i) % ring_size] for i in range(ring_size)) % modulus
        for r in range(ring_size)
    ]
    if steps % 2:  # Pascal: C(n + 1, k) = C(n, k) + C(n, k - 1)
        sums = [(sums[r] + sums[r - 1]) % modulus for r in range(ring_size)]
    return sums
