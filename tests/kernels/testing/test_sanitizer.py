"""Each detector finds its planted fault, and says nothing of the right kernel beside it."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from kernels.testing.faults import (
    IntegerOverflowError,
    OutOfBoundsError,
    ReadRaceError,
    SanitizerError,
    UnwrittenOutputError,
    WriteRaceError,
)
from kernels.testing.sanitizer import poisoned_like, sanitize


@triton.jit
def copy_kernel(source, target, count, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if MASKED:
        values = tl.load(source + lanes, mask=lanes < count)
        tl.store(target + lanes, values, mask=lanes < count)
    else:
        values = tl.load(source + lanes)
        tl.store(target + lanes, values, mask=lanes < count)


@triton.jit
def switched_copy_kernel(source, target, count, switch, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    mask = (lanes < count) & (switch < 1)
    tl.store(target + lanes, tl.load(source + lanes, mask=mask, other=0.0), mask=mask)


@triton.jit
def store_kernel(target, offset, BLOCK: tl.constexpr):
    tl.store(target + offset + tl.arange(0, BLOCK), 1.0)


@triton.jit
def row_kernel(source, target, stride, columns, BLOCK: tl.constexpr):
    """Reads rows of a view, writes them side by side."""
    row = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    values = tl.load(source + row * stride + lanes, mask=lanes < columns)
    tl.store(target + row * columns + lanes, values, mask=lanes < columns)


@triton.jit
def follow_kernel(table, target, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    source = tl.load(table).to(tl.pointer_type(tl.float32))
    tl.store(target + lanes, tl.load(source + lanes))


@triton.jit
def total_kernel(source, target, BLOCK: tl.constexpr, ATOMIC: tl.constexpr):
    total = tl.sum(tl.load(source + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)), 0)
    if ATOMIC:
        tl.atomic_add(target, total)
    else:
        tl.store(target, tl.load(target) + total)


@triton.jit
def overlapping_kernel(target, STEP: tl.constexpr, BLOCK: tl.constexpr):
    tl.store(target + tl.program_id(0) * STEP + tl.arange(0, BLOCK), 1.0)


@triton.jit
def scatter_kernel(places, values, target, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(target + tl.load(places + lanes), tl.load(values + lanes))


@triton.jit
def shift_kernel(values, count, BACKWARD: tl.constexpr, BLOCK: tl.constexpr):
    """In place: every block takes its neighbour's values."""
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    from_lanes = lanes - BLOCK if BACKWARD else lanes + BLOCK
    inside = (from_lanes >= 0) & (from_lanes < count)
    tl.store(values + lanes, tl.load(values + from_lanes, mask=inside, other=0.0))


@triton.jit
def last_adds_up_kernel(source, partial, counter, target, BLOCK: tl.constexpr, SIZE: tl.constexpr):
    """Split and merge: the last program to finish reads what all have written."""
    program = tl.program_id(0)
    tl.store(partial + program, tl.sum(tl.load(source + program * BLOCK + tl.arange(0, BLOCK)), 0))
    if tl.atomic_add(counter, 1) == tl.num_programs(0) - 1:
        tl.store(target, tl.sum(tl.load(partial + tl.arange(0, SIZE)), 0))
        tl.store(counter, 0)


@triton.jit
def big_stride_kernel(source, target, stride, WIDE: tl.constexpr):
    row = tl.program_id(0)
    if WIDE:
        row = row.to(tl.int64)
    offset = row * stride
    tl.store(target + row, tl.load(source + offset, mask=offset == 0, other=0.0))


@triton.jit
def wrap_kernel(target, number, AS: tl.constexpr):
    x = tl.full((4,), 1, tl.int32) * number
    if AS == "difference":
        tl.store(target + tl.arange(0, 4), (-x - x).to(tl.int64))
    elif AS == "sum":
        tl.store(target + tl.arange(0, 4), (x + x).to(tl.int64))
    elif AS == "unsigned":
        tl.store(target + tl.arange(0, 4), (x.to(tl.uint32) * 7).to(tl.int64))
    else:
        doubled = tl.add(x, x, sanitize_overflow=False)
        tl.store(target + tl.arange(0, 4), doubled.to(tl.int64))


