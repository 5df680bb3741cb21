"""RMSNorm against float64, under the sanitizer."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import KernelInputError
from kernels.norm_rows import choose_launch
from kernels.rms_norm import add_rms_norm, rms_norm, rms_norm_kernel, rms_norm_reference
from kernels.testing.accuracy import assert_as_accurate_as_torch
from kernels.testing.sanitizer import sanitize
from tests.kernels.on_device import first_grid, rows_on, watched
from tests.kernels.strategies import COLUMNS, DTYPES, ROWS, SEEDS

EPS = 1e-5


@settings(max_examples=40)
@given(rows=ROWS, columns=COLUMNS, dtype=DTYPES, seed=SEEDS, padding=st.sampled_from([0, 1, 8]))
def test_rows_of_any_size_and_distance_are_as_accurate_as_torch(
    device: str, rows: int, columns: int, dtype: torch.dtype, seed: int, padding: int
) -> None:
    x = rows_on(device, (rows, columns), dtype, seed, padding=padding)
    weight = rows_on(device, (columns,), dtype, seed + 1)
    with watched(device) as watch:
        out = rms_norm(x, weight, EPS)
        watch.require_written(out=out)
    assert_as_accurate_as_torch(
        out,
        rms_norm_reference(x.double(), weight.double(), EPS),
        rms_norm_reference(x, weight, EPS),
    )


@settings(max_examples=40)
@given(rows=ROWS, columns=COLUMNS, dtype=DTYPES, seed=SEEDS, padding=st.sampled_from([0, 3]))
def test_the_fused_sum_is_the_sum_and_its_norm(
    device: str, rows: int, columns: int, dtype: torch.dtype, seed: int, padding: int
) -> None:
    """Bit for bit: what is normalised is the stream as it is kept."""
    x = rows_on(device, (rows, columns), dtype, seed)
    residual = rows_on(device, (rows, columns), dtype, seed + 1, padding=padding)
    weight = rows_on(device, (columns,), dtype, seed + 2)
    total = residual + x
    with watched(device) as watch:
        out = add_rms_norm(x, residual, weight, EPS)
        watch.require_written(out=out)
        alone = rms_norm(total, weight, EPS)
    assert torch.equal(residual, total)
    assert torch.equal(out, alone)


@settings(max_examples=40)
@given(columns=COLUMNS, dtype=DTYPES, seed=SEEDS)
def test_a_row_does_not_depend_on_the_rows_beside_it(
    device: str, columns: int, dtype: torch.dtype, seed: int
) -> None:
    x = rows_on(device, (9, columns), dtype, seed)
    weight = rows_on(device, (columns,), dtype, seed + 1)
    together = rms_norm(x, weight, EPS)
    assert torch.equal(rms_norm(x[4:5], weight, EPS), together[4:5])
    spoiled = x.clone()
    spoiled[0] = float("nan")
    assert torch.equal(rms_norm(spoiled, weight, EPS)[1:], together[1:])


@settings(max_examples=40)
@given(columns=COLUMNS, seed=SEEDS, power=st.integers(-20, 20))
def test_without_eps_the_scale_of_a_row_does_not_matter(
    device: str, columns: int, seed: int, power: int
) -> None:
    """Exactly so for powers of two, whose products round alike."""
    x = rows_on(device, (2, columns), torch.float32, seed) + 2
    weight = rows_on(device, (columns,), torch.float32, seed + 1)
    assert torch.equal(rms_norm(x * 2.0 ** (2 * power), weight, 0.0), rms_norm(x, weight, 0.0))


def test_half_precision_squares_do_not_overflow(device: str) -> None:
    """300^2 has no fp16; the same in plain fp16 torch gives zeros."""
    x = torch.full((2, 64), 300.0, device=device).half()
    out = rms_norm(x, torch.ones(64, device=device).half(), EPS)
    assert torch.equal(out, torch.ones_like(x))


def test_a_row_of_zeros_stays_zero(device: str) -> None:
    x = torch.zeros(2, 96, device=device)
    assert rms_norm(x, torch.ones(96, device=device), EPS).eq(0).all()


def test_leading_dimensions_are_rows(device: str) -> None:
    x = rows_on(device, (2, 3, 5, 64), torch.bfloat16, 0)
    weight = rows_on(device, (64,), torch.bfloat16, 1)
    out = rms_norm(x, weight, EPS)
    assert out.shape == x.shape
    assert torch.equal(out.view(30, 64), rms_norm(x.view(30, 64), weight, EPS))


def test_heads_inside_a_fused_projection_are_taken_as_they_are(device: str) -> None:
    """Query norms of Qwen3: [tokens, heads, 128] within rows of q, k and v."""
    qkv = rows_on(device, (3, 6 * 128), torch.bfloat16, 0)
    query = qkv[:, : 4 * 128].view(3, 4, 128)[:, 1]
    weight = rows_on(device, (128,), torch.bfloat16, 1)
    with watched(device):
        out = rms_norm(query, weight, EPS)
    assert torch.equal(out, rms_norm(query.contiguous(), weight, EPS))


def test_the_weight_may_be_of_another_float_type(device: str) -> None:
    x, weight = (
        rows_on(device, (2, 64), torch.bfloat16, 0),
        rows_on(device, (64,), torch.float32, 1),
    )
    out = rms_norm(x, weight, EPS)
    truth = rms_norm_reference(x.double(), weight.double(), EPS)
    assert_as_accurate_as_torch(out, truth, rms_norm_reference(x.float(), weight, EPS).bfloat16())


def test_an_empty_batch_launches_nothing(device: str) -> None:
    out = rms_norm(torch.zeros(0, 64, device=device), torch.ones(64, device=device), EPS)
    assert out.shape == (0, 64)


def test_more_than_65535_rows_fit_the_grid(device: str) -> None:
    """They lie along its x axis: y and z end at 65,535."""
    x, weight = torch.ones(65_537 * 8, 128, device=device), torch.ones(128, device=device)
    if device == "cpu":
        assert first_grid(lambda: rms_norm(x, weight, EPS)) == (65_537, 1, 1)
    else:
        torch.testing.assert_close(rms_norm(x, weight, 0.0), x)


def test_row_offsets_are_64_bit() -> None:
    """Four rows 2^30 elements apart, all but the first masked off: in int32 rows 2 and 3 wrap."""
    out = torch.zeros(256)
    with sanitize():
        rms_norm_kernel[(1,)](
            torch.ones(256), out, torch.ones(256), out, 2**30, 2**30, 2**30, 1, 256, 0.0,
            ROWS=4, COLUMNS=256, ADD=False,
        )  # fmt: skip
    assert out.eq(1).all()


@pytest.mark.parametrize("columns", [1, 127, 128, 4096, 5120, 16384])
def test_a_launch_covers_a_row_and_wastes_no_thread(columns: int) -> None:
    launch = choose_launch(columns)
    assert launch.columns >= columns
    assert launch.num_warps in (2, 4, 8, 16)
    assert launch.rows * launch.columns >= 32 * launch.num_warps


def test_wrong_tensors_are_refused_with_what_was_wanted() -> None:
    x, weight = torch.zeros(2, 64), torch.ones(64)
    with pytest.raises(KernelInputError, match=r"weight has shape \(32,\), wanted \(64,\)"):
        rms_norm(x, weight[:32], EPS)
    with pytest.raises(KernelInputError, match="x is int32, wanted float16 or bfloat16 or float32"):
        rms_norm(x.int(), weight, EPS)
    with pytest.raises(KernelInputError, match="weight is float64"):
        rms_norm(x, weight.double(), EPS)
    with pytest.raises(KernelInputError, match=r"must be adjacent.*contiguous\(\)"):
        rms_norm(torch.zeros(64, 2).t(), weight, EPS)
    with pytest.raises(KernelInputError, match="do not lie at one distance"):
        rms_norm(torch.zeros(4, 6, 64)[:, :5].transpose(0, 1), weight, EPS)
    with pytest.raises(KernelInputError, match="rows of 16385, wanted 1 to 16384"):
        rms_norm(torch.zeros(1, 16385), torch.ones(16385), EPS)
    with pytest.raises(KernelInputError, match="weight must be contiguous"):
        rms_norm(x, torch.ones(128)[::2], EPS)
    with pytest.raises(KernelInputError, match="scalar"):
        rms_norm(torch.tensor(1.0), weight, EPS)
    with pytest.raises(KernelInputError, match="residual has shape"):
        add_rms_norm(x, x[:1], weight, EPS)
    with pytest.raises(KernelInputError, match="residual is float16, wanted float32"):
        add_rms_norm(x, x.half(), weight, EPS)
    with pytest.raises(KernelInputError, match=r"one device, not x on cpu, .*weight on meta"):
        rms_norm(x, weight.to("meta"), EPS)
    with pytest.raises(KernelInputError, match="x is on meta, a Triton kernel needs a GPU"):
        rms_norm(x.to("meta"), weight.to("meta"), EPS)
