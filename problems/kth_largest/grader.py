"""Grades kth_largest against sorting, and counts the pairs of values that are compared.

A pair counts once, however often it is compared: so a three-way partition costs the same as
`x > p`, `x == p`, `x < p` in three passes, and what is counted is how many values meet how many
pivots. For quickselect with uniform pivots that number is at most 3.39 n on average. The bound
on its tail comes from its generating function, by the recursion over n with the worst rank at
each step (Chernoff): P(more than 10 n) < 7e-5, 12 n < 6e-7, 24 n < 1e-20 for one call.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.practice.kit import Call, Counted, Solution, Tally, follow_up, states


class PairTally(Tally):
    """Counts each pair of values once."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs: set[int] = set()
        self.others = 0  # comparisons with what is no value of the list

    @property
    def used(self) -> int:
        return len(self.pairs) + self.others


class PairCounted(Counted):
    """A value that knows its place in the list."""

    __slots__ = ("place",)
    tally: PairTally

    def __init__(self, value: int, tally: PairTally, place: int) -> None:
        super().__init__(value, tally)
        self.place = place

    def __neg__(self) -> PairCounted:
        return PairCounted(-self.value, self.tally, self.place)

    __hash__ = Counted.__hash__

    def _other(self, other: object) -> Any:
        if not isinstance(other, PairCounted):
            self.tally.others += 1
            return super()._other(other)
        here, there = self.place, other.place
        self.tally.pairs.add(here << 32 | there if here < there else there << 32 | here)
        return other.value


def counted(values: list[int]) -> tuple[list[PairCounted], PairTally]:
    tally = PairTally()
    return [PairCounted(value, tally, place) for place, value in enumerate(values)], tally


def plain(call: Call, got: Any) -> Any:
    """The value inside a counted one, or the test fails."""
    if not isinstance(got, Counted):
        call.fail("a value out of the input", note="return the value itself")
    return got.value