@triton.jit
def mixed_kernel(target, STORES: tl.constexpr):
    """Program STORES sets what all others add to."""
    if tl.program_id(0) == STORES:
        tl.store(target, 1.0)
    else:
        tl.atomic_add(target, 1.0)


@triton.jit
def compare_and_swap_kernel(target):
    tl.atomic_cas(target + tl.program_id(0), 0, 1)


def copy(source: torch.Tensor, target: torch.Tensor, count: int, masked: bool = True) -> None:
    copy_kernel[(triton.cdiv(count, 8),)](source, target, count, BLOCK=8, MASKED=masked)


def test_a_read_beyond_the_end_is_found_and_placed() -> None:
    source, target = torch.ones(13), torch.zeros(13)
    with sanitize(), pytest.raises(OutOfBoundsError) as caught:
        copy(source, target, 13, masked=False)
    error = caught.value
    assert (error.kernel, error.program, error.lanes, error.first_index) == (
        "copy_kernel", (1, 0, 0), 3, 13,
    )  # fmt: skip
    assert "load out of bounds in 3 lanes" in str(error)
    assert "element 13 of 'source'" in str(error)
    assert error.line.startswith("test_sanitizer.py:")


@given(st.integers(1, 100), st.sampled_from([torch.float32, torch.bfloat16, torch.int8]))
def test_a_masked_copy_of_any_length_is_quiet(count: int, dtype: torch.dtype) -> None:
    source = torch.ones(count).to(dtype)
    with sanitize() as sanitizer:
        target = torch.empty_like(source)
        copy(source, target, count)
        sanitizer.require_written(target=target)
    assert torch.equal(source, target)


@pytest.mark.parametrize("offset", [-1, 1, 2**40])
def test_a_store_before_or_after_a_tensor_is_found(offset: int) -> None:
    with sanitize(), pytest.raises(OutOfBoundsError, match="store out of bounds"):
        store_kernel[(1,)](torch.zeros(8), offset, BLOCK=8)


def test_a_mask_may_be_a_block_and_a_scalar() -> None:
    """The interpreter then holds it in bytes; nothing is read where it is off."""
    target = torch.zeros(6)
    with sanitize():
        switched_copy_kernel[(1,)](torch.ones(4), target, 4, 0, BLOCK=8)
        switched_copy_kernel[(1,)](torch.full((4,), 2.0)[:0], target, 4, 1, BLOCK=8)
    assert target.tolist() == [1, 1, 1, 1, 0, 0]


def test_atomics_are_held_to_the_bounds_too() -> None:
    with sanitize(), pytest.raises(OutOfBoundsError, match="atomic out of bounds in 1 lane,"):
        compare_and_swap_kernel[(5,)](torch.zeros(4, dtype=torch.int32))


def test_a_read_between_the_rows_of_a_view_is_found() -> None:
    """Columns 0..5 of a 4 x 8 tensor; the kernel takes the rows for 7 wide."""
    view = torch.arange(32.0).reshape(4, 8)[:, :6]
    with sanitize(), pytest.raises(OutOfBoundsError) as caught:
        row_kernel[(4,)](view, torch.zeros(28), view.stride(0), 7, BLOCK=8)
    assert caught.value.first_index == 6
    assert "strides (8, 1)" in str(caught.value)
    with sanitize(bounds="storage"):
        row_kernel[(4,)](view, torch.zeros(28), view.stride(0), 7, BLOCK=8)


def test_the_rows_of_a_view_may_be_read() -> None:
    view = torch.arange(32.0).reshape(4, 8)[:, 1:7]
    target = torch.zeros(24)
    with sanitize():
        row_kernel[(4,)](view, target, view.stride(0), 6, BLOCK=8)
    assert torch.equal(target.reshape(4, 6), view)


