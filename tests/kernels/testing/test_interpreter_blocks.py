"""Blocks of lanes: reductions and scans by halves, undefined lanes, atomics, descriptors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.testing.float_codecs import FLOAT_FORMATS, float_format
from kernels.testing.interpreter import KernelCrashError
from kernels.testing.sanitizer import sanitize

FLOATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@triton.jit
def reduce_rows_kernel(
    source, target, ROWS: tl.constexpr, COLUMNS: tl.constexpr, OPERATION: tl.constexpr
):
    rows = tl.arange(0, ROWS)
    places = rows[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    x = tl.load(source + places)
    if OPERATION == "sum":
        result = tl.sum(x, 1)
    elif OPERATION == "max":
        result = tl.max(x, 1)
    elif OPERATION == "min":
        result = tl.min(x, 1)
    elif OPERATION == "argmax":
        result = tl.argmax(x, 1)
    elif OPERATION == "argmin":
        result = tl.argmin(x, 1)
    elif OPERATION == "argmax_any":
        result = tl.argmax(x, 1, tie_break_left=False)
    elif OPERATION == "kept":
        result = tl.reshape(tl.sum(x, 1, keep_dims=True), (ROWS,))
    else:
        result = tl.xor_sum(x, 1)
    tl.store(target + rows, result)


@triton.jit
def reduce_all_kernel(source, target, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    places = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    x = tl.load(source + places)
    tl.store(target, tl.sum(x))
    tl.store(target + 1, tl.max(x))


@triton.jit
def store_where_positive_kernel(number, target, start, COUNT: tl.constexpr, LANES: tl.constexpr):
    lane = tl.arange(0, LANES)
    mask = (lane < COUNT) & (tl.load(number) > 0)
    tl.store(target + start + lane, 7, mask=mask)


@triton.jit
def compose_affine(a, b, c, d):
    """x -> a x + b, then x -> c x + d: order matters."""
    return a * c, b * c + d


@triton.jit
def larger_pair(a, i, b, j):
    """The larger value; among equals the smaller index. Logic lane by lane."""
    first = a > b or (a == b and not j < i)
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def logic_kernel(source, values, places, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    x = tl.load(source + rows[:, None] * COLUMNS + columns[None, :])
    index = tl.broadcast_to(columns[None, :], (ROWS, COLUMNS))
    best, place = tl.reduce((x, index), 1, larger_pair)
    tl.store(values + rows, best)
    tl.store(places + rows, place)


@triton.jit
def scan_kernel(
    source, other, target, ROWS: tl.constexpr, COLUMNS: tl.constexpr, OPERATION: tl.constexpr
):
    places = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    x = tl.load(source + places)
    if OPERATION == "cumsum":
        result = tl.cumsum(x, 1)
    elif OPERATION == "cumsum_reverse":
        result = tl.cumsum(x, 1, reverse=True)
    elif OPERATION == "cumsum_rows":
        result = tl.cumsum(x, 0)
    elif OPERATION == "cumprod":
        result = tl.cumprod(x, 1)
    else:
        y = tl.load(other + places)
        _, result = tl.associative_scan((x, y), 1, compose_affine)
    tl.store(target + places, result)


@triton.jit
def load_half_kernel(source, target, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(target + lanes, tl.load(source + lanes, mask=lanes < BLOCK // 2))


@triton.jit
def load_half_or_zero_kernel(source, target, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(target + lanes, tl.load(source + lanes, mask=lanes < BLOCK // 2, other=0))


@triton.jit
def load_one_or_kernel(source, target, wanted, OTHER: tl.constexpr):
    tl.store(target, tl.load(source, mask=wanted > 0, other=OTHER))
    lane = tl.arange(0, 1)
    tl.store(target + 1 + lane, tl.load(source + lane, mask=lane < wanted, other=OTHER))


@triton.jit
def atomic_add_kernel(places, addends, target, before, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(places + lanes)
    found = tl.atomic_add(target + index, tl.load(addends + lanes), mask=index >= 0)
    tl.store(before + lanes, found, mask=index >= 0)


@triton.jit
def last_program_kernel(counter, target):
    ticket = tl.atomic_add(counter, 1)
    if ticket == tl.num_programs(0) - 1:
        tl.store(target, tl.program_id(0))


@triton.jit
def descriptor_kernel(source, target, row, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    target.store([0, 0], source.load([row, 0]))


@triton.jit
def rearranging_kernel(source, target, BLOCK: tl.constexpr, OPERATION: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    x = tl.load(source + lanes)
    if OPERATION == "sort":
        x = tl.sort(x)
    elif OPERATION == "sort_descending":
        x = tl.sort(x, descending=True)
    elif OPERATION == "flip":
        x = tl.flip(x, 0)
    elif OPERATION == "transpose":
        x = tl.reshape(tl.trans(tl.reshape(x, (4, BLOCK // 4))), (BLOCK,))
    elif OPERATION == "split_and_join":
        even, odd = tl.split(tl.reshape(x, (BLOCK // 2, 2)))
        x = tl.reshape(tl.join(odd, even), (BLOCK,))
    else:
        x = tl.gather(x, lanes ^ 1, 0)
    tl.store(target + lanes, x)


@triton.jit
def random_kernel(seed, target, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(target + lanes, tl.rand(seed, lanes))


@pytest.mark.parametrize("name", list(FLOATS))
@pytest.mark.parametrize(
    "operation", ["sort", "sort_descending", "flip", "transpose", "split_and_join", "gather"]
)
def test_values_are_moved_as_in_torch(name: str, operation: str) -> None:
    source = torch.randn(64, generator=torch.Generator().manual_seed(0)).to(FLOATS[name])
    target = torch.zeros_like(source)
    rearranging_kernel[(1,)](source, target, BLOCK=64, OPERATION=operation)
    expected = {
        "sort": lambda: source.sort()[0],
        "sort_descending": lambda: source.sort(descending=True)[0],
        "flip": lambda: source.flip(0),
        "transpose": lambda: source.view(4, 16).t().reshape(-1),
    }.get(operation, lambda: source.view(32, 2).flip(1).reshape(-1))()
    assert torch.equal(target, expected)


def test_random_numbers_are_those_of_philox() -> None:
    """Uniform, and the same for the same seed: sums wrap in them by intention."""
    target = torch.zeros(1024)
    with sanitize():
        random_kernel[(1,)](2**31 - 5, target, BLOCK=1024)
    assert ((target >= 0) & (target < 1)).all()
    assert abs(target.mean() - 0.5) < 0.05
    assert target.unique().numel() > 1000


@pytest.mark.parametrize("name", list(FLOATS))
@pytest.mark.parametrize("operation", ["sum", "max", "min", "argmax", "argmin", "kept"])
def test_rows_reduce_as_in_torch(name: str, operation: str) -> None:
    source = torch.randn(8, 64, generator=torch.Generator().manual_seed(0)).to(FLOATS[name])
    index = operation.startswith("arg")
    target = torch.zeros(8, dtype=torch.int32 if index else FLOATS[name])
    reduce_rows_kernel[(1,)](source, target, ROWS=8, COLUMNS=64, OPERATION=operation)
    wide = source.double()
    expected = {
        "max": lambda: wide.amax(1),
        "min": lambda: wide.amin(1),
        "argmax": lambda: wide.argmax(1),
        "argmin": lambda: wide.argmin(1),
    }.get(operation, lambda: wide.sum(1))()
    # A sum by halves of 64 rounds 6 times.
    steps = 6 if operation in ("sum", "kept") else 0
    error = (target.double() - expected.double()).abs()
    assert (error <= steps * torch.finfo(FLOATS[name]).eps * wide.abs().sum(1)).all()


def test_a_sum_of_bfloat16_is_rounded_at_every_step_of_the_tree() -> None:
    """257 has no bf16: (256 + 1) + (1 + 1) is 258, while one rounding at the end gives 260."""
    source = torch.tensor([[256.0, 1.0, 1.0, 1.0]]).bfloat16()
    target = torch.zeros(1).bfloat16()
    reduce_rows_kernel[(1,)](source, target, ROWS=1, COLUMNS=4, OPERATION="sum")
    assert target.item() == 258


def test_small_integers_are_summed_in_32_bits() -> None:
    source = torch.full((1, 128), 127, dtype=torch.int8)
    target = torch.zeros(1, dtype=torch.int32)
    reduce_rows_kernel[(1,)](source, target, ROWS=1, COLUMNS=128, OPERATION="sum")
    assert target.item() == 127 * 128


def test_maxima_ignore_nan_and_sums_keep_it() -> None:
    nan = float("nan")
    source = torch.tensor([[nan, 1.0, 3.0, 2.0], [nan, nan, nan, nan]])
    target = torch.zeros(2)
    reduce_rows_kernel[(1,)](source, target, ROWS=2, COLUMNS=4, OPERATION="max")
    assert target[0] == 3
    assert target[1].isnan()
    reduce_rows_kernel[(1,)](source, target, ROWS=2, COLUMNS=4, OPERATION="sum")
    assert target.isnan().all()


def test_ties_go_to_the_left_only_where_the_kernel_asks_for_it() -> None:
    source = torch.tensor([[1.0, 5.0, 5.0, 0.0]])
    target = torch.zeros(1, dtype=torch.int32)
    reduce_rows_kernel[(1,)](source, target, ROWS=1, COLUMNS=4, OPERATION="argmax")
    assert target.item() == 1
    reduce_rows_kernel[(1,)](source, target, ROWS=1, COLUMNS=4, OPERATION="argmax_any")
    assert target.item() == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@given(st.lists(st.integers(0, 3), min_size=16, max_size=16))
def test_ties_go_to_the_left_in_every_type(dtype: torch.dtype, values: list[int]) -> None:
    source = torch.tensor([values]).to(dtype)
    target = torch.zeros(1, dtype=torch.int32)
    for operation, extreme in (("argmax", max), ("argmin", min)):
        reduce_rows_kernel[(1,)](source, target, ROWS=1, COLUMNS=16, OPERATION=operation)
        assert target.item() == values.index(extreme(values))


def test_other_reductions_call_the_kernels_own_function() -> None:
    source = torch.randint(-(2**31), 2**31 - 1, (2, 32), dtype=torch.int32)
    target = torch.zeros(2, dtype=torch.int32)
    reduce_rows_kernel[(1,)](source, target, ROWS=2, COLUMNS=32, OPERATION="xor")
    assert target.tolist() == np.bitwise_xor.reduce(source.numpy(), axis=1).tolist()


def test_logic_in_a_combining_function_is_lane_by_lane() -> None:
    source = torch.tensor([[1, 3, 3, 0, 2, 3, 1, 1], [5, 0, 0, 5, 0, 0, 0, 0]])
    values, places = torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int32)
    logic_kernel[(1,)](source, values, places, ROWS=2, COLUMNS=8)
    assert values.tolist() == [3, 5]
    assert places.tolist() == [1, 0]


def test_a_reduction_without_an_axis_takes_all() -> None:
    source = torch.arange(32.0).reshape(4, 8)
    target = torch.zeros(2)
    reduce_all_kernel[(1,)](source, target, ROWS=4, COLUMNS=8)
    assert target.tolist() == [source.sum(), 31]


@pytest.mark.parametrize("name", list(FLOATS))
@pytest.mark.parametrize("operation", ["cumsum", "cumsum_reverse", "cumsum_rows", "cumprod"])
def test_scans_agree_with_torch(name: str, operation: str) -> None:
    source = (1 + torch.rand(4, 16, generator=torch.Generator().manual_seed(0)) / 4).to(
        FLOATS[name]
    )
    target = torch.zeros_like(source)
    scan_kernel[(1,)](source, source, target, ROWS=4, COLUMNS=16, OPERATION=operation)
    wide = source.double()
    expected = {
        "cumsum": lambda: wide.cumsum(1),
        "cumsum_reverse": lambda: wide.flip(1).cumsum(1).flip(1),
        "cumsum_rows": lambda: wide.cumsum(0),
        "cumprod": lambda: wide.cumprod(1),
    }[operation]()
    tolerance = 5 * torch.finfo(FLOATS[name]).eps
    torch.testing.assert_close(target.double(), expected, rtol=tolerance, atol=0)


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-9, 9)), min_size=16, max_size=16))
def test_a_scan_keeps_the_order_of_its_elements(rows: list[tuple[int, int]]) -> None:
    factors = torch.tensor([[row[0] for row in rows]], dtype=torch.int64)
    offsets = torch.tensor([[row[1] for row in rows]], dtype=torch.int64)
    target = torch.zeros(1, 16, dtype=torch.int64)
    scan_kernel[(1,)](factors, offsets, target, ROWS=1, COLUMNS=16, OPERATION="affine")
    value, expected = 0, []
    for factor, offset in rows:
        value = factor * value + offset
        expected.append(value)
    assert target[0].tolist() == expected


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
        torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    ],
)  # fmt: skip
def test_floats_that_a_mask_leaves_out_are_nan(dtype: torch.dtype) -> None:
    source = torch.ones(8).to(dtype)
    target = torch.zeros(8).to(dtype)
    load_half_kernel[(1,)](source, target, BLOCK=8)
    assert target.float()[:4].tolist() == [1.0] * 4
    assert target.float()[4:].isnan().all()


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64])
def test_integers_that_a_mask_leaves_out_are_the_largest(dtype: torch.dtype) -> None:
    source = torch.ones(8, dtype=dtype)
    target = torch.zeros(8, dtype=dtype)
    load_half_kernel[(1,)](source, target, BLOCK=8)
    assert target.tolist() == [1] * 4 + [torch.iinfo(dtype).max] * 4


def test_one_comparison_may_mask_all_lanes() -> None:
    """A scalar's truth, spread over a block and joined with a mask of lanes, is a mask."""
    target = torch.zeros(4, dtype=torch.int32)
    with sanitize():  # which sees the lanes that are touched
        store_where_positive_kernel[(1,)](torch.tensor([3]), target, 0, COUNT=2, LANES=4)
        store_where_positive_kernel[(1,)](torch.tensor([-3]), target, 100, COUNT=2, LANES=4)
    assert target.tolist() == [7, 7, 0, 0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int32])
