"""Grades sliding_window_maximum against the maximum of every slice, and counts comparisons."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.practice.kit import Call, Counted, Solution, Tally, follow_up, states

# A monotonic queue needs 2, block maxima or two stacks need 3; one more for those that look for
# the value that leaves the window with ==.
COMPARISONS_PER_VALUE = 4
LINES_PER_VALUE = 40
LENGTH, WINDOW = 1000, 250

ORDERS = {
    "ascending": list(range(LENGTH)),
    "descending": list(range(LENGTH, 0, -1)),
    "all equal": [7] * LENGTH,
    "rising teeth": [i % WINDOW for i in range(LENGTH)],
    "falling teeth": [-(i % WINDOW) for i in range(LENGTH)],
    "shuffled": random.Random(6).sample(range(LENGTH), LENGTH),
}


def maximum_of_every_slice(values: list[int], window: int) -> list[int]:
    return [max(values[i : i + window]) for i in range(len(values) - window + 1)]


def counted(values: list[int], tally: Tally) -> list[Counted]:
    return [Counted(value, tally) for value in values]


def plain(call: Call, got: Any) -> Any:
    """The value inside a counted one, or the test fails."""
    if not isinstance(got, Counted):
        call.fail("values out of the input", note="return the values themselves")
    return got.value


@st.composite
def lists_and_windows(draw: st.DrawFn, elements: st.SearchStrategy[int]) -> tuple[list[int], int]:
    values = draw(st.lists(elements, min_size=1, max_size=16))
    return values, draw(st.integers(1, len(values)))


@states("small lists give the maxima that one reads off", "小例子与手算的最大值一致")
@pytest.mark.parametrize(
    ("values", "window", "expected"),
    [
        ([4], 1, [4]),
        ([2, 1], 2, [2]),
        ([1, 2], 2, [2]),
        ([1, 3, 2], 2, [3, 3]),
        ([3, 1, 2], 2, [3, 2]),
        ([5, 4, 1, 2, 3], 3, [5, 4, 3]),
        ([2, 2, 1, 0], 2, [2, 2, 1]),
        ([-3, -1, -2], 2, [-1, -1]),
    ],
)
def test_small_lists(
    solution: Solution, values: list[int], window: int, expected: list[int]
) -> None:
    solution.call("window_maximum", values, window).equals(expected)


@states("a window of one gives the values, in a new list", "窗口为 1 时得到原来的值，且是新列表")
@given(values=st.lists(st.integers(-9, 9), min_size=1, max_size=8))
def test_window_of_one(solution: Solution, values: list[int]) -> None:
    call = solution.call("window_maximum", values, 1).equals(list(values))
    if call.value is values:
        call.fail("a new list", "the list that was passed in")


@states("a window of all values gives one maximum", "窗口覆盖整个列表时只有一个最大值")
@given(values=st.lists(st.integers(-9, 9), min_size=1, max_size=8))
def test_window_of_all(solution: Solution, values: list[int]) -> None:
    solution.call("window_maximum", values, len(values)).equals([max(values)])


@states(
    "a window below one or beyond the list raises ValueError",
    "窗口小于 1 或超过列表长度时抛出 ValueError",
)
@pytest.mark.parametrize(
    ("values", "window"),
    [([1, 2, 3], 0), ([1, 2, 3], -1), ([1, 2, 3], 4), ([1, 2, 3], 5), ([], 1), ([], 0)],
)
def test_invalid_window(solution: Solution, values: list[int], window: int) -> None:
    solution.call("window_maximum", values, window).raises(ValueError)


@states("equal values leave the window one at a time", "相等的值逐个离开窗口")
@given(case=lists_and_windows(st.integers(0, 2)))
def test_ties(solution: Solution, case: tuple[list[int], int]) -> None:
    values, window = case
    solution.call("window_maximum", values, window).equals(maximum_of_every_slice(values, window))


@states("the maxima agree with those of every slice", "结果与逐个切片求最大值一致")
@given(case=lists_and_windows(st.integers(-50, 50)))
def test_every_slice(solution: Solution, case: tuple[list[int], int]) -> None:
    values, window = case
    solution.call("window_maximum", values, window).equals(maximum_of_every_slice(values, window))


@states("values beyond 2**53 stay exact, negative ones too", "超过 2**53 的正负整数仍然精确")
@given(case=lists_and_windows(st.integers(-3, 3)), shift=st.sampled_from([-(2**70), 2**70]))
def test_large_values(solution: Solution, case: tuple[list[int], int], shift: int) -> None:
    values, window = [value + shift for value in case[0]], case[1]
    solution.call("window_maximum", values, window).equals(maximum_of_every_slice(values, window))


@states("the input list is left as it was", "不改动输入列表")
@given(case=lists_and_windows(st.integers(-9, 9)))
def test_input_is_left_alone(solution: Solution, case: tuple[list[int], int]) -> None:
    solution.call("window_maximum", *case).leaves_arguments_alone()


@states("comparisons: at most 4 per value, in any order", "比较次数：任何顺序下平均每个值至多 4 次")
@pytest.mark.parametrize("window", [2, WINDOW, LENGTH - WINDOW])
@pytest.mark.parametrize("order", ORDERS)
def test_comparisons(solution: Solution, order: str, window: int) -> None:
    tally = Tally()
    call = solution.call("window_maximum", counted(ORDERS[order], tally), window)
    used = tally.count
    got = [plain(call, value) for value in call.of_type(list)]
    if got != maximum_of_every_slice(ORDERS[order], window):
        call.fail("the maximum of every slice", note=f"{LENGTH} values, {order}")
    solution.within("comparisons of values", used, COMPARISONS_PER_VALUE * LENGTH, call)


@states("work: at most 40 executed lines per value", "运算量：平均每个值至多执行 40 行代码")
@pytest.mark.parametrize("order", ORDERS)
def test_lines(solution: Solution, order: str) -> None:
    with solution.counting_lines() as lines:
        call = solution.call("window_maximum", list(ORDERS[order]), WINDOW)
    call.equals(maximum_of_every_slice(ORDERS[order], WINDOW))
    solution.within("executed lines", lines.count, LINES_PER_VALUE * LENGTH, call)


@follow_up("StreamingMaximum")
@states(
    "follow-up: while fewer values came, their maximum is returned",
    "进阶：数据不足一个窗口时，返回已有值的最大值",
)
@given(values=st.lists(st.integers(-5, 5), min_size=1, max_size=6))
def test_stream_starts(solution: Solution, values: list[int]) -> None:
    stream = solution.new("StreamingMaximum", len(values))
    for count, value in enumerate(values, 1):
        stream.call("push", value).equals(max(values[:count]))


@follow_up("StreamingMaximum")
@states("follow-up: a window below one raises ValueError", "进阶：窗口小于 1 时抛出 ValueError")
@pytest.mark.parametrize("window", [0, -1])
def test_stream_invalid_window(solution: Solution, window: int) -> None:
    solution.call("StreamingMaximum", window).raises(ValueError)


@follow_up("StreamingMaximum")
@states(
    "follow-up: each push returns the maximum of the last values",
    "进阶：每次 push 返回最近若干个值的最大值",
)
@given(window=st.integers(1, 5), values=st.lists(st.integers(-3, 3), min_size=1, max_size=20))
def test_stream(solution: Solution, window: int, values: list[int]) -> None:
    stream = solution.new("StreamingMaximum", window)
    for count, value in enumerate(values, 1):
        stream.call("push", value).equals(max(values[:count][-window:]))


@follow_up("StreamingMaximum")
@states("follow-up: two streams share nothing", "进阶：两个数据流互不影响")
@given(
    windows=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    pushes=st.lists(st.tuples(st.integers(0, 1), st.integers(-3, 3)), max_size=16),
)
def test_two_streams(
    solution: Solution, windows: tuple[int, int], pushes: list[tuple[int, int]]
) -> None:
    streams = [solution.new("StreamingMaximum", window) for window in windows]
    pushed: tuple[list[int], list[int]] = ([], [])
    for which, value in pushes:
        pushed[which].append(value)
        expected = max(pushed[which][-windows[which] :])
        streams[which].call("push", value).equals(expected)


@follow_up("StreamingMaximum")
@states(
    "follow-up: at most 4 comparisons and 40 lines per push, on average",
    "进阶：每次 push 平均至多 4 次比较、40 行代码",
)
@pytest.mark.parametrize("order", ORDERS)
def test_stream_work(solution: Solution, order: str) -> None:
    tally = Tally()
    stream = solution.new("StreamingMaximum", WINDOW)
    used = lines_used = 0
    for count, value in enumerate(counted(ORDERS[order], tally), 1):
        with solution.counting_lines() as lines:
            call = stream.call("push", value)
        lines_used += lines.count
        used, expected = tally.count, max(ORDERS[order][max(0, count - WINDOW) : count])
        if plain(call, call.value) != expected:
            call.fail(str(expected), note=f"push {count} of values that are {order}")
    what, allowed = "comparisons of values in all pushes", COMPARISONS_PER_VALUE * LENGTH
    solution.within(what, used, allowed, call)
    solution.within("executed lines in all pushes", lines_used, LINES_PER_VALUE * LENGTH, call)


@follow_up("StreamingMaximum")
@states("follow-up: memory does not grow with the stream", "进阶：内存占用不随数据流变长而增长")
@pytest.mark.parametrize("direction", [1, -1], ids=["ascending", "descending"])
def test_stream_memory(solution: Solution, direction: int) -> None:
    window, pushes = 4, 6000
    stream = solution.new("StreamingMaximum", window)
    with solution.peak_memory() as peak:
        for count in range(pushes):
            call = stream.call("push", direction * (2**40 + count))
    newest = 2**40 + pushes - 1
    call.equals(newest if direction > 0 else -(newest - window + 1))
    solution.within("bytes kept after 6,000 pushes", peak.bytes, 100_000, call)