def test_memory_found_by_an_address_must_be_named() -> None:
    """The table says where the numbers are; only what is reachable may be read there."""
    numbers, target = torch.arange(4.0), torch.zeros(4)
    table = torch.tensor([numbers.data_ptr()])
    with sanitize(reachable=[numbers]):
        follow_kernel[(1,)](table, target, BLOCK=4)
    assert torch.equal(target, numbers)
    with pytest.raises(OutOfBoundsError), sanitize():
        follow_kernel[(1,)](table, target, BLOCK=4)
    with pytest.raises(OutOfBoundsError, match=r"reachable\[0\]"), sanitize(reachable=[numbers]):
        follow_kernel[(1,)](table, target, BLOCK=8)


def test_two_views_of_one_storage_allow_what_both_cover() -> None:
    whole = torch.zeros(16)
    whole[:8] = 1
    with sanitize():
        copy(whole[:8], whole[8:], 8)
    assert whole.tolist() == [1.0] * 16


def test_two_programs_that_store_to_one_place_are_found() -> None:
    with sanitize(), pytest.raises(WriteRaceError) as caught:
        overlapping_kernel[(3,)](torch.zeros(24), STEP=6, BLOCK=8)
    error = caught.value
    assert (error.program, error.lanes, error.first_index) == ((1, 0, 0), 2, 6)
    assert "program (0, 0, 0)" in str(error)


def test_programs_side_by_side_are_quiet() -> None:
    with sanitize():
        overlapping_kernel[(3,)](torch.zeros(24), STEP=8, BLOCK=8)


def test_one_launch_after_another_is_no_race() -> None:
    target = torch.zeros(8)
    with sanitize():
        overlapping_kernel[(1,)](target, STEP=8, BLOCK=8)
        overlapping_kernel[(1,)](target, STEP=8, BLOCK=8)


def test_lanes_of_one_program_with_different_values_for_one_place_are_found() -> None:
    places = torch.tensor([0, 1, 2, 1])
    with sanitize(), pytest.raises(WriteRaceError, match="1 lane, the first at element 1"):
        scatter_kernel[(1,)](places, torch.arange(4.0), torch.zeros(4), BLOCK=4)
    with sanitize():  # the same value from both is harmless
        scatter_kernel[(1,)](places, torch.ones(4), torch.zeros(4), BLOCK=4)


def test_a_lost_update_is_found_and_its_atomic_is_quiet() -> None:
    source = torch.ones(32)
    with sanitize(), pytest.raises(ReadRaceError):
        total_kernel[(4,)](source, torch.zeros(1), BLOCK=8, ATOMIC=False)
    total = torch.zeros(1)
    with sanitize():
        total_kernel[(4,)](source, total, BLOCK=8, ATOMIC=True)
    assert total.item() == 32


@pytest.mark.parametrize(
    ("stores", "complaint"),
    [
        (0, r"uses an atomic where program \(0, 0, 0\) stored"),
        (1, r"stores where program \(0, 0, 0\) used an atomic"),
        (3, "stores where several programs used an atomic"),
    ],
)
def test_a_plain_store_among_atomics_is_found(stores: int, complaint: str) -> None:
    with sanitize(), pytest.raises(WriteRaceError, match=complaint):
        mixed_kernel[(4,)](torch.zeros(1), STORES=stores)
    with sanitize():  # the same in one program is a matter of its own order
        mixed_kernel[(1,)](torch.zeros(1), STORES=stores)


@pytest.mark.parametrize("backward", [True, False])
def test_a_kernel_in_place_that_reads_its_neighbours_block_is_found(backward: bool) -> None:
    with sanitize(), pytest.raises(ReadRaceError):
        shift_kernel[(4,)](torch.ones(32), 32, BACKWARD=backward, BLOCK=8)
    with sanitize():
        shift_kernel[(1,)](torch.ones(8), 8, BACKWARD=backward, BLOCK=8)


