"""Grades online_softmax against sums over all scores at once, in Python floats."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.practice.kit import Call, Shown, Solution, follow_up, paste, shown, states

RTOL = 1e-9
CHUNK = 512  # scores in each chunk of a long stream
CHUNKS = 32
MOST_CHUNKS = 10  # that may be in memory at once

plain_scores = st.integers(-4, 4).map(float)
extreme_scores = st.sampled_from([-math.inf, 800.0, -800.0, 1e4, 1e308, -1e308])
scores = st.one_of(plain_scores, extreme_scores)
numbers_in = st.integers(-3, 3).map(float)


@st.composite
def pairs_in_chunks(
    draw: st.DrawFn, fewest: int = 1, most: int = 4
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Chunks of scores, and as many chunks of values of one width."""
    width = draw(st.integers(1, 3))
    sizes = draw(st.lists(st.integers(0, 3), min_size=fewest, max_size=most))
    score_chunks = [
        np.array(draw(st.lists(scores, min_size=n, max_size=n)), np.float64) for n in sizes
    ]
    value_chunks = [
        np.array(
            draw(st.lists(numbers_in, min_size=n * width, max_size=n * width)), np.float64
        ).reshape(n, width)
        for n in sizes
    ]
    return score_chunks, value_chunks


def stream(chunks: Sequence[np.ndarray]) -> Shown:
    """The chunks as an iterator, which can be read once."""
    return shown((chunk for chunk in chunks), f"iter({paste_chunks(chunks)})")


def paste_chunks(chunks: Sequence[np.ndarray]) -> str:
    return f"[{', '.join(map(paste, chunks))}]"


def arrays(*chunks: Sequence[float]) -> list[np.ndarray]:
    return [np.array(chunk, np.float64) for chunk in chunks]


def state_of(
    score_chunks: Iterable[np.ndarray], value_chunks: Sequence[np.ndarray]
) -> tuple[float, float, np.ndarray]:
    """The oracle: every score at once, one sum for each number, without rounding in between."""
    all_scores = [float(score) for chunk in score_chunks for score in chunk]
    rows = [row for chunk in value_chunks for row in chunk]
    width = value_chunks[0].shape[1] if value_chunks else 0
    maximum = max(all_scores, default=-math.inf)
    if maximum == -math.inf:
        return maximum, 0.0, np.zeros(width)
    weights = [math.exp(score - maximum) for score in all_scores]
    weighted = [
        math.fsum(weight * float(row[i]) for weight, row in zip(weights, rows, strict=True))
        for i in range(width)
    ]
    return maximum, math.fsum(weights), np.array(weighted)


def statistics_of(chunks: Iterable[np.ndarray]) -> tuple[float, float]:
    return state_of(chunks, [])[:2] if (chunks := list(chunks)) else (-math.inf, 0.0)


def statistics_match(call: Call, expected: tuple[float, float]) -> None:
    maximum, total = parts_of(call, 2, "(maximum, total)")
    is_number(call, "the maximum", maximum, expected[0], 0.0)
    is_number(call, "the total", total, expected[1], RTOL)


def state_matches(call: Call, expected: tuple[float, float, np.ndarray]) -> None:
    maximum, total, weighted = parts_of(call, 3, "(maximum, total, weighted)")
    is_number(call, "the maximum", maximum, expected[0], 0.0)
    is_number(call, "the total", total, expected[1], RTOL)
    is_array(call, "weighted", weighted, expected[2])


def parts_of(call: Call, count: int, names: str) -> tuple[Any, ...]:
    got = call.of_type(tuple, f"a tuple {names}")
    if len(got) != count:
        call.fail(f"a tuple {names}", f"a tuple of {len(got)}")
    return tuple(got)


