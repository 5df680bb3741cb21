"""Grades tiled_attention against the definition, one score at a time in Python floats. The size of
what is held at once is measured, and NaN stands where nothing may be read."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.practice.kit import Call, Solution, follow_up, paste, states

RTOL, ATOL = 1e-9, 1e-9
SMALL_NUMBERS = (0.0, 1.0, 2.0, -1.0, -2.0)  # simplest first: counterexamples shrink to zeros
Inputs = tuple[np.ndarray, np.ndarray, np.ndarray]


def attend(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, keys_of: Sequence[Sequence[int]]
) -> tuple[np.ndarray, np.ndarray]:
    """The oracle: query i sees the keys keys_of[i]."""
    out, lse = np.zeros((len(q), v.shape[1])), np.full(len(q), -math.inf)
    for i, keys in enumerate(keys_of):
        if not keys:
            continue
        scores = [
            math.fsum(float(a) * float(b) for a, b in zip(q[i], k[j], strict=True))
            / math.sqrt(q.shape[1])
            for j in keys
        ]
        shares = [math.exp(score - max(scores)) for score in scores]
        total = math.fsum(shares)
        lse[i] = max(scores) + math.log(total)
        for c in range(v.shape[1]):
            column = (s * float(v[j, c]) for s, j in zip(shares, keys, strict=True))
            out[i, c] = math.fsum(column) / total
    return out, lse


def visible(len_q: int, len_k: int, causal: bool) -> list[list[int]]:
    shift = len_k - len_q
    return [[j for j in range(len_k) if not causal or j <= i + shift] for i in range(len_q)]


def attend_to_visible(inputs: Inputs, causal: bool = False) -> tuple[np.ndarray, np.ndarray]:
    return attend(*inputs, visible(len(inputs[0]), len(inputs[1]), causal))


def matches(
    call: Call,
    expected: tuple[np.ndarray, np.ndarray],
    rows: slice = slice(None),
    note: str = "",
) -> None:
    """The result is (out, lse), and right in these rows."""
    got = call.of_type(tuple, "a tuple (out, lse)")
    if len(got) != 2:
        call.fail("a tuple (out, lse)", f"a tuple of {len(got)}")
    for name, array, wanted in zip(("out", "lse"), got, expected, strict=True):
        if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
            call.fail(f"{name} to be an array of floats", f"{name} {paste(array)}")
        if array.shape != wanted.shape:
            call.fail(f"{name} of shape {wanted.shape}", f"{name} of shape {array.shape}")
        if not np.allclose(array[rows], wanted[rows], rtol=RTOL, atol=ATOL):
            call.fail(f"{name} {paste(wanted[rows])}", f"{name} {paste(array[rows])}", note)
    call.leaves_arguments_alone()


@st.composite
def array(draw: st.DrawFn, *shape: int) -> np.ndarray:
    """Small whole numbers; drawn as bytes, for speed."""
    size = math.prod(shape)
    drawn = draw(st.binary(min_size=size, max_size=size))
    return np.array([SMALL_NUMBERS[byte % 5] for byte in drawn], np.float64).reshape(shape)


@st.composite
def small_inputs(draw: st.DrawFn) -> Inputs:
    len_q, len_k = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    head_dim, value_dim = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    shapes = ((len_q, head_dim), (len_k, head_dim), (len_k, value_dim))
    q, k, v = (draw(array(*shape)) for shape in shapes)
    return q, k, v


def random_inputs(
    seed: int, len_q: int, len_k: int, head_dim: int = 2, value_dim: int = 3
) -> Inputs:
    rng = np.random.default_rng(seed)
    shapes = ((len_q, head_dim), (len_k, head_dim), (len_k, value_dim))
    q, k, v = (rng.normal(scale=2.0, size=shape) for shape in shapes)
    return q, k, v


def column(*numbers: float) -> np.ndarray:
    return np.array(numbers)[:, None]


# ---- by hand ----


@states("one tile is plain attention", "只有一个 tile 时就是普通注意力")
def test_one_tile(solution: Solution) -> None:
    q, k, v = column(1.0, 0.0), column(0.0, math.log(3)), column(4.0, 0.0)
    expected = np.array([[1.0], [2.0]]), np.array([math.log(4), math.log(2)])
    matches(solution.call("tiled_attention", q, k, v, 2, 2), expected)


@states(
    "a later tile with a larger score rescales what was summed",
    "后面的 tile 出现更大的分数时，已累加的部分随之缩放",
)
def test_growing_maximum(solution: Solution) -> None:
    q, v = column(1.0), column(4.0, 0.0)
    for first, second, out, lse in (
        (0.0, math.log(3), 1.0, math.log(4)),
        (math.log(3), 0.0, 3.0, math.log(4)),
        (0.0, 900.0, 0.0, 900.0),
        (900.0, 0.0, 4.0, 900.0),
    ):
        call = solution.call("tiled_attention", q, column(first, second), v, 1, 1)
        matches(call, (np.array([[out]]), np.array([lse])))


@states("scores are scaled by sqrt(head_dim), also in lse", "分数除以 sqrt(head_dim)，lse 也一样")
@pytest.mark.parametrize("head_dim", [1, 2, 4])
def test_scale(solution: Solution, head_dim: int) -> None:
    q, v = np.ones((1, head_dim)), column(4.0, 0.0)
    k = np.stack([np.zeros(head_dim), np.full(head_dim, math.log(3) / math.sqrt(head_dim))])
    call = solution.call("tiled_attention", q, k, v, 1, 2)
    matches(call, (np.array([[1.0]]), np.array([math.log(4)])))


@states("tiles need not divide the lengths", "长度不必是 tile 的整数倍")
@pytest.mark.parametrize("causal", [False, True])
def test_ragged_tiles(solution: Solution, causal: bool) -> None:
    # All scores are 0: a query takes the mean of what it sees, and lse is the log of how many.
    q, k, v = np.zeros((5, 1)), np.zeros((5, 1)), column(10.0, 20.0, 30.0, 40.0, 50.0)
    if causal:
        means, counts = [10.0, 15.0, 20.0, 25.0, 30.0], [1, 2, 3, 4, 5]
    else:
        means, counts = [30.0] * 5, [5] * 5
    expected = column(*means), np.log(counts)
    for block_q, block_k in ((2, 2), (3, 2), (2, 3), (4, 4), (1, 5), (5, 1), (1, 1)):
        matches(solution.call("tiled_attention", q, k, v, block_q, block_k, causal), expected)


@states("a tile may be larger than the whole", "tile 可以比整个输入还大")
@pytest.mark.parametrize("blocks", [(100, 100), (100, 1), (1, 100), (3, 100)])
def test_large_tiles(solution: Solution, blocks: tuple[int, int]) -> None:
    inputs = random_inputs(1, 3, 4)
    for causal in (False, True):
        call = solution.call("tiled_attention", *inputs, *blocks, causal=causal)
        matches(call, attend_to_visible(inputs, causal))


@states(
    "the causal mask is aligned at the last query and the last key",
    "因果掩码按最后一个 query 与最后一个 key 对齐",
)
def test_causal_alignment(solution: Solution) -> None:
    v = column(10.0, 20.0, 30.0, 40.0)
    q, k = np.zeros((2, 1)), np.zeros((4, 1))
    expected = column(20.0, 25.0), np.log([3, 4])
    for blocks in ((2, 4), (1, 1), (2, 2), (1, 3)):
        matches(solution.call("tiled_attention", q, k, v, *blocks, causal=True), expected)


@states(
    "a query that sees nothing gets zeros, and -inf for lse",
    "什么都看不到的 query 得到 0，lse 为 -inf",
)
def test_nothing_to_see(solution: Solution) -> None:
    q, k, v = np.zeros((4, 1)), np.zeros((2, 1)), column(10.0, 20.0)
    expected = column(0.0, 0.0, 10.0, 15.0), np.array([-math.inf, -math.inf, 0.0, math.log(2)])
    for blocks in ((4, 2), (2, 2), (3, 1), (1, 1), (4, 1)):
        matches(solution.call("tiled_attention", q, k, v, *blocks, causal=True), expected)


@states("there may be no queries, or no keys", "可以没有 query，也可以没有 key")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("len_q", "len_k"), [(0, 3), (3, 0), (0, 0)])
def test_empty(solution: Solution, len_q: int, len_k: int, causal: bool) -> None:
    inputs = random_inputs(0, len_q, len_k)
    call = solution.call("tiled_attention", *inputs, 2, 2, causal)
    matches(call, attend_to_visible(inputs))


@states("large scores neither overflow nor vanish", "分数很大时不溢出、不消失")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [30.0, 1e3, 1e6])
def test_large_scores(solution: Solution, size: float, causal: bool) -> None:
    # Rows with small, large and very negative scores; the last key is far above the others.
    q, k = column(0.0, 1.0, size, -size), column(-size, 0.0, 1.0, size)
    inputs = q, k, column(1.0, 2.0, 3.0, 4.0)
    for blocks in ((4, 4), (2, 1), (1, 2), (4, 3)):
        call = solution.call("tiled_attention", *inputs, *blocks, causal=causal)
        matches(call, attend_to_visible(inputs, causal))


@states("an empty tile is refused", "tile 大小小于 1 时抛 ValueError")
@pytest.mark.parametrize("blocks", [(0, 1), (1, 0), (0, 0), (-1, 2), (2, -3)])
def test_blocks_refused(solution: Solution, blocks: tuple[int, int]) -> None:
    for len_q, len_k in ((3, 4), (0, 0)):
        call = solution.call("tiled_attention", *random_inputs(0, len_q, len_k), *blocks)
        call.raises(ValueError)


# ---- in general ----


@states("the result does not depend on the tiles", "结果与 tile 大小无关")
@given(
    inputs=small_inputs(),
    block_q=st.integers(1, 6),
    block_k=st.integers(1, 6),
    causal=st.booleans(),
)
def test_agrees_with_the_definition(
    solution: Solution, inputs: Inputs, block_q: int, block_k: int, causal: bool
) -> None:
    call = solution.call("tiled_attention", *inputs, block_q, block_k, causal=causal)
    matches(call, attend_to_visible(inputs, causal))


@states("longer inputs agree, too", "更长的输入也一致")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("len_q", "len_k", "block_q", "block_k"),
    [(16, 16, 4, 4), (17, 17, 4, 8), (13, 29, 5, 4), (29, 13, 4, 5), (1, 40, 8, 8), (40, 1, 8, 8)],
)
def test_longer_inputs(
    solution: Solution, len_q: int, len_k: int, block_q: int, block_k: int, causal: bool
) -> None:
    inputs = random_inputs(len_q + len_k, len_q, len_k, 4, 3)
    call = solution.call("tiled_attention", *inputs, block_q, block_k, causal)
    matches(call, attend_to_visible(inputs, causal))


@states(
    "memory holds some tiles, never a row of tiles or the whole score matrix",
    "内存中只有少数几个 tile，绝没有整行的 tile，更没有整个分数矩阵",
)
@pytest.mark.parametrize("causal", [False, True])
def test_memory(solution: Solution, causal: bool) -> None:
    length, block = 512, 32
    inputs = random_inputs(5, length, length, 1, 1)
    with solution.peak_memory() as peak:
        call = solution.call("tiled_attention", *inputs, block, block, causal)
    q, k, v = inputs
    scores = np.where(np.tri(length, dtype=bool) | (not causal), q @ k.T, -np.inf)
    maximum = scores.max(axis=1, keepdims=True)
    weights = np.exp(scores - maximum)
    total = weights.sum(axis=1, keepdims=True)
    matches(call, (weights @ v / total, (maximum + np.log(total))[:, 0]))
    copies = 3 * length * 8  # of the inputs, for the report
    allowed = 10 * block * block * 8 + 8 * length * 8  # one row of tiles has 16
    solution.within("bytes at once", max(0, peak.bytes - copies), allowed, call)


@states(
    "causal: tiles wholly beyond the diagonal are not read",
    "因果：完全位于对角线之外的 tile 不会被读取",
)
@pytest.mark.parametrize(
    ("len_q", "len_k", "block_q", "block_k"),
    [(4, 4, 2, 2), (6, 6, 1, 2), (6, 6, 2, 1), (9, 9, 3, 2), (4, 8, 2, 2), (8, 4, 2, 2)],
)
def test_hidden_tiles(
    solution: Solution, len_q: int, len_k: int, block_q: int, block_k: int
) -> None:
    inputs = random_inputs(3, len_q, len_k)
    expected = attend_to_visible(inputs, causal=True)
    for start in range(0, len_k, block_k):
        # NaN in this tile of keys and values reaches every query tile that touches it.
        q, k, v = (one.copy() for one in inputs)
        k[start : start + block_k] = v[start : start + block_k] = np.nan
        call = solution.call("tiled_attention", q, k, v, block_q, block_k, causal=True)
        first_that_sees = max(0, start - (len_k - len_q))
        untouched = slice(0, first_that_sees - first_that_sees % block_q)
        note = (
            f"no query of the tiles before row {untouched.stop} sees the keys from {start} on, "
            "which are NaN: only these rows are compared"
        )
        matches(call, expected, untouched, note)


# ---- the follow-up ----


@follow_up("combine")
@states("follow-up: parts weigh as much as their lse says", "进阶：各部分按 lse 加权")
def test_combine_by_hand(solution: Solution) -> None:
    low = np.array([[4.0, 0.0]]), np.array([0.0])
    high = np.array([[0.0, 8.0]]), np.array([math.log(3)])
    both = np.array([[1.0, 6.0]]), np.array([math.log(4)])
    matches(solution.call("combine", [low]), low)
    matches(solution.call("combine", [low, high]), both)
    matches(solution.call("combine", [high, low]), both)
    thirds = np.array([[4.0, 0.0]]), np.array([math.log(3)])
    matches(solution.call("combine", [low, low, low]), thirds)


@follow_up("combine")
@states("follow-up: parts that saw nothing do not count", "进阶：什么都没看到的部分不计入")
def test_combine_nothing(solution: Solution) -> None:
    nothing = np.zeros((2, 1)), np.full(2, -math.inf)
    some = np.array([[0.0], [5.0]]), np.array([-math.inf, -700.0])
    for parts in ([nothing, some], [some, nothing], [nothing, some, nothing]):
        matches(solution.call("combine", parts), some)
    matches(solution.call("combine", [nothing]), nothing)
    matches(solution.call("combine", [nothing, nothing]), nothing)


@follow_up("combine")
@states("follow-up: large lse do not overflow", "进阶：lse 很大时不溢出")
@pytest.mark.parametrize("level", [1e4, -1e4])
def test_combine_large(solution: Solution, level: float) -> None:
    low = np.array([[4.0], [4.0]]), np.array([level, level])
    high = np.array([[0.0], [0.0]]), np.array([level + math.log(3), level + 2000.0])
    expected = np.array([[1.0], [0.0]]), np.array([level + math.log(4), level + 2000.0])
    matches(solution.call("combine", [low, high]), expected)
    matches(solution.call("combine", [high, low]), expected)


@follow_up("combine")
@states("follow-up: any split of the keys gives the whole", "进阶：key 任意拆分后合并等于整体")
@given(inputs=small_inputs(), data=st.data())
def test_combine(solution: Solution, inputs: Inputs, data: st.DataObject) -> None:
    len_q, len_k = len(inputs[0]), len(inputs[1])
    owners = data.draw(st.lists(st.integers(0, 2), min_size=len_k, max_size=len_k), label="owners")
    causal = data.draw(st.booleans(), label="causal")
    seen = visible(len_q, len_k, causal)
    parts = [
        attend(*inputs, [[j for j in keys if owners[j] == owner] for keys in seen])
        for owner in range(3)
    ]
    matches(solution.call("combine", parts), attend(*inputs, seen))
