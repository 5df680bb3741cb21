"""Grades ring_walk against walking every path, against published counts, and against sums of
binomials and Lucas numbers, which need no ring."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.practice.kit import Solution, follow_up, states

RING_OF_10 = [1, 0, 2, 0, 6, 0, 20, 0, 70, 0, 254, 0, 948]  # OEIS A095929, zeros between
RING_OF_7 = [1, 0, 2, 0, 6, 0, 20, 2, 70, 18, 252, 110, 924]  # OEIS A094659
PRIME = 10**9 + 7


def walk_every_path(ring_size: int, steps: int) -> int:
    return sum(sum(path) % ring_size == 0 for path in product((1, -1), repeat=steps))


def sum_of_binomials(ring_size: int, steps: int) -> int:
    """With `ups` steps one way, the walk closes if 2 ups - steps is a multiple of the ring."""
    return sum(
        math.comb(steps, ups) for ups in range(steps + 1) if (2 * ups - steps) % ring_size == 0
    )


def lucas(n: int, modulus: int) -> int:
    """The nth Lucas number, by doubling from the binary digits of n."""
    this, following = 2, 1  # L(0), L(1)
    sign = 1  # (-1)^k, for the k read so far
    for digit in f"{n:b}":
        double = (this * this - 2 * sign) % modulus
        between = (this * following - sign) % modulus
        after = (following * following + 2 * sign) % modulus
        this, following = (between, after) if digit == "1" else (double, between)
        sign = -1 if digit == "1" else 1
    return this


def ring_of_ten_mod(steps: int, prime: int) -> int:
    """For an even number of steps: (2^steps + 2 Lucas(steps)) / 5, as A095929 gives it."""
    return (pow(2, steps, prime) + 2 * lucas(steps, prime)) * pow(5, -1, prime) % prime


@states("no steps leave one walk, the empty one", "走 0 步只有一种走法：原地不动")
@pytest.mark.parametrize("ring_size", [1, 2, 3, 10])
def test_no_steps(solution: Solution, ring_size: int) -> None:
    solution.call("count_ways", ring_size, 0).equals(1)


@states("a ring of 10 nodes gives the known counts", "10 个节点的环给出已知的计数")
@pytest.mark.parametrize("steps", range(len(RING_OF_10)))
def test_a_ring_of_ten(solution: Solution, steps: int) -> None:
    solution.call("count_ways", 10, steps).equals(RING_OF_10[steps])


@states(
    "an odd ring can be closed in an odd number of steps", "奇数个节点的环，走奇数步也可能回到起点"
)
@pytest.mark.parametrize("steps", range(len(RING_OF_7)))
def test_an_odd_ring(solution: Solution, steps: int) -> None:
    solution.call("count_ways", 7, steps).equals(RING_OF_7[steps])


@states(
    "two moves count separately on rings of one and two nodes",
    "1 个或 2 个节点的环上，两种走法分别计数",
)
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 9, 10])
def test_tiny_rings(solution: Solution, steps: int) -> None:
    solution.call("count_ways", 1, steps).equals(2**steps)
    solution.call("count_ways", 2, steps).equals(0 if steps % 2 else 2**steps)


@states("the count agrees with walking every path", "计数与逐条枚举走法一致")
@given(ring_size=st.integers(1, 12), steps=st.integers(0, 11))
def test_every_path(solution: Solution, ring_size: int, steps: int) -> None:
    solution.call("count_ways", ring_size, steps).equals(walk_every_path(ring_size, steps))


# The first is small enough for walking every path to end, and to be shown as too much.
@states("the work grows with ring size times steps at most", "运算量至多与“环的大小 × 步数”成正比")
@pytest.mark.parametrize(("ring_size", "steps"), [(3, 14), (6, 300), (30, 200)])
def test_work(solution: Solution, ring_size: int, steps: int) -> None:
    with solution.counting_lines() as lines:
        call = solution.call("count_ways", ring_size, steps)
    call.equals(sum_of_binomials(ring_size, steps))
    solution.within("executed lines", lines.count, 12 * ring_size * steps + 200, call)


@states("counts beyond 2**53 are exact", "超过 2**53 的计数仍是精确整数")
@given(ring_size=st.integers(1, 30), steps=st.integers(54, 220))
def test_exact_integers(solution: Solution, ring_size: int, steps: int) -> None:
    solution.call("count_ways", ring_size, steps).equals(sum_of_binomials(ring_size, steps))


@follow_up("count_ways_mod")
@states("follow-up: anything modulo 1 is 0", "进阶：模 1 的余数是 0")
@pytest.mark.parametrize(("ring_size", "steps"), [(3, 0), (3, 2), (1, 5)])
def test_modulo_one(solution: Solution, ring_size: int, steps: int) -> None:
    solution.call("count_ways_mod", ring_size, steps, 1).equals(0)


@follow_up("count_ways_mod")
@states("follow-up: the remainder agrees with the exact count", "进阶：余数与精确计数一致")
@given(
    ring_size=st.integers(1, 12),
    steps=st.integers(0, 60),
    modulus=st.integers(1, 12) | st.integers(1, PRIME),
)
def test_modulo(solution: Solution, ring_size: int, steps: int, modulus: int) -> None:
    expected = sum_of_binomials(ring_size, steps) % modulus
    solution.call("count_ways_mod", ring_size, steps, modulus).equals(expected)


@follow_up("count_ways_mod")
@states("follow-up: 10**18 steps take few operations", "进阶：10**18 步也只需很少的运算")
@pytest.mark.parametrize(
    ("ring_size", "steps", "modulus", "expected"),
    [
        # A ring of 4: after an even number n > 0 of steps, half of all walks are back. With
        # 10**5 steps, a loop over the steps ends, and is shown as too much.
        (4, 10**5, PRIME, pow(2, 10**5 - 1, PRIME)),
        (4, 10**18, 998244353, pow(2, 10**18 - 1, 998244353)),
        (4, 10**18 - 1, 998244353, 0),
        (1, 10**18, PRIME, pow(2, 10**18, PRIME)),
        (2, 10**18, PRIME, pow(2, 10**18, PRIME)),
        (2, 10**18 - 1, PRIME, 0),
        (10, 10**18, PRIME, ring_of_ten_mod(10**18, PRIME)),
        (10, 2 * 3**37, 998244353, ring_of_ten_mod(2 * 3**37, 998244353)),
    ],
)
def test_many_steps(
    solution: Solution, ring_size: int, steps: int, modulus: int, expected: int
) -> None:
    with solution.counting_lines() as lines:
        call = solution.call("count_ways_mod", ring_size, steps, modulus)
    call.equals(expected)
    allowed = 8 * steps.bit_length() * ring_size**3 + 4000
    solution.within("executed lines", lines.count, allowed, call)
