"""Grades int8_quantization against the definition, worked group by group in float64 with plain
Python numbers, and products against sums of Python integers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.practice.kit import Call, Solution, follow_up, states

SLACK = 1e-3  # of a step: float32 may decide what lies so near to a half
SCALE_RTOL = 1e-6
Quantized = tuple[np.ndarray, np.ndarray, np.ndarray]  # q, scale, zero_point
Group = tuple[tuple[int, int], list[tuple[int, int]]]  # place of its scale, places of its elements


def groups_of(
    shape: tuple[int, int], granularity: str, group_size: int
) -> tuple[tuple[int, int], list[Group]]:
    """The shape of the scales, and for each scale the elements that share it."""
    rows, columns = shape
    if granularity == "tensor":
        return (1, 1), [((0, 0), [(r, c) for r in range(rows) for c in range(columns)])]
    width = columns if granularity == "channel" else group_size
    starts = range(0, columns, width)
    return (rows, len(starts)), [
        ((r, index), [(r, c) for c in range(start, start + width)])
        for r in range(rows)
        for index, start in enumerate(starts)
    ]


def exact_scale_and_offset(values: list[float], symmetric: bool) -> tuple[float, float]:
    """The scale, and the zero point before it is rounded."""
    if symmetric:
        return max(map(abs, values)) / 127 or 1.0, 0.0
    low, high = min(0.0, *values), max(0.0, *values)
    scale = (high - low) / 255 or 1.0
    return scale, -128 - low / scale


def array_of(call: Call, name: str, value: object, dtype: type, shape: tuple[int, ...]) -> None:
    wanted = f"{name} as a {np.dtype(dtype)} array of shape {shape}"
    if not isinstance(value, np.ndarray):
        call.fail(wanted, f"{name} is a {type(value).__name__}")
    if value.dtype != dtype or value.shape != shape:
        call.fail(wanted, f"{name} has dtype {value.dtype} and shape {value.shape}")


def parts_of(call: Call, shape: tuple[int, int], scales: tuple[int, int]) -> Quantized:
    """What quantize returned, if it is of the types and shapes that were asked for."""
    result = call.of_type(tuple, "a tuple (q, scale, zero_point)")
    if len(result) != 3:
        call.fail("a tuple (q, scale, zero_point)", f"a tuple of {len(result)}")
    array_of(call, "q", result[0], np.int8, shape)
    array_of(call, "scale", result[1], np.float32, scales)
    array_of(call, "zero_point", result[2], np.int8, scales)
    return result


def check_quantized(
    solution: Solution, x: np.ndarray, granularity: str, symmetric: bool, group_size: int = 0
) -> Quantized:
    """Calls quantize and checks all that is said of its result."""
    sizes = (group_size,) if granularity == "group" else ()
    call = solution.call("quantize", x, granularity, symmetric, *sizes)
    scales, groups = groups_of(x.shape, granularity, group_size)
    result = parts_of(call, x.shape, scales)
    for place, members in groups:
        check_group(call, x, result, place, members, symmetric)
    call.leaves_arguments_alone()
    return result


def check_group(
    call: Call,
    x: np.ndarray,
    result: Quantized,
    place: tuple[int, int],
    members: list[tuple[int, int]],
    symmetric: bool,
) -> None:
    q, scale, zero_point = result
    exact_scale, offset = exact_scale_and_offset([float(x[at]) for at in members], symmetric)
    got_scale, got_zero = float(scale[place]), int(zero_point[place])
    if not abs(got_scale - exact_scale) <= SCALE_RTOL * exact_scale:
        call.fail(f"scale{list(place)} = {exact_scale:.9g}", f"{got_scale:.9g}")
    if not abs(got_zero - offset) <= (0 if symmetric else 0.5 + SLACK):
        call.fail(f"zero_point{list(place)} = {round(offset)}", f"{got_zero}")
    lowest = -127 if symmetric else -128
    for at in members:
        code, exact = int(q[at]), float(x[at]) / exact_scale
        if not abs(code - got_zero - exact) <= 0.5 + SLACK:
            wanted = min(127, max(lowest, round(exact) + got_zero))
            call.fail(f"q{list(at)} = {wanted}", f"{code}", f"x / scale is {exact:.6g}")
        if code < lowest:
            call.fail("symmetric codes in [-127, 127]", f"q{list(at)} = {code}")


def check_floats(call: Call, expected: np.ndarray, rtol: float = 1e-6) -> np.ndarray:
    got = call.value
    array_of(call, "the result", got, np.float32, expected.shape)
    call.close_to(expected, rtol=rtol)
    call.leaves_arguments_alone()
    return np.asarray(got, np.float64)


GRANULARITIES = st.sampled_from(["tensor", "channel", "group"])
LARGEST = {np.float16: (1.0, 1 / 64, 8000.0), np.float32: (1.0, 1e-20, 1e20)}
LARGEST[np.float64] = LARGEST[np.float32]
# What a row's elements are taken from, in quarters: of one sign, constant, zero and mixed.
POOLS = (
    (0, 1, -1, *range(-30, 31)),
    tuple(range(1, 31)),
    tuple(range(-1, -31, -1)),
    (0,),
    (13,),
    (-7,),
)


def picks(pool: Sequence[int], count: int) -> st.SearchStrategy[list[int]]:
    """`count` values of the pool. One draw of bytes: much faster than a list of draws."""
    return st.binary(min_size=count, max_size=count).map(
        lambda drawn: [pool[byte % len(pool)] for byte in drawn]
    )


@st.composite
def grouped_matrices(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """Small matrices with rows of unlike kind and size, and a group size that fits."""
    group_size, count = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    dtype = draw(st.sampled_from([np.float32, np.float64, np.float16]))
    table = []
    for _ in range(draw(st.integers(1, 3))):
        pool, factor = draw(st.sampled_from(POOLS)), draw(st.sampled_from(LARGEST[dtype]))
        table.append([v / 4 * factor for v in draw(picks(pool, group_size * count))])
    x = np.array(table, dtype=dtype)
    return (np.asfortranarray(x) if draw(st.booleans()) else x), group_size


def f32(*rows: list[float]) -> np.ndarray:
    return np.array(rows, np.float32)


@states("symmetric: the largest absolute value becomes 127", "对称：绝对值最大的元素编码为 ±127")
def test_symmetric_by_hand(solution: Solution) -> None:
    check_quantized(solution, f32([-254.0, 2.0, 100.0]), "tensor", True)
    check_quantized(solution, f32([0.3, -0.1, 0.2]), "tensor", True)


@states(
    "asymmetric: the range, widened to hold 0, becomes -128 to 127",
    "非对称：扩展到包含 0 的范围映射到 -128 到 127",
)
@pytest.mark.parametrize(
    "row",
    [[-55.0, 200.0], [-1.0, 2.0, 0.0], [0.1, 0.2], [-0.2, -0.7], [-0.31, 0.18, 0.98], [-9.0, 2.0]],
)
def test_asymmetric_by_hand(solution: Solution, row: list[float]) -> None:
    check_quantized(solution, f32(row), "tensor", False)


@states("a range that does not reach 0 is widened to it", "不含 0 的范围要扩展到 0")
@pytest.mark.parametrize("row", [[5.0, 6.0], [-6.0, -5.0], [100.0, 101.0], [3.0], [-3.0]])
def test_ranges_beside_zero(solution: Solution, row: list[float]) -> None:
    check_quantized(solution, f32(row), "tensor", False)
    check_quantized(solution, f32(row), "tensor", True)


@states("halves go to the even number", "恰好为一半时取偶数")
def test_halves_to_even(solution: Solution) -> None:
    x = f32([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5])
    call = solution.call("quantize", x, "tensor", True)
    codes = parts_of(call, x.shape, (1, 1))[0].tolist()
    expected = [[127, 0, 2, 2, 0, -2, -2]]
    if codes != expected:
        call.fail(f"q = {expected}", f"q = {codes}")


@states("a code that would be 128 is clipped, not wrapped", "本该是 128 的编码被截断，而不是回绕")
@pytest.mark.parametrize("low", [0.5, 2.5, 101.5, 103.5])
def test_clips_at_127(solution: Solution, low: float) -> None:
    check_quantized(solution, f32([-low, 255 - low]), "tensor", False)
    check_quantized(solution, f32([-low * 4, (255 - low) * 4]), "channel", False)


@states("nothing but zeros has scale 1 and stays zero", "全 0 的组 scale 为 1，反量化后仍为 0")
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("granularity", ["tensor", "channel", "group"])
def test_zeros(solution: Solution, symmetric: bool, granularity: str) -> None:
    x = np.zeros((2, 4), np.float32)
    q, scale, zero_point = check_quantized(solution, x, granularity, symmetric, 2)
    check_floats(solution.call("dequantize", q, scale, zero_point), np.zeros((2, 4)))
    # One group of zeros beside others.
    check_quantized(
        solution, f32([0.0, 0.0, 1.0, -2.0], [3.0, 4.0, 0.0, 0.0]), "group", symmetric, 2
    )


@states("per channel, each row has its own scale", "per channel：每行一个 scale")
@pytest.mark.parametrize("symmetric", [True, False])
def test_channels(solution: Solution, symmetric: bool) -> None:
    x = f32([1.0, -2.0, 0.5], [100.0, 50.0, 25.0])
    check_quantized(solution, x, "channel", symmetric)
    check_quantized(solution, x, "tensor", symmetric)
    # As many rows as columns: a mix-up of the axes has the right shape.
    check_quantized(solution, f32([1.0, 10.0], [100.0, 1000.0]), "channel", symmetric)


@states(
    "per group, consecutive elements of a row share a scale",
    "per group：同一行中连续的元素共用一个 scale",
)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group_size", [1, 2, 4])
def test_groups(solution: Solution, symmetric: bool, group_size: int) -> None:
    x = f32([1.0, -2.0, 30.0, 40.0], [500.0, 600.0, -7000.0, 8000.0])
    check_quantized(solution, x, "group", symmetric, group_size)


@states(
    "float16 input is worked on in float32 or better", "float16 输入要用 float32 或更高精度计算"
)
@pytest.mark.parametrize("symmetric", [True, False])
def test_float16(solution: Solution, symmetric: bool) -> None:
    x = np.array([[-60000.0, 60000.0, 1.0]], np.float16)
    check_quantized(solution, x, "tensor", symmetric)
    check_quantized(solution, np.array([[0.1, -0.3, 0.7]], np.float16), "tensor", symmetric)


@states("tiny and huge numbers keep their relative precision", "极小和极大的数保持相对精度")
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("factor", [1e-30, 1e-6, 1e30])
def test_tiny_and_huge(solution: Solution, symmetric: bool, factor: float) -> None:
    x = np.array([[1.0, -0.5, 0.25]]) * factor
    check_quantized(solution, x.astype(np.float32), "tensor", symmetric)


@states(
    "codes, scales and zero points agree with the definition", "编码、scale、zero point 与定义一致"
)
@given(grouped=grouped_matrices(), granularity=GRANULARITIES, symmetric=st.booleans())
def test_definition(
    solution: Solution, grouped: tuple[np.ndarray, int], granularity: str, symmetric: bool
) -> None:
    check_quantized(solution, grouped[0], granularity, symmetric, grouped[1])


@states(
    "no element is off by more than half a step, and 0 comes back as 0",
    "任何元素的误差不超过半个步长，0 还原后仍是 0",
)
@given(grouped=grouped_matrices(), granularity=GRANULARITIES, symmetric=st.booleans())
def test_round_trip(
    solution: Solution, grouped: tuple[np.ndarray, int], granularity: str, symmetric: bool
) -> None:
    x, group_size = grouped
    q, scale, zero_point = check_quantized(solution, x, granularity, symmetric, group_size)
    call = solution.call("dequantize", q, scale, zero_point)
    array_of(call, "the result", call.value, np.float32, x.shape)
    for place, members in groups_of(x.shape, granularity, group_size)[1]:
        half = float(scale[place]) * (0.5 + SLACK)
        for at in members:
            value, got = float(x[at]), float(call.value[at])
            if not abs(value - got) <= half or (value == 0 and got != 0):
                call.fail(f"{value:.6g} to within {half:.6g} at {list(at)}", f"{got:.6g}")


@states(
    "symmetric: quantizing what was dequantized gives the same codes",
    "对称：对反量化结果再次量化，编码不变",
)
@given(grouped=grouped_matrices(), granularity=GRANULARITIES)
def test_idempotent(solution: Solution, grouped: tuple[np.ndarray, int], granularity: str) -> None:
    x, group_size = grouped
    q, scale, zero_point = check_quantized(solution, x, granularity, True, group_size)
    call = solution.call("dequantize", q, scale, zero_point)
    array_of(call, "the result", call.value, np.float32, x.shape)
    again = solution.call("quantize", call.value, granularity, True, group_size)
    codes = parts_of(again, x.shape, scale.shape)[0]
    if not np.array_equal(codes, q):
        again.fail(f"q = {q.tolist()}", f"q = {codes.tolist()}")


EXTREMES_FIRST = (0, 1, -1, 127, -128, *range(-128, 128))
SCALES = (1.0, 0.5, 0.1, 3.0, 1e-10, 1e10)


def int8_matrix(rows: int, columns: int) -> st.SearchStrategy[np.ndarray]:
    flat = picks(EXTREMES_FIRST, rows * columns)
    return flat.map(lambda values: np.array(values, np.int8).reshape(rows, columns))


def scale_matrix(rows: int, columns: int) -> st.SearchStrategy[np.ndarray]:
    flat = picks(range(len(SCALES)), rows * columns)
    return flat.map(
        lambda places: np.array([SCALES[i] for i in places], np.float32).reshape(rows, columns)
    )


@st.composite
def quantized(draw: st.DrawFn) -> Quantized:
    rows, count, width = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    shape = draw(st.sampled_from([(1, 1), (rows, 1), (rows, count)]))
    return (
        draw(int8_matrix(rows, count * width)),
        draw(scale_matrix(*shape)),
        draw(int8_matrix(*shape)),
    )


@states(
    "the difference of code and zero point does not overflow int8",
    "编码与 zero point 之差不在 int8 中溢出",
)
def test_dequantize_by_hand(solution: Solution) -> None:
    q = np.array([[127, -128, 0, 5]], np.int8)
    for zero in (-128, 127, 3):
        expected = (q.astype(np.float64) - zero) * 0.5
        call = solution.call("dequantize", q, f32([0.5]), np.array([[zero]], np.int8))
        check_floats(call, expected)


@states(
    "each scale is used for its own elements, in all three shapes",
    "三种形状下，每个 scale 只作用于自己的元素",
)
@given(parts=quantized())
def test_dequantize(solution: Solution, parts: Quantized) -> None:
    q, scale, zero_point = parts
    down, across = q.shape[0] // scale.shape[0], q.shape[1] // scale.shape[1]
    expected = np.empty(q.shape)
    for r, c in np.ndindex(*q.shape):
        at = (r // down, c // across)
        expected[r, c] = (int(q[r, c]) - int(zero_point[at])) * float(scale[at])
    check_floats(solution.call("dequantize", q, scale, zero_point), expected)


@states("another granularity raises ValueError", "未知的 granularity 抛出 ValueError")
@pytest.mark.parametrize("granularity", ["row", "", "TENSOR", "groups"])
def test_refuses_granularity(solution: Solution, granularity: str) -> None:
    solution.call("quantize", f32([1.0, 2.0]), granularity, True, 2).raises(ValueError)


@states(
    "a group size that does not divide the columns raises ValueError",
    "group_size 不能整除列数时抛出 ValueError",
)
@pytest.mark.parametrize("group_size", [0, -1, -2, 4, 5, 12])
def test_refuses_group_size(solution: Solution, group_size: int) -> None:
    # Two rows of six: 4 and 12 divide the number of all elements, and still not the columns.
    x = np.ones((2, 6), np.float32)
    solution.call("quantize", x, "group", True, group_size).raises(ValueError)
    solution.call("quantize", x, "group", False, group_size).raises(ValueError)


@states(
    "groups without a group size raise ValueError", "per group 却没给 group_size 时抛出 ValueError"
)
def test_refuses_no_group_size(solution: Solution) -> None:
    solution.call("quantize", f32([1.0, 2.0]), "group", True).raises(ValueError)


@states("NaN and infinity raise ValueError", "NaN 和无穷大抛出 ValueError")
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("symmetric", [True, False])
def test_refuses_non_finite(solution: Solution, bad: float, symmetric: bool) -> None:
    for granularity in ("tensor", "channel", "group"):
        x = f32([1.0, 2.0], [3.0, bad])
        solution.call("quantize", x, granularity, symmetric, 2).raises(ValueError)


@states("no Python loop over elements", "没有逐元素的 Python 循环")
@pytest.mark.parametrize("symmetric", [True, False])
def test_work(solution: Solution, symmetric: bool) -> None:
    x = (np.arange(8 * 1024, dtype=np.float32).reshape(8, 1024) * 37 % 101 - 50) / 7
    for granularity, scales in (("tensor", 1), ("channel", 8), ("group", 64)):
        with solution.counting_lines() as lines:
            call = solution.call("quantize", x, granularity, symmetric, 128)
        result = parts_of(call, x.shape, groups_of(x.shape, granularity, 128)[0])
        solution.within("executed lines", lines.count, 30 * scales + 300, call)
        with solution.counting_lines() as lines:
            call = solution.call("dequantize", *result)
        array_of(call, "the result", call.value, np.float32, x.shape)
        solution.within("executed lines", lines.count, 30 * scales + 300, call)


# ---- follow-up: products ----


def exact_product(*operands: np.ndarray) -> np.ndarray:
    """Sums of Python integers, scaled in float64."""
    a, a_scale, a_zero, b, b_scale, b_zero = operands
    left = [[int(v) - int(zero) for v in row] for row, (zero,) in zip(a, a_zero, strict=True)]
    right = [
        [int(v) - int(zero) for v in column] for column, zero in zip(b.T, b_zero[0], strict=True)
    ]
    sums = [[sum(map(int.__mul__, row, column)) for column in right] for row in left]
    return np.array(sums, np.float64) * a_scale.astype(np.float64) * b_scale.astype(np.float64)


def check_product(solution: Solution, *operands: np.ndarray) -> Call:
    call = solution.call("int8_matmul", *operands)
    check_floats(call, exact_product(*operands))
    return call


def constant(value: int, *shape: int) -> np.ndarray:
    return np.full(shape, value, np.int8)


@st.composite
def products(draw: st.DrawFn) -> tuple[np.ndarray, ...]:
    m, k, n = draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(st.integers(1, 3))
    return (
        draw(int8_matrix(m, k)),
        draw(scale_matrix(m, 1)),
        draw(int8_matrix(m, 1)),
        draw(int8_matrix(k, n)),
        draw(scale_matrix(1, n)),
        draw(int8_matrix(1, n)),
    )


EXTREMES = [  # a, its zero point, b, its zero point
    (127, 0, 127, 0),  # one product passes int8
    (-128, 0, -128, 0),
    (127, -128, 127, -128),  # a difference passes int8
    (-128, 127, 127, -128),
]


@follow_up("int8_matmul")
@states("follow-up: neither products nor sums overflow", "进阶：乘积与累加都不溢出")
@pytest.mark.parametrize("depth", [1, 2, 3, 700, 33_000])
@pytest.mark.parametrize(("a", "a_zero", "b", "b_zero"), EXTREMES)
def test_product_of_extremes(
    solution: Solution, depth: int, a: int, a_zero: int, b: int, b_zero: int
) -> None:
    one = f32([1.0])
    check_product(
        solution,
        constant(a, 1, depth),
        one,
        constant(a_zero, 1, 1),
        constant(b, depth, 1),
        one.copy(),
        constant(b_zero, 1, 1),
    )


@follow_up("int8_matmul")
@states(
    "follow-up: rows of a and columns of b have scales and zero points of their own",
    "进阶：a 的每行、b 的每列各有自己的 scale 和 zero point",
)
def test_product_by_hand(solution: Solution) -> None:
    check_product(
        solution,
        np.array([[1, 2, 3], [4, 5, 6]], np.int8),
        f32([1.0], [10.0]),
        np.array([[1], [-2]], np.int8),
        np.array([[1, 0], [0, 1], [1, 1]], np.int8),
        f32([0.5, 2.0]),
        np.array([[3, -1]], np.int8),
    )


@follow_up("int8_matmul")
@states("follow-up: the sum is exact where large terms cancel", "进阶：大数相消时，整数和仍然精确")
def test_product_that_cancels(solution: Solution) -> None:
    # 2000 terms of 255 * 127 pass 2**24 by far: a float32 sum has lost the odd rest by then.
    # Sixteen rows and columns, so that a BLAS adds the terms of one element one after another.
    size, half = 16, 2000
    a = constant(127, size, 2 * half + 1)
    a[:, half] = np.arange(size) * 2 + 1 - 128
    b = constant(127, 2 * half + 1, size)
    b[half], b[half + 1 :] = 1, -127
    ones = np.ones((size, 1), np.float32)
    check_product(
        solution, a, ones, constant(-128, size, 1), b, ones.T.copy(), constant(0, 1, size)
    )


@follow_up("int8_matmul")
@states(
    "follow-up: products agree with sums of Python integers", "进阶：乘积与 Python 整数求和一致"
)
@given(operands=products())
def test_product(solution: Solution, operands: tuple[np.ndarray, ...]) -> None:
    check_product(solution, *operands)


@follow_up("int8_matmul")
@states(
    "follow-up: no loop over the depth, and no (M, K, N) intermediate",
    "进阶：没有沿 K 的循环，也没有 (M, K, N) 的中间结果",
)
def test_product_budgets(solution: Solution) -> None:
    m, k, n = 32, 1024, 32
    operands = (
        (np.arange(m * k) * 7 % 251 - 125).astype(np.int8).reshape(m, k),
        np.full((m, 1), 0.5, np.float32),
        (np.arange(m) - 16).astype(np.int8).reshape(m, 1),
        (np.arange(k * n) * 11 % 241 - 120).astype(np.int8).reshape(k, n),
        np.full((1, n), 0.25, np.float32),
        (np.arange(n) - 3).astype(np.int8).reshape(1, n),
    )
    with solution.counting_lines() as lines:
        call = check_product(solution, *operands)
    solution.within("executed lines", lines.count, 10 * m * n + 300, call)
    with solution.peak_memory() as peak:
        call = solution.call("int8_matmul", *operands)
    array_of(call, "the result", call.value, np.float32, (m, n))
    solution.within("bytes held at once", peak.bytes, 24 * (m * k + k * n + m * n), call)
