"""Rows as int8, bit for bit as torch computes them, under the sanitizer."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import KernelInputError
from kernels.quantize_int8 import (
    choose_launch,
    quantize_per_token,
    quantize_per_token_kernel,
    quantize_per_token_reference,
)
from kernels.testing.sanitizer import sanitize
from tests.kernels.on_device import first_grid, rows_on, watched
from tests.kernels.strategies import COLUMNS, DTYPES, ROWS, SEEDS


@settings(max_examples=25)
@given(
    rows=ROWS, columns=COLUMNS, dtype=DTYPES, seed=SEEDS,
    padding=st.sampled_from([0, 1, 8]), power=st.integers(-20, 12),
)  # fmt: skip
def test_rows_of_any_size_and_distance_are_quantized_as_by_torch(
    device: str, rows: int, columns: int, dtype: torch.dtype, seed: int, padding: int, power: int
) -> None:
    x = rows_on(device, (rows, columns), dtype, seed, padding=padding, scale=2.0**power)
    with watched(device) as watch:
        codes, scales = quantize_per_token(x)
        watch.require_written(codes=codes, scales=scales)
    wanted_codes, wanted_scales = quantize_per_token_reference(x)
    assert torch.equal(codes, wanted_codes)
    assert torch.equal(scales, wanted_scales)


@settings(max_examples=15)
@given(columns=COLUMNS, dtype=DTYPES, seed=SEEDS)
def test_no_value_moves_by_more_than_half_a_step(
    device: str, columns: int, dtype: torch.dtype, seed: int
) -> None:
    x = rows_on(device, (3, columns), dtype, seed)
    codes, scales = quantize_per_token(x)
    step = scales.double().unsqueeze(-1)
    assert bool(((codes * step - x.double()).abs() <= step * 0.50001).all())
    assert bool((codes.abs().amax(-1) == 127).all())


def test_halves_are_rounded_to_even(device: str) -> None:
    row = [127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -126.5, 125.5, 0.49999997, -2.5000002]
    codes, scales = quantize_per_token(torch.tensor([row], device=device))
    assert scales.tolist() == [1.0]
    assert codes.tolist() == [[127, 0, 2, 2, 0, -2, -126, 126, 0, -3]]


@pytest.mark.parametrize("tiny", [0.0, -0.0, 1e-45, 5e-44])
def test_rows_of_zeros_and_what_is_lost_beside_zero_have_codes_of_zero(
    device: str, tiny: float
) -> None:
    """The scale of 5e-44 / 127 has no fp32: 0, and no division by it."""
    codes, scales = quantize_per_token(torch.full((2, 16), tiny, device=device))
    assert scales.eq(0).all()
    assert codes.eq(0).all()


def test_a_small_row_keeps_its_precision(device: str) -> None:
    codes, scales = quantize_per_token(torch.tensor([[1e-30, -0.5e-30]], device=device))
    assert codes.tolist() == [[127, -64]]
    assert math.isclose(float(scales[0]), 1e-30 / 127, rel_tol=1e-6)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_row_with_nan_or_infinity_is_marked_and_the_others_are_not(
    device: str, value: float
) -> None:
    x = rows_on(device, (3, 40), torch.float32, 0)
    x[1, 7] = value
    codes, scales = quantize_per_token(x)
    assert scales.isnan().tolist() == [False, True, False]
    assert codes[1].eq(0).all()
    assert torch.equal(codes[::2], quantize_per_token(x[::2].contiguous())[0])


def test_leading_dimensions_are_rows_and_an_empty_batch_launches_nothing(device: str) -> None:
    x = rows_on(device, (2, 3, 64), torch.bfloat16, 0)
    codes, scales = quantize_per_token(x)
    assert codes.shape == x.shape
    assert scales.shape == (2, 3)
    codes, scales = quantize_per_token(x[:0])
    assert codes.shape == (0, 3, 64)
    assert scales.shape == (0, 3)


def test_more_than_65535_programs_fit_the_grid() -> None:
    """They lie along its x axis: y and z end at 65,535."""
    x = torch.zeros(65_537, 1024)
    assert first_grid(lambda: quantize_per_token(x)) == (65_537, 1, 1)


def test_row_offsets_are_64_bit() -> None:
    codes, scales = torch.zeros(1, 256, dtype=torch.int8), torch.zeros(1)
    with sanitize():
        quantize_per_token_kernel[(1,)](
            torch.ones(1, 256), codes, scales, 2**30, 2**30, 1, 256, ROWS=4, COLUMNS=256
        )
    assert codes.eq(127).all()


@pytest.mark.parametrize("columns", [1, 127, 128, 4096, 14336, 32768])
def test_a_launch_covers_a_row_and_wastes_no_thread(columns: int) -> None:
    launch = choose_launch(columns)
    assert launch.columns >= columns
    assert launch.rows * launch.columns >= 32 * launch.num_warps


def test_wrong_tensors_are_refused_with_what_was_wanted() -> None:
    with pytest.raises(KernelInputError, match="x is int8, wanted float16 or bfloat16 or float32"):
        quantize_per_token(torch.zeros(2, 8).to(torch.int8))
    with pytest.raises(KernelInputError, match="rows of 32769, wanted 1 to 32768"):
        quantize_per_token(torch.zeros(1, 32769))
    with pytest.raises(KernelInputError, match="x is on meta, a Triton kernel needs a GPU"):
        quantize_per_token(torch.zeros(1, 8, device="meta"))