def is_number(call: Call, name: str, got: object, expected: float, rtol: float) -> None:
    if isinstance(got, np.ndarray) and got.ndim == 0:
        got = got.item()
    if not isinstance(got, numbers.Real) or isinstance(got, bool):
        call.fail(f"{name} to be a number", f"{paste(got)}, a {type(got).__name__}")
    is_right = got == expected or (
        math.isfinite(expected) and abs(float(got) - expected) <= rtol * abs(expected)
    )
    if not is_right:
        call.fail(f"{name} {expected!r}", f"{name} {float(got)!r}")


def is_array(call: Call, name: str, got: object, expected: np.ndarray) -> None:
    if not isinstance(got, np.ndarray) or got.dtype.kind not in "fiu":
        call.fail(f"{name} to be an array of numbers", f"{paste(got)}, a {type(got).__name__}")
    if got.shape != expected.shape:
        call.fail(f"{name} of shape {expected.shape}", f"{name} of shape {got.shape}")
    # The values are at most 3, so that this is absolute in the values' own scale.
    if not np.allclose(got, expected, rtol=RTOL, atol=RTOL):
        call.fail(f"{name} {paste(expected)}", f"{name} {paste(got)}")


# ---- (maximum, total) ----


@states("one chunk gives its maximum and its total", "单个分块给出它的最大值与总和")
@pytest.mark.parametrize(
    ("chunk", "expected"),
    [
        ([0.0], (0.0, 1.0)),
        ([5.0], (5.0, 1.0)),
        ([2.0, 2.0, 2.0], (2.0, 3.0)),
        ([0.0, math.log(2)], (math.log(2), 1.5)),
        ([math.log(2), 0.0], (math.log(2), 1.5)),
        ([-3.0, -3.0 - math.log(4)], (-3.0, 1.25)),
    ],
)
def test_one_chunk(solution: Solution, chunk: list[float], expected: tuple[float, float]) -> None:
    call = solution.call("softmax_statistics", arrays(chunk))
    statistics_match(call.leaves_arguments_alone(), expected)


@states(
    "a maximum that grows from chunk to chunk rescales what was summed",
    "最大值逐块增大时，已累加的部分随之缩放",
)
def test_growing_maximum(solution: Solution) -> None:
    two, four = math.log(2), math.log(4)
    statistics_match(solution.call("softmax_statistics", arrays([0.0], [two])), (two, 1.5))
    statistics_match(solution.call("softmax_statistics", arrays([two], [0.0])), (two, 1.5))
    call = solution.call("softmax_statistics", arrays([0.0], [two], [four]))
    statistics_match(call, (four, 1.75))


@states(
    "without a finite score the statistics are (-inf, 0)", "没有有限的分数时，统计量为 (-inf, 0)"
)
@pytest.mark.parametrize(
    "chunks", [[], [[]], [[], []], [[-math.inf]], [[-math.inf], [], [-math.inf, -math.inf]]]
)
def test_no_finite_score(solution: Solution, chunks: list[list[float]]) -> None:
    statistics_match(solution.call("softmax_statistics", arrays(*chunks)), (-math.inf, 0.0))


@states("scores of -inf and empty chunks change nothing", "-inf 的分数与空分块不改变结果")
@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([[-math.inf], [3.0]], (3.0, 1.0)),
        ([[3.0], [-math.inf]], (3.0, 1.0)),
        ([[], [3.0], [], [3.0], []], (3.0, 2.0)),
        ([[-math.inf, -7.0], [-math.inf, -math.inf], [-7.0]], (-7.0, 2.0)),
    ],
)
def test_absent_scores(
    solution: Solution, chunks: list[list[float]], expected: tuple[float, float]
) -> None:
    statistics_match(solution.call("softmax_statistics", arrays(*chunks)), expected)


