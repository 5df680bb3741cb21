"""Grades ring_walk against walking every path, and against closed forms that need no ring."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.practice.kit import Solution, follow_up, states

PUBLISHED = [1, 0, 2, 0, 6, 0, 20, 0, 70, 0, 254]  # a ring of 10 nodes, 0 to 10 steps


def walk_every_path(ring_size: int, steps: int) -> int:
    return sum(sum(path) % ring_size == 0 for path in product((1, -1), repeat=steps))


def sum_of_binomials(ring_size: int, steps: int) -> int:
    """With `ups` steps one way, the walk closes if 2 ups - steps is a multiple of the ring."""
    return sum(
        math.comb(steps, ups) for ups in range(steps + 1) if (2 * ups - steps) % ring_size == 0
    )


@states("a ring of 10 nodes gives the known counts", "10 个节点的环给出已知的计数")
@pytest.mark.parametrize("steps", range(len(PUBLISHED)))
def test_a_ring_of_ten(solution: Solution, steps: int) -> None:
    solution.call("count_ways", 10, steps).equals(PUBLISHED[steps])


@states("no steps leave one walk, the empty one", "走 0 步只有一种走法：原地不动")
@given(ring_size=st.integers(1, 50))
def test_no_steps(solution: Solution, ring_size: int) -> None:
    solution.call("count_ways", ring_size, 0).equals(1)


@states(
    "two moves count separately on rings of one and two nodes",
    "1 个或 2 个节点的环上，两种走法分别计数",
)
@given(steps=st.integers(0, 40))
def test_tiny_rings(solution: Solution, steps: int) -> None:
    solution.call("count_ways", 1, steps).equals(2**steps)
    solution.call("count_ways", 2, steps).equals(0 if steps % 2 else 2**steps)


@states("the count agrees with walking every path", "计数与逐条枚举走法一致")
@given(ring_size=st.integers(1, 12), steps=st.integers(0, 11))
def test_every_path(solution: Solution, ring_size: int, steps: int) -> None:
    solution.call("count_ways", ring_size, steps).equals(walk_every_path(ring_size, steps))


@states("counts beyond 2**53 are exact", "超过 2**53 的计数仍是精确整数")
@given(ring_size=st.integers(1, 30), steps=st.integers(60, 220))
def test_exact_integers(solution: Solution, ring_size: int, steps: int) -> None:
    solution.call("count_ways", ring_size, steps).equals(sum_of_binomials(ring_size, steps))


@states("the work grows with ring size times steps at most", "运算量至多随 环大小 × 步数 增长")
def test_work(solution: Solution) -> None:
    ring_size, steps = 30, 400
    with solution.counting_lines() as lines:
        call = solution.call("count_ways", ring_size, steps)
    call.equals(sum_of_binomials(ring_size, steps))
    solution.within("executed lines", lines.count, 12 * ring_size * steps, call)


@follow_up("count_ways_mod")
@states("follow-up: the remainder agrees with the exact count", "进阶：余数与精确计数一致")
@given(ring_size=st.integers(1, 12), steps=st.integers(0, 60), modulus=st.integers(1, 10**9 + 7))
def test_modulo(solution: Solution, ring_size: int, steps: int, modulus: int) -> None:
    expected = sum_of_binomials(ring_size, steps) % modulus
    solution.call("count_ways_mod", ring_size, steps, modulus).equals(expected)


@follow_up("count_ways_mod")
@states("follow-up: 10**18 steps take few operations", "进阶：10**18 步也只需很少的运算")
@pytest.mark.parametrize(
    ("ring_size", "steps", "modulus", "expected"),
    [
        (1, 10**18, 10**9 + 7, pow(2, 10**18, 10**9 + 7)),
        (2, 10**18, 10**9 + 7, pow(2, 10**18, 10**9 + 7)),
        (2, 10**18 - 1, 10**9 + 7, 0),
        # A ring of 4: after an even number n > 0 of steps, half of all walks are back.
        (4, 10**18, 998244353, pow(2, 10**18 - 1, 998244353)),
        (4, 10**18 - 1, 998244353, 0),
    ],
)
def test_many_steps(
    solution: Solution, ring_size: int, steps: int, modulus: int, expected: int
) -> None:
    with solution.counting_lines() as lines:
        call = solution.call("count_ways_mod", ring_size, steps, modulus)
    call.equals(expected)
    solution.within("executed lines", lines.count, 60 * 8 * ring_size**3 + 4000, call)