def organ_pipe(n: int) -> list[int]:
    return [*range(n // 2), *range(n - n // 2, 0, -1)]


def median_of_three_killer(n: int) -> list[int]:
    """Musser's permutation for n divisible by 4: the median of the first, middle and last value
    is the second smallest of those left, time and again."""
    half = n // 2
    values = [0] * n
    for i in range(half):
        values[i] = i + 1 if i % 2 == 0 else half + i + (half % 2)
        values[half + i] = 2 * (i + 1)
    return values


N = 1024
ORDERS = {
    "ascending": list(range(N)),
    "descending": list(range(N, 0, -1)),
    "all equal": [7] * N,
    "two values": [i % 2 for i in range(N)],
    "one large value among equal ones": [*[0] * (N - 1), 1],
    "organ pipe": organ_pipe(N),
    "organ pipe, upside down": [-value for value in organ_pipe(N)],
    "median-of-three killer": median_of_three_killer(N),
    "shuffled": random.Random(7).sample(range(N), N),
}
MANY = 1 << 15
ASCENDING = list(range(MANY))

some_values = st.lists(st.integers(-50, 50), min_size=1, max_size=16)


@st.composite
def lists_and_ranks(draw: st.DrawFn, elements: st.SearchStrategy[int]) -> tuple[list[int], int]:
    values = draw(st.lists(elements, min_size=1, max_size=16))
    return values, draw(st.integers(1, len(values)))


@states("small lists give the value that one reads off", "小例子与手算的值一致")
@pytest.mark.parametrize(
    ("values", "k", "expected"),
    [
        ([5], 1, 5),
        ([1, 2], 1, 2),
        ([1, 2], 2, 1),
        ([2, 1], 1, 2),
        ([3, 1, 2], 2, 2),
        ([3, 3, 1], 2, 3),
        ([1, 1, 3], 2, 1),
        ([-1, -3, -2], 1, -1),
        ([0, 0, 0], 3, 0),
    ],
)
def test_small_lists(solution: Solution, values: list[int], k: int, expected: int) -> None:
    solution.call("kth_largest", values, k).equals(expected)


@states(
    "k below one or beyond the list raises ValueError", "k 小于 1 或大于列表长度时抛出 ValueError"
)
@pytest.mark.parametrize(
    ("values", "k"),
    [([1, 2, 3], 0), ([1, 2, 3], -1), ([1, 2, 3], 4), ([], 1), ([], 0)],
)
def test_invalid_k(solution: Solution, values: list[int], k: int) -> None:
    solution.call("kth_largest", values, k).raises(ValueError)


@states("k = 1 is the maximum and k = n the minimum", "k = 1 是最大值，k = n 是最小值")
@given(values=some_values)
def test_extremes(solution: Solution, values: list[int]) -> None:
    solution.call("kth_largest", values, 1).equals(max(values))
    solution.call("kth_largest", values, len(values)).equals(min(values))


@states("equal values count each for itself", "相等的值各占一个名次")
@given(case=lists_and_ranks(st.integers(0, 2)))
def test_ties(solution: Solution, case: tuple[list[int], int]) -> None:
    values, k = case
    solution.call("kth_largest", values, k).equals(sorted(values)[-k])


@states("the value agrees with sorting", "结果与排序一致")
@given(case=lists_and_ranks(st.integers(-50, 50)))
def test_sorting(solution: Solution, case: tuple[list[int], int]) -> None:
    values, k = case
    solution.call("kth_largest", values, k).equals(sorted(values)[-k])


@states("values beyond 2**53 stay exact, negative ones too", "超过 2**53 的正负整数仍然精确")
@given(case=lists_and_ranks(st.integers(-3, 3)), shift=st.sampled_from([-(2**70), 2**70]))
def test_large_values(solution: Solution, case: tuple[list[int], int], shift: int) -> None:
    values, k = [value + shift for value in case[0]], case[1]
    solution.call("kth_largest", values, k).equals(sorted(values)[-k])


@states("the input list is left as it was", "不改动输入列表")
@given(case=lists_and_ranks(st.integers(-9, 9)))
def test_input_is_left_alone(solution: Solution, case: tuple[list[int], int]) -> None:
    solution.call("kth_largest", *case).leaves_arguments_alone()


@states(
    "no order of the input makes it quadratic: at most 24 n pairs are compared",
    "任何输入顺序都不会退化成平方：至多比较 24 n 对值",
)
@pytest.mark.parametrize("k", [1, N // 4, N // 2, N], ids="k={}".format)
@pytest.mark.parametrize("order", ORDERS)
def test_no_bad_order(solution: Solution, order: str, k: int) -> None:
    # 36 cases: a right solution with random pivots fails one with probability below 1e-18.
    values, tally = counted(ORDERS[order])
    call = solution.call("kth_largest", values, k)
    used = tally.used
    expected = sorted(ORDERS[order])[-k]
    if plain(call, call.value) != expected:
        call.fail(str(expected), note=f"{N} values, {order}")
    solution.within("pairs of values compared", used, 24 * N, call)


@states(
    "shuffled values take fewer comparisons than any sort: at most 10 n pairs",
    "打乱的输入比任何排序都省：至多比较 10 n 对值",
)
def test_less_than_sorting(solution: Solution) -> None:
    # Sorting takes log2(n!) = 12.56 n on average at least, for n = 2**14. The sum of three calls
    # goes over 3 * 10 n with probability below (7e-5)**3 for random pivots.
    used, n = 0, MANY // 2
    for seed, k in enumerate((n // 2, n - n // 8, n)):
        values, tally = counted(random.Random(seed).sample(range(n), n))
        call = solution.call("kth_largest", values, k)
        used += tally.used
        if plain(call, call.value) != n - k:
            call.fail(str(n - k), note=f"the numbers below {n}, shuffled")
    solution.within("pairs of values compared in three calls", used, 3 * 10 * n, call)


@states(
    "ascending values take fewer comparisons than a heap of size k: at most 10 n pairs",
    "升序输入比大小为 k 的堆更省：至多比较 10 n 对值",
)
def test_less_than_a_heap(solution: Solution) -> None:
    # Every value enters a heap of size k = 2**12, and passes its 12 levels: 12 n and more. For
    # random pivots the sum of two calls goes over 2 * 10 n with probability below (7e-5)**2.
    used, n, k = 0, MANY, MANY // 8
    for _ in range(2):
        values, tally = counted(ASCENDING)
        call = solution.call("kth_largest", values, k)
        used += tally.used
        if plain(call, call.value) != n - k:
            call.fail(str(n - k), note=f"the numbers below {n}, ascending")
    solution.within("pairs of values compared in two calls", used, 2 * 10 * n, call)


@follow_up("top_k")
@states("follow-up: small lists give the values from the largest down", "进阶：小例子从大到小给出")
@pytest.mark.parametrize(
    ("values", "k", "expected"),
    [
        ([5], 1, [5]),
        ([1, 2], 2, [2, 1]),
        ([1, 3, 2], 2, [3, 2]),
        ([3, 1, 3], 2, [3, 3]),
        ([1, 2, 2], 3, [2, 2, 1]),
    ],
)
def test_top_of_small_lists(
    solution: Solution, values: list[int], k: int, expected: list[int]
) -> None:
    solution.call("top_k", values, k).equals(expected)


@follow_up("top_k")
@states(
    "follow-up: k below one or beyond the list raises ValueError",
    "进阶：k 小于 1 或大于列表长度时抛出 ValueError",
)
@pytest.mark.parametrize(("values", "k"), [([1, 2], 0), ([1, 2], -1), ([1, 2], 3), ([], 1)])
def test_top_of_invalid_k(solution: Solution, values: list[int], k: int) -> None:
    solution.call("top_k", values, k).raises(ValueError)


@follow_up("top_k")
@states(
    "follow-up: the values agree with sorting, and the input is left as it was",
    "进阶：结果与排序一致，且不改动输入",
)
@given(case=lists_and_ranks(st.integers(-4, 4)), shift=st.sampled_from([0, 2**70]))
def test_top_agrees_with_sorting(
    solution: Solution, case: tuple[list[int], int], shift: int
) -> None:
    values, k = [value + shift for value in case[0]], case[1]
    call = solution.call("top_k", values, k).equals(sorted(values, reverse=True)[:k])
    call.leaves_arguments_alone()
    if call.value is values:
        call.fail("a new list", "the list that was passed in")


@follow_up("top_k")
@states(
    "follow-up: at most (4 + 2 log2 k) n pairs are compared",
    "进阶：至多比较 (4 + 2 log2 k) n 对值",
)
@pytest.mark.parametrize(
    ("order", "n", "log_k"),
    [
        ("ascending", 4096, 8),
        ("descending", 4096, 8),
        ("all equal", 4096, 8),
        ("shuffled", MANY, 4),
    ],
)
def test_top_work(solution: Solution, order: str, n: int, log_k: int) -> None:
    # For n = 2**15, sorting takes log2(n!) = 13.56 n on average at least; allowed are 12 n.
    numbers = {
        "ascending": list(range(n)),
        "descending": list(range(n, 0, -1)),
        "all equal": [7] * n,
        "shuffled": random.Random(8).sample(range(n), n),
    }[order]
    values, tally = counted(numbers)
    call = solution.call("top_k", values, 2**log_k)
    used = tally.used
    got = [plain(call, value) for value in call.of_type(list)]
    if got != sorted(numbers, reverse=True)[: 2**log_k]:
        call.fail(f"the {2**log_k} largest, from the largest down", note=f"{n} values, {order}")
    solution.within("pairs of values compared", used, (4 + 2 * log_k) * n, call)