@states("scores up to 1e308 neither overflow nor vanish", "分数大到 1e308 也不溢出、不消失")
@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([[1e4, 1e4], [1e4]], (1e4, 3.0)),
        ([[-1e4], [-1e4]], (-1e4, 2.0)),
        ([[0.0], [1e308], [1e308]], (1e308, 2.0)),
        ([[1e308], [-1e308]], (1e308, 1.0)),
        ([[-1e308], [1e308]], (1e308, 1.0)),
        ([[-1e308, 1e308]], (1e308, 1.0)),
        ([[-1e308], [-1e308, -math.inf]], (-1e308, 2.0)),
    ],
)
def test_large_scores(
    solution: Solution, chunks: list[list[float]], expected: tuple[float, float]
) -> None:
    statistics_match(solution.call("softmax_statistics", arrays(*chunks)), expected)


@states("the statistics agree with all scores at once", "统计量与一次处理全部分数的结果一致")
@given(chunks=st.lists(st.lists(scores, max_size=4), max_size=5))
def test_statistics(solution: Solution, chunks: list[list[float]]) -> None:
    made = arrays(*chunks)
    call = solution.call("softmax_statistics", stream(made))
    statistics_match(call, statistics_of(made))


@states("the statistics hold some chunks in memory, not all", "求统计量时内存中只有少数几个分块")
def test_statistics_memory(solution: Solution) -> None:
    with solution.peak_memory() as peak:
        call = solution.call("softmax_statistics", long_stream())
    statistics_match(call, statistics_of(long_chunks()))
    solution.within("bytes at once", peak.bytes, MOST_CHUNKS * CHUNK * 8, call)


def long_chunks() -> Iterator[np.ndarray]:
    for index in range(CHUNKS):
        yield np.random.default_rng(index).normal(scale=3.0, size=CHUNK) + index % 5


def long_values() -> Iterator[np.ndarray]:
    for index in range(CHUNKS):
        yield np.random.default_rng(1000 + index).uniform(-3.0, 3.0, size=(CHUNK, 2))


def long_stream() -> Shown:
    text = f"(default_rng(i).normal(scale=3.0, size={CHUNK}) + i % 5 for i in range({CHUNKS}))"
    return shown(long_chunks(), text)


# ---- merging ----


@states("two states merge under the larger maximum", "两个状态在较大的最大值下合并")
def test_merge_by_hand(solution: Solution) -> None:
    low = (0.0, 1.0, np.array([1.0, 0.0]))
    high = (math.log(2), 3.0, np.array([0.0, 2.0]))
    expected = (math.log(2), 3.5, np.array([0.5, 2.0]))
    state_matches(solution.call("merge", low, high).leaves_arguments_alone(), expected)
    state_matches(solution.call("merge", high, low).leaves_arguments_alone(), expected)


@states("the state of no score changes nothing", "空状态与任何状态合并都不改变它")
def test_merge_of_nothing(solution: Solution) -> None:
    nothing = (-math.inf, 0.0, np.zeros(2))
    something = (-1e4, 2.0, np.array([3.0, -1.0]))
    for left, right, expected in (
        (nothing, something, something),
        (something, nothing, something),
        (nothing, nothing, nothing),
    ):
        call = solution.call("merge", left, right).leaves_arguments_alone()
        state_matches(call, expected)


@states("merged states are the state of all scores together", "合并后的状态等于全部分数的状态")
@given(left=pairs_in_chunks(most=2), right=pairs_in_chunks(most=2))
def test_merge(
    solution: Solution,
    left: tuple[list[np.ndarray], list[np.ndarray]],
    right: tuple[list[np.ndarray], list[np.ndarray]],
) -> None:
    width = min(left[1][0].shape[1], right[1][0].shape[1])
    left_values = [values[:, :width] for values in left[1]]
    right_values = [values[:, :width] for values in right[1]]
    call = solution.call("merge", state_of(left[0], left_values), state_of(right[0], right_values))
    state_matches(
        call.leaves_arguments_alone(), state_of(left[0] + right[0], left_values + right_values)
    )