def test_lanes_with_another_value_get_that(dtype: torch.dtype) -> None:
    source = torch.ones(8, dtype=dtype)
    target = torch.full((8,), 9, dtype=dtype)
    load_half_or_zero_kernel[(1,)](source, target, BLOCK=8)
    assert target.tolist() == [1] * 4 + [0] * 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int32, torch.int64])
@pytest.mark.parametrize("other", [0, 3])
def test_one_element_with_another_value_gets_that_even_0(dtype: torch.dtype, other: int) -> None:
    source, target = torch.full((1,), 5, dtype=dtype), torch.zeros(2, dtype=dtype)
    for wanted in (0, 1):
        load_one_or_kernel[(1,)](source, target, wanted, OTHER=other)
        assert target.tolist() == [5 if wanted else other] * 2


@pytest.mark.parametrize("name", list(FLOATS))
@given(places=st.lists(st.integers(-1, 5), min_size=16, max_size=16))
def test_atomic_adds_of_equal_places_all_count(name: str, places: list[int]) -> None:
    addends = torch.arange(1.0, 17.0).to(FLOATS[name])
    target = torch.zeros(6, dtype=FLOATS[name])
    before = torch.zeros(16, dtype=FLOATS[name])
    atomic_add_kernel[(2,)](torch.tensor(places), addends, target, before, BLOCK=8)
    # Whole numbers up to 136 have all three types, so no order rounds.
    totals = [0.0] * 6
    for lane, place in enumerate(places):
        if place >= 0:
            assert before[lane] == totals[place]
            totals[place] += lane + 1
    assert target.tolist() == totals


