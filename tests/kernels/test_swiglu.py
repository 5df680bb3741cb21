"""SwiGLU against float64, under the sanitizer."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import KernelInputError
from kernels.swiglu import MAX_COLUMNS, swiglu, swiglu_kernel, swiglu_reference
from kernels.testing.accuracy import assert_as_accurate_as_torch
from kernels.testing.sanitizer import sanitize
from tests.kernels.on_device import first_grid, rows_on, watched
from tests.kernels.strategies import COLUMNS, DTYPES, ROWS, SEEDS


@settings(max_examples=40)
@given(
    rows=ROWS,
    columns=COLUMNS,
    dtype=DTYPES,
    seed=SEEDS,
    padding=st.sampled_from([0, 1, 8]),
    scale=st.sampled_from([1e-3, 1.0, 30.0]),
)
def test_rows_of_any_size_and_distance_are_as_accurate_as_torch(
    device: str, rows: int, columns: int, dtype: torch.dtype, seed: int, padding: int, scale: float
) -> None:
    gate = rows_on(device, (rows, columns), dtype, seed, padding=padding, scale=scale)
    up = rows_on(device, (rows, columns), dtype, seed + 1, padding=2 * padding)
    with watched(device) as watch:
        out = swiglu(gate, up)
        watch.require_written(out=out)
    assert_as_accurate_as_torch(
        out, swiglu_reference(gate.double(), up.double()), swiglu_reference(gate, up)
    )


@settings(max_examples=40)
@given(rows=ROWS, columns=COLUMNS, seed=SEEDS)
def test_the_halves_of_a_fused_projection_need_no_copy(
    device: str, rows: int, columns: int, seed: int
) -> None:
    packed = rows_on(device, (rows, 2 * columns), torch.bfloat16, seed)
    gate, up = packed.chunk(2, dim=-1)
    with watched(device):
        out = swiglu(gate, up)
    assert torch.equal(out, swiglu(gate.contiguous(), up.contiguous()))


@settings(max_examples=40)
@given(columns=COLUMNS, dtype=DTYPES, seed=SEEDS)
def test_doubling_up_doubles_the_result(
    device: str, columns: int, dtype: torch.dtype, seed: int
) -> None:
    """Exactly, away from the smallest numbers: the result is linear in up."""
    gate = rows_on(device, (2, columns), dtype, seed).clamp(min=-4)
    up = rows_on(device, (2, columns), dtype, seed + 1)
    once, twice = swiglu(gate, up), swiglu(gate, up * 2)
    ordinary = once.abs() > 4 * torch.finfo(dtype).smallest_normal
    assert torch.equal(twice[ordinary], 2 * once[ordinary])


def test_far_gates_are_zero_or_the_gate_itself(device: str) -> None:
    gate = torch.tensor([[-200.0, -1e4, 200.0, 0.0, float("nan"), float("inf")]], device=device)
    out = swiglu(gate, torch.ones_like(gate))
    assert out[0, :4].tolist() == [0.0, 0.0, 200.0, 0.0]
    assert out[0, 4].isnan()
    assert out[0, 5] == float("inf")


def test_a_result_beyond_half_precision_is_infinite_not_wrong(device: str) -> None:
    large = torch.full((1, 4), 300.0, device=device).half()
    out = swiglu(large, large)
    assert out.isposinf().all()


def test_leading_dimensions_are_rows(device: str) -> None:
    gate, up = (
        rows_on(device, (2, 3, 40), torch.float16, 0),
        rows_on(device, (2, 3, 40), torch.float16, 1),
    )
    out = swiglu(gate, up)
    assert out.shape == (2, 3, 40)
    assert torch.equal(out.view(6, 40), swiglu(gate.view(6, 40), up.view(6, 40)))


@pytest.mark.parametrize("shape", [(0, 64), (3, 0), (0, 0), (2, 0, 5)])
def test_an_empty_batch_launches_nothing(device: str, shape: tuple[int, ...]) -> None:
    nothing = torch.zeros(shape, device=device)
    assert swiglu(nothing, nothing).shape == shape


def test_more_than_65535_rows_fit_the_grid() -> None:
    """They lie along its x axis; blocks of a row along y, which ends at 65,535."""
    gate = torch.ones(65_537, 2)
    assert first_grid(lambda: swiglu(gate, gate)) == (65_537, 1, 1)
    wide = torch.empty(1, MAX_COLUMNS + 1, dtype=torch.float16)  # never touched
    with pytest.raises(KernelInputError, match="rows of 67107841, wanted at most 67107840"):
        swiglu(wide, wide)


def test_row_offsets_are_64_bit() -> None:
    """Three rows 2^30 elements apart, all masked off: in int32 the third would wrap."""
    one = torch.zeros(16)
    with sanitize():
        swiglu_kernel[(3, 1)](one, one, one, 2**30, 2**30, 2**30, 0, BLOCK=16)


def test_wrong_tensors_are_refused_with_what_was_wanted() -> None:
    gate = torch.zeros(2, 64)
    with pytest.raises(KernelInputError, match=r"up has shape \(2, 32\), wanted \(2, 64\)"):
        swiglu(gate, gate[:, :32])
    with pytest.raises(KernelInputError, match="up is float16, wanted float32"):
        swiglu(gate, gate.half())
    with pytest.raises(KernelInputError, match="gate is float64"):
        swiglu(gate.double(), gate)
    with pytest.raises(KernelInputError, match="must be adjacent"):
        swiglu(gate.t(), gate.t())
    with pytest.raises(KernelInputError, match="one device, not gate on cpu, up on meta"):
        swiglu(gate, gate.to("meta"))