@states("merging is associative and commutative", "合并满足结合律与交换律")
@given(pairs=pairs_in_chunks(fewest=3, most=3))
def test_merge_in_any_order(
    solution: Solution, pairs: tuple[list[np.ndarray], list[np.ndarray]]
) -> None:
    a, b, c = (state_of([s], [v]) for s, v in zip(*pairs, strict=True))
    whole = state_of(*pairs)
    for first, second, third in ((a, b, c), (b, c, a), (c, a, b)):
        inner = solution.call("merge", first, second)
        state_of_inner = parts_of(inner, 3, "(maximum, total, weighted)")
        state_matches(solution.call("merge", state_of_inner, third), whole)
        state_matches(solution.call("merge", third, state_of_inner), whole)


# ---- softmax(scores) @ values ----


@states("equal scores give the mean of the values", "分数相等时结果是各值的平均")
def test_mean(solution: Solution) -> None:
    values = [np.array([[1.0, 2.0]]), np.array([[3.0, 4.0], [8.0, 0.0]])]
    for level in (0.0, 5.0, -1e4, 1e308):
        call = solution.call("online_weighted_sum", arrays([level], [level, level]), values)
        is_array(call.leaves_arguments_alone(), "the result", call.value, np.array([4.0, 2.0]))


@states(
    "a larger score in a later chunk rescales the sum so far",
    "后面的分块出现更大的分数时，已有的加权和随之缩放",
)
def test_late_maximum(solution: Solution) -> None:
    values = [np.array([[4.0]]), np.array([[1.0]])]
    for first, second, expected in (
        (0.0, math.log(2), 2.0),
        (math.log(2), 0.0, 3.0),
        (0.0, 1e4, 1.0),
        (1e308, -1e308, 4.0),
    ):
        call = solution.call("online_weighted_sum", arrays([first], [second]), values)
        is_array(call, "the result", call.value, np.array([expected]))


@states("without a finite score the sum is zeros", "没有有限的分数时，加权和为零向量")
@pytest.mark.parametrize("chunks", [[[]], [[-math.inf]], [[-math.inf, -math.inf], [], [-math.inf]]])
def test_sum_without_scores(solution: Solution, chunks: list[list[float]]) -> None:
    values = [np.full((len(chunk), 2), 7.0) for chunk in chunks]
    call = solution.call("online_weighted_sum", arrays(*chunks), values)
    is_array(call, "the result", call.value, np.zeros(2))


@states(
    "the sum agrees with softmax over all scores, whatever the chunks",
    "无论怎样分块，加权和都与对全部分数做 softmax 一致",
)
@given(pairs=pairs_in_chunks())
def test_weighted_sum(solution: Solution, pairs: tuple[list[np.ndarray], list[np.ndarray]]) -> None:
    _, total, weighted = state_of(*pairs)
    expected = weighted / total if total else weighted
    call = solution.call("online_weighted_sum", stream(pairs[0]), stream(pairs[1]))
    is_array(call, "the result", call.value, expected)


@states("inputs are not changed", "不修改输入")
@given(pairs=pairs_in_chunks())
def test_inputs_unchanged(
    solution: Solution, pairs: tuple[list[np.ndarray], list[np.ndarray]]
) -> None:
    solution.call("softmax_statistics", pairs[0]).leaves_arguments_alone()
    solution.call("online_weighted_sum", *pairs).leaves_arguments_alone()


@states("the weighted sum holds some chunks in memory, not all", "求加权和时内存中只有少数几个分块")
def test_weighted_sum_memory(solution: Solution) -> None:
    text = f"(default_rng(1000 + i).uniform(-3.0, 3.0, ({CHUNK}, 2)) for i in range({CHUNKS}))"
    with solution.peak_memory() as peak:
        call = solution.call("online_weighted_sum", long_stream(), shown(long_values(), text))
    weights = np.concatenate(list(long_chunks())).astype(np.longdouble)
    weights = np.exp(weights - weights.max())
    expected = (weights @ np.concatenate(list(long_values())) / weights.sum()).astype(np.float64)
    is_array(call, "the result", call.value, expected)
    solution.within("bytes at once", peak.bytes, MOST_CHUNKS * 2 * CHUNK * 8, call)


