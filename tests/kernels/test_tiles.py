"""The order of tiles, and merging what several programs have summed."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.testing.accuracy import assert_as_accurate_as_torch
from kernels.testing.sanitizer import sanitize
from kernels.tiles import add_splits, add_splits_kernel, choose_splits, tile_of
from tests.kernels.on_device import rows_on, watched
from tests.kernels.strategies import SEEDS


@triton.jit
def visit_kernel(visits, tiles_m, tiles_n, BAND: tl.constexpr):
    """Each program signs its tile."""
    row, column = tile_of(tl.program_id(0), tiles_m, tiles_n, BAND)
    tl.store(visits + row * tiles_n + column, tl.program_id(0))


@settings(max_examples=30)
@given(tiles_m=st.integers(1, 11), tiles_n=st.integers(1, 5), band=st.sampled_from([1, 2, 8]))
def test_every_tile_has_one_program_whatever_the_band(
    device: str, tiles_m: int, tiles_n: int, band: int
) -> None:
    """The sanitizer finds tiles done twice, and tiles left out."""
    visits = torch.full((tiles_m, tiles_n), -1, dtype=torch.int32, device=device)
    with watched(device):
        visit_kernel[(tiles_m * tiles_n,)](visits, tiles_m, tiles_n, BAND=band)
    assert visits.flatten().sort().values.tolist() == list(range(tiles_m * tiles_n))


def test_programs_go_down_a_band_before_they_go_on(device: str) -> None:
    visits = torch.zeros(5, 2, dtype=torch.int32, device=device)
    visit_kernel[(10,)](visits, 5, 2, BAND=3)
    assert visits.tolist() == [[0, 3], [1, 4], [2, 5], [6, 8], [7, 9]]


@settings(max_examples=20)
@given(
    splits=st.integers(2, 16), rows=st.integers(1, 3),
    columns=st.sampled_from([1, 7, 80, 1025]), bias=st.booleans(), seed=SEEDS,
)  # fmt: skip
def test_merged_sums_are_as_accurate_as_torch(
    device: str, splits: int, rows: int, columns: int, bias: bool, seed: int
) -> None:
    sums = rows_on(device, (splits, rows, columns), torch.float32, seed)
    addend = rows_on(device, (columns,), torch.float32, seed + 1) if bias else None
    with watched(device) as watch:
        out = torch.empty(rows, columns, device=device)
        add_splits(sums, out, addend)
        watch.require_written(out=out)
    plain = sums.sum(0) if addend is None else sums.sum(0) + addend
    truth = sums.double().sum(0) if addend is None else sums.double().sum(0) + addend
    assert_as_accurate_as_torch(out, truth, plain)


def test_sums_of_integers_are_scaled_by_row_and_column(device: str) -> None:
    """2^30 + 2^30 - 2^30 passes through 2^31 - 2^30 only: exact to the last bit."""
    sums = torch.tensor([[[2**30, 3]], [[-(2**30), 4]], [[2**30 + 1, 5]]], dtype=torch.int32)
    out = torch.empty(1, 2, device=device)
    scales = torch.tensor([2.0], device=device), torch.tensor([0.5, 4.0], device=device)
    add_splits(sums.to(device), out, torch.tensor([0.0, 1.0], device=device), *scales)
    assert out.tolist() == [[float(2**30), 97.0]]


def test_offsets_of_rows_and_splits_are_64_bit() -> None:
    out = torch.zeros(1, 16)
    with sanitize():
        add_splits_kernel[(1, 1)](
            torch.ones(16), None, None, None, out, 16, 2**31, 2**31, 1, BLOCK=16
        )
    assert out.eq(1).all()


@pytest.mark.parametrize(
    ("tiles", "steps", "places", "count"),
    [(500, 64, 432, 1), (224, 32, 432, 1), (64, 112, 432, 6), (1, 32, 432, 8), (1, 3, 432, 1)],
)
def test_k_is_split_only_where_processors_would_be_idle(
    tiles: int, steps: int, places: int, count: int
) -> None:
    """And never into parts of less than four steps."""
    assert choose_splits(tiles, steps, places).count == count


@given(tiles=st.integers(1, 1000), steps=st.integers(1, 1000), places=st.integers(1, 1000))
def test_splits_take_every_step_once_and_none_is_empty(tiles: int, steps: int, places: int) -> None:
    splits = choose_splits(tiles, steps, places)
    assert (splits.count - 1) * splits.steps < steps <= splits.count * splits.steps