def test_programs_that_wait_for_each_other_are_declared() -> None:
    def run() -> torch.Tensor:
        partial, target = torch.zeros(4), torch.zeros(1)
        counter = torch.zeros(1, dtype=torch.int32)
        last_adds_up_kernel[(4,)](torch.ones(32), partial, counter, target, BLOCK=8, SIZE=4)
        return target

    with sanitize(), pytest.raises(ReadRaceError):
        run()
    with sanitize(ordered_by_atomics=True):
        assert run().item() == 32


def test_an_offset_beyond_int32_is_found_without_a_tensor_of_that_size() -> None:
    source, target = torch.zeros(1), torch.zeros(4)
    with sanitize(), pytest.raises(IntegerOverflowError) as caught:
        big_stride_kernel[(4,)](source, target, 2**30, WIDE=False)
    error = caught.value
    assert (error.kernel, error.program, error.lanes) == ("big_stride_kernel", (2, 0, 0), 1)
    assert f"int32 mul wraps in 1 lane, the first is lane 0 with {2**31}" in str(error)
    with sanitize():
        big_stride_kernel[(4,)](source, target, 2**30, WIDE=True)


@pytest.mark.parametrize("operation", ["sum", "difference"])
def test_sums_and_differences_that_wrap_are_found(operation: str) -> None:
    target = torch.zeros(4, dtype=torch.int64)
    with sanitize(), pytest.raises(IntegerOverflowError):
        wrap_kernel[(1,)](target, 2**30 + 1, AS=operation)
    with sanitize():
        wrap_kernel[(1,)](target, 2**30 - 1, AS=operation)


@pytest.mark.parametrize("operation", ["unsigned", "by intention"])
def test_arithmetic_that_may_wrap_is_quiet(operation: str) -> None:
    with sanitize():
        wrap_kernel[(1,)](torch.zeros(4, dtype=torch.int64), 2**30 + 1, AS=operation)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.int32,
        torch.int64, torch.float8_e4m3fn,
    ],
)  # fmt: skip
def test_elements_that_nobody_writes_are_found(dtype: torch.dtype) -> None:
    source = torch.ones(13).to(dtype)
    with sanitize() as sanitizer:
        target = torch.empty(2, 13, dtype=dtype)
        copy(source, target[0], 13)
        sanitizer.require_written(first=target[0])
        with pytest.raises(UnwrittenOutputError) as caught:
            sanitizer.require_written(both=target)
    assert (caught.value.kernel, caught.value.lanes) == ("copy_kernel", 13)
    assert "13 of 26 elements of 'both'" in str(caught.value)
    assert "(1, 0)" in str(caught.value)


def test_a_result_that_equals_the_poison_is_written_all_the_same() -> None:
    with sanitize() as sanitizer:
        source = torch.empty(8, dtype=torch.int8)
        target = torch.empty_like(source)
        copy(source, target, 8)
        sanitizer.require_written(target=target)


def test_what_torch_writes_is_written() -> None:
    with sanitize() as sanitizer:
        target = torch.empty(4, 5).t()
        target[:3] = 0
        with pytest.raises(UnwrittenOutputError, match="8 of 20"):
            sanitizer.require_written(target=target)
        sanitizer.require_written(rest=target[:3])


def test_poison_is_nan_for_floats_and_far_off_for_integers() -> None:
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        assert poisoned_like(torch.zeros(3, dtype=dtype)).isnan().all()
    assert (poisoned_like(torch.zeros(3, dtype=torch.int32)) > 2**30).all()
    assert poisoned_like(torch.zeros(0)).numel() == 0
    assert poisoned_like(torch.zeros(2, dtype=torch.bool)).all()


def test_allocations_outside_the_block_are_torchs_own() -> None:
    with sanitize():
        assert torch.empty(4).isnan().all()
        assert torch.zeros(4).new_empty(3).isnan().all()
    assert torch.overrides._len_torch_function_stack() == 0  # type: ignore[attr-defined]


def test_all_faults_are_sanitizer_errors() -> None:
    with sanitize(), pytest.raises(SanitizerError, match=r"^store_kernel, program \(0, 0, 0\) at "):
        store_kernel[(1,)](torch.zeros(8), 1, BLOCK=8)