def test_an_atomic_add_of_bfloat16_rounds_every_sum() -> None:
    target = torch.tensor([256.0]).bfloat16()
    before = torch.zeros(8).bfloat16()
    places, ones = torch.zeros(8, dtype=torch.int64), torch.ones(8).bfloat16()
    atomic_add_kernel[(1,)](places, ones, target, before, BLOCK=8)
    assert target.item() == 256


def test_the_last_of_several_programs_can_tell_that_it_is() -> None:
    counter, target = torch.zeros(2, dtype=torch.int32)[:1], torch.full((1,), -1)
    last_program_kernel[(5,)](counter, target)
    assert target.item() == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_descriptors_pad_rows_beyond_the_end(dtype: torch.dtype, padding: str) -> None:
    source = torch.ones(6, 16).to(dtype)
    target = torch.zeros(4, 16).to(dtype)
    descriptor_kernel[(1,)](
        TensorDescriptor(source, [6, 16], [16, 1], [4, 16], padding),
        TensorDescriptor(target, [4, 16], [16, 1], [4, 16]),
        4,
        ROWS=4,
        COLUMNS=16,
    )
    assert (target[:2] == 1).all()
    beyond = target[2:].float()
    assert (beyond == 0).all() if padding == "zero" else beyond.isnan().all()


def test_an_axis_that_is_not_there_is_named() -> None:
    @triton.jit
    def wrong_axis_kernel(source, target):
        tl.store(target, tl.sum(tl.load(source + tl.arange(0, 8)), 2))

    with pytest.raises(KernelCrashError, match="wrong_axis_kernel"):
        wrong_axis_kernel[(1,)](torch.zeros(8), torch.zeros(1))


def test_undefined_codes_are_nan_in_every_format() -> None:
    for name in FLOAT_FORMATS:
        kind = float_format(name)
        code = np.array([kind.nan_code]).astype(kind.code_type)
        assert np.isnan(code.view(kind.numpy_type).astype(np.float64)).all()