# ---- the follow-up ----


class Passes:
    """Scores that can be read from their start again; counts how often they are."""

    def __init__(self, chunks: Sequence[np.ndarray]) -> None:
        self.count = 0
        self._chunks = chunks

    def __call__(self) -> Iterator[np.ndarray]:
        self.count += 1
        yield from self._chunks

    def __deepcopy__(self, memo: object) -> Passes:
        return self


class Sink:
    def __init__(self) -> None:
        self.chunks: list[Any] = []

    def __call__(self, chunk: object) -> None:
        self.chunks.append(chunk.copy() if isinstance(chunk, np.ndarray) else chunk)

    def __deepcopy__(self, memo: object) -> Sink:
        return self


def run_stream(solution: Solution, chunks: Sequence[np.ndarray]) -> tuple[Call, Passes, Sink]:
    passes, sink = Passes(chunks), Sink()
    read = shown(passes, f"lambda: iter({paste_chunks(chunks)})")
    call = solution.call("stream_softmax", read, shown(sink, "print"))
    return call, passes, sink


def weights_match(call: Call, sink: Sink, chunks: Sequence[np.ndarray]) -> None:
    if call.value is not None:
        call.fail("None: the weights go to write_chunk")
    if len(sink.chunks) != len(chunks):
        call.fail(f"{len(chunks)} chunks written", f"{len(sink.chunks)} chunks written")
    maximum, total = statistics_of(chunks)
    for index, (got, chunk) in enumerate(zip(sink.chunks, chunks, strict=True)):
        wanted = [math.exp(float(s) - maximum) / total if total else 0.0 for s in chunk]
        is_array(call, f"written chunk {index}", got, np.array(wanted))


@follow_up("stream_softmax")
@states("follow-up: every chunk's weights are written, in order", "进阶：按顺序写出每个分块的权重")
@pytest.mark.parametrize(
    "chunks",
    [[], [[]], [[-math.inf]], [[0.0]], [[0.0], [math.log(3)]], [[1e308], [], [-1e308, 1e308]]],
)
def test_stream_by_hand(solution: Solution, chunks: list[list[float]]) -> None:
    made = arrays(*chunks)
    call, _, sink = run_stream(solution, made)
    weights_match(call, sink, made)


@follow_up("stream_softmax")
@states(
    "follow-up: two passes are enough, and leave the scores alone",
    "进阶：最多读两遍，且不修改分数",
)
@given(chunks=st.lists(st.lists(scores, max_size=3), max_size=4))
def test_stream(solution: Solution, chunks: list[list[float]]) -> None:
    made = arrays(*chunks)
    call, passes, sink = run_stream(solution, made)
    weights_match(call, sink, arrays(*chunks))
    solution.within("passes", passes.count, 2, call)
    if not all(np.array_equal(a, b) for a, b in zip(made, arrays(*chunks), strict=True)):
        call.fail("the chunks that were read to stay as they were", "a chunk was changed")


@follow_up("stream_softmax")
@states("follow-up: it holds some chunks in memory, not all", "进阶：内存中只有少数几个分块")
def test_stream_memory(solution: Solution) -> None:
    written = [0.0, 0.0]  # chunks, and the sum of all weights

    def write(chunk: object) -> None:
        written[0] += 1
        written[1] += float(chunk.sum()) if isinstance(chunk, np.ndarray) else math.nan

    read = shown(long_chunks, f"lambda: {long_stream().text}")
    with solution.peak_memory() as peak:
        call = solution.call("stream_softmax", read, shown(write, "print"))
    _ = call.value
    if written[0] != CHUNKS or not abs(written[1] - 1.0) < RTOL:
        call.fail(
            f"{CHUNKS} chunks written, whose weights sum to 1",
            f"{written[0]:.0f} chunks written, whose weights sum to {written[1]!r}",
        )
    solution.within("bytes at once", peak.bytes, MOST_CHUNKS * CHUNK * 8, call)
