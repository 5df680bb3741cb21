"""Choosing splits, by brute force; merging them, against float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import KernelInputError
from kernels.split_kv import (
    MAX_SPLITS,
    choose_num_splits,
    merge_splits,
    merge_splits_kernel,
    merge_splits_reference,
)
from kernels.testing.accuracy import assert_as_accurate_as_torch
from kernels.testing.sanitizer import sanitize
from tests.kernels.on_device import first_grid, watched
from tests.kernels.strategies import DTYPES, SEEDS, rows_of

PROGRAMS = st.integers(1, 600)
PROCESSORS = st.sampled_from([1, 7, 108, 132, 216, 264])
TILES = st.integers(1, 300)


def _time(programs: int, processors: int, tiles: int, splits: int) -> int:
    """Waves times tiles of a split: how long it takes where only tiles cost time."""
    return math.ceil(programs * splits / processors) * math.ceil(tiles / splits)


@settings(max_examples=500)
@given(PROGRAMS, PROCESSORS, TILES)
def test_the_chosen_number_is_the_smallest_that_fills_the_waves_nearly_as_well_as_any(
    programs: int, processors: int, tiles: int
) -> None:
    chosen = choose_num_splits(programs, processors, tiles)
    if programs >= 0.8 * processors:
        assert chosen == 1
        return
    allowed = [
        splits
        for splits in range(1, min(MAX_SPLITS, processors, tiles) + 1)
        if splits == 1 or math.ceil(tiles / splits) != math.ceil(tiles / (splits - 1))
    ]

    def filling(splits: int) -> float:
        return programs * splits / processors / math.ceil(programs * splits / processors)

    best = max(map(filling, allowed))
    assert chosen == min(splits for splits in allowed if filling(splits) >= 0.85 * best)


@settings(max_examples=500)
@given(PROGRAMS, PROCESSORS, TILES)
def test_splitting_never_takes_longer(programs: int, processors: int, tiles: int) -> None:
    chosen = choose_num_splits(programs, processors, tiles)
    assert 1 <= chosen <= min(MAX_SPLITS, tiles)
    assert _time(programs, processors, tiles, chosen) <= _time(programs, processors, tiles, 1)


def test_one_long_sequence_of_eight_kv_heads_keeps_an_a100_busy() -> None:
    """8 programs for 108 processors; 13 splits make 104."""
    assert choose_num_splits(8, 108, 512) == 12  # 96 of 108 are within 85 % of 104
    assert choose_num_splits(8, 108, 4) == 4
    assert choose_num_splits(87, 108, 512) == 1
    assert choose_num_splits(0, 108, 512) == 1


@settings(max_examples=15)
@given(
    num_splits=st.sampled_from([1, 2, 3, 8, 9, 31, 128]),
    num_tokens=st.integers(0, 3),
    heads=st.sampled_from([1, 3, 8]),
    head_dim=st.sampled_from([1, 16, 40, 128, 256]),
    dtype=DTYPES,
    empty=st.sampled_from([0.0, 0.3, 1.0]),
    seed=SEEDS,
)
def test_merging_is_the_weighted_mean_of_the_splits_that_saw_keys(
    device: str, num_splits: int, num_tokens: int, heads: int, head_dim: int, dtype: torch.dtype,
    empty: float, seed: int,
) -> None:  # fmt: skip
    shape = (num_splits, num_tokens, heads)
    partial_out = rows_of((*shape, head_dim), torch.float32, seed)
    partial_lse = rows_of(shape, torch.float32, seed + 1, scale=20.0)
    gone = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < empty
    partial_lse[gone], partial_out[gone] = float("-inf"), float("nan")
    out = torch.empty(num_tokens, heads, head_dim, dtype=dtype, device=device)
    with watched(device) as watch:
        merge_splits(partial_out.to(device), partial_lse.to(device), out)
        watch.require_written(out=out)
    truth = merge_splits_reference(partial_out.double(), partial_lse.double())
    same = merge_splits_reference(partial_out, partial_lse).to(dtype)
    assert_as_accurate_as_torch(out, truth, same)
    assert out[gone.all(0).to(device)].eq(0).all()


def test_every_row_is_merged_into_its_own(device: str) -> None:
    """vllm-project/flash-attention#176: a batch of two folded onto its first row."""
    partial_out = torch.arange(4.0, device=device).view(1, 2, 2, 1).expand(3, 2, 2, 1).contiguous()
    out = torch.empty(2, 2, 1, device=device)
    merge_splits(partial_out, torch.zeros(3, 2, 2, device=device), out)
    assert out.flatten().tolist() == [0, 1, 2, 3]


def test_more_than_65535_rows_fit_the_grid() -> None:
    """They lie along its x axis: y and z end at 65,535."""
    partial, lse = torch.zeros(2, 65_537, 1, 1), torch.zeros(2, 65_537, 1)
    assert first_grid(lambda: merge_splits(partial, lse, partial[0])) == (65_537, 1, 1)


def test_offsets_of_splits_are_64_bit() -> None:
    """Splits 2^30 rows apart, all but the first masked off: in int32 the third would wrap."""
    partial_out, out = torch.arange(16.0), torch.zeros(16)
    with sanitize():
        merge_splits_kernel[(1,)](
            partial_out, torch.zeros(1), out, 16, 16, 2**30, 1, 1,
            HEAD_DIM=16, BLOCK_D=16, SPLITS=4, CHUNK=8,
        )  # fmt: skip
    assert torch.equal(out, partial_out)


def test_nan_in_a_split_stays_to_be_seen(device: str) -> None:
    partial_out, partial_lse = torch.zeros(2, 1, 1, 16), torch.zeros(2, 1, 1)
    partial_lse[1] = float("nan")
    out = torch.empty(1, 1, 16, device=device)
    merge_splits(partial_out.to(device), partial_lse.to(device), out)
    assert out.isnan().all()


def test_wrong_tensors_are_refused_with_what_was_wanted(device: str) -> None:
    partial, lse = torch.zeros(2, 3, 4, 16, device=device), torch.zeros(2, 3, 4, device=device)
    out = torch.zeros(3, 4, 16, device=device)
    with pytest.raises(KernelInputError, match="partial_out is float16, wanted float32"):
        merge_splits(partial.half(), lse, out)
    with pytest.raises(KernelInputError, match="partial_lse is float64, wanted float32"):
        merge_splits(partial, lse.double(), out)
    with pytest.raises(KernelInputError, match=r"partial_out has shape \(3, 4, 16\), wanted"):
        merge_splits(partial[0], lse, out)
    with pytest.raises(KernelInputError, match="partial_lse has shape"):
        merge_splits(partial, lse[:1], out)
    with pytest.raises(KernelInputError, match="out has shape"):
        merge_splits(partial, lse, out[:1])
    with pytest.raises(KernelInputError, match="must be contiguous"):
        merge_splits(partial.transpose(1, 2).contiguous().transpose(1, 2), lse, out)
    with pytest.raises(KernelInputError, match="elements of a head of out must be adjacent"):
        merge_splits(partial, lse, torch.zeros(3, 16, 4, device=device).transpose(1, 2))
