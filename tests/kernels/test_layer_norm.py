"""LayerNorm against float64, under the sanitizer."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import KernelInputError
from kernels.layer_norm import (
    add_layer_norm,
    layer_norm,
    layer_norm_kernel,
    layer_norm_reference,
)
from kernels.norm_rows import MAX_COLUMNS, choose_launch
from kernels.testing.accuracy import assert_as_accurate_as_torch
from tests.kernels.on_device import first_grid, rows_on, watched
from tests.kernels.strategies import COLUMNS, DTYPES, ROWS, SEEDS

EPS = 1e-5


@settings(max_examples=40)
@given(
    rows=ROWS,
    columns=COLUMNS,
    dtype=DTYPES,
    seed=SEEDS,
    padding=st.sampled_from([0, 1, 8]),
    has_weight=st.booleans(),
    has_bias=st.booleans(),
)
def test_rows_of_any_size_and_distance_are_as_accurate_as_torch(
    device: str,
    rows: int,
    columns: int,
    dtype: torch.dtype,
    seed: int,
    padding: int,
    has_weight: bool,
    has_bias: bool,
) -> None:
    x = rows_on(device, (rows, columns), dtype, seed, padding=padding)
    weight = rows_on(device, (columns,), dtype, seed + 1) if has_weight else None
    bias = rows_on(device, (columns,), dtype, seed + 2) if has_bias else None
    with watched(device) as watch:
        out = layer_norm(x, weight, bias, EPS)
        watch.require_written(out=out)
    truth = layer_norm_reference(
        x.double(),
        None if weight is None else weight.double(),
        None if bias is None else bias.double(),
        EPS,
    )
    assert_as_accurate_as_torch(out, truth, layer_norm_reference(x, weight, bias, EPS))


@settings(max_examples=30)
@given(rows=ROWS, columns=COLUMNS, dtype=DTYPES, seed=SEEDS, padding=st.sampled_from([0, 3]))
def test_the_fused_sum_is_the_sum_and_its_norm(
    device: str, rows: int, columns: int, dtype: torch.dtype, seed: int, padding: int
) -> None:
    """Bit for bit: what is normalised is the stream as it is kept."""
    x = rows_on(device, (rows, columns), dtype, seed)
    residual = rows_on(device, (rows, columns), dtype, seed + 1, padding=padding)
    weight = rows_on(device, (columns,), dtype, seed + 2)
    bias = rows_on(device, (columns,), dtype, seed + 3)
    total = residual + x
    with watched(device) as watch:
        out = add_layer_norm(x, residual, weight, bias, EPS)
        watch.require_written(out=out)
        alone = layer_norm(total, weight, bias, EPS)
    assert torch.equal(residual, total)
    assert torch.equal(out, alone)


@settings(max_examples=25)
@given(columns=COLUMNS, dtype=DTYPES, seed=SEEDS)
def test_a_row_does_not_depend_on_the_rows_beside_it(
    device: str, columns: int, dtype: torch.dtype, seed: int
) -> None:
    x = rows_on(device, (9, columns), dtype, seed)
    weight = rows_on(device, (columns,), dtype, seed + 1)
    together = layer_norm(x, weight, None, EPS)
    assert torch.equal(layer_norm(x[4:5], weight, None, EPS), together[4:5])
    spoiled = x.clone()
    spoiled[0] = float("nan")
    assert torch.equal(layer_norm(spoiled, weight, None, EPS)[1:], together[1:])


@settings(max_examples=25)
@given(seed=SEEDS, columns=st.sampled_from([2, 16, 256, 1024]), shift=st.integers(-64, 64))
def test_a_constant_added_to_a_row_does_not_matter(
    device: str, seed: int, columns: int, shift: int
) -> None:
    """Exactly so for small whole numbers in rows of a power of two, whose sums do not round."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-64, 64, (2, columns), generator=generator).float().to(device)
    assert torch.equal(layer_norm(x + shift, None, None, EPS), layer_norm(x, None, None, EPS))


@settings(max_examples=25)
@given(columns=COLUMNS, seed=SEEDS, power=st.integers(-20, 20))
def test_without_eps_the_scale_of_a_row_does_not_matter(
    device: str, columns: int, seed: int, power: int
) -> None:
    """Exactly so for powers of two, whose products round alike."""
    x = rows_on(device, (2, max(2, columns)), torch.float32, seed)
    assert torch.equal(
        layer_norm(x * 2.0 ** (2 * power), None, None, 0.0), layer_norm(x, None, None, 0.0)
    )


def test_a_large_mean_does_not_drown_the_variance(device: str) -> None:
    """10,000 +- 1: mean(x^2) - mean^2 loses every bit of the 1 in fp32."""
    x = 10_000 + torch.tensor([1.0, -1.0], device=device).repeat(2, 32)
    assert (x.square().mean(-1) - x.mean(-1).square()).sub(1).abs().min() > 0.5
    out = layer_norm(x, None, None, 0.0)
    assert torch.equal(out, torch.tensor([1.0, -1.0], device=device).repeat(2, 32))


def test_half_precision_squares_do_not_overflow(device: str) -> None:
    """300^2 has no fp16."""
    x = torch.tensor([300.0, -300.0], device=device).repeat(2, 32).half()
    assert torch.equal(layer_norm(x, None, None, EPS), x / 300)


def test_a_constant_row_becomes_the_bias(device: str) -> None:
    """Also where its sum rounds: 96 times 0.1 over 96 is 0.1 but for its last bits."""
    bias = rows_on(device, (96,), torch.float32, 0)
    out = layer_norm(torch.full((2, 96), 0.1, device=device), None, bias, EPS)
    assert (out - bias).abs().max() < 1e-5
    assert torch.equal(layer_norm(torch.zeros(2, 96, device=device), None, bias, EPS)[0], bias)


def test_a_row_of_one_element_is_the_bias(device: str) -> None:
    out = layer_norm(
        torch.tensor([[3.0]], device=device),
        torch.ones(1, device=device),
        torch.tensor([0.25], device=device),
        EPS,
    )
    assert out.tolist() == [[0.25]]


def test_nan_stays_in_its_row(device: str) -> None:
    x = rows_on(device, (3, 65), torch.float32, 0)
    x[1, 64] = float("nan")
    out = layer_norm(x, None, None, EPS)
    assert out[1].isnan().all()
    assert not out[[0, 2]].isnan().any()


def test_leading_dimensions_are_rows(device: str) -> None:
    x = rows_on(device, (2, 3, 5, 64), torch.bfloat16, 0)
    out = layer_norm(x, None, None, EPS)
    assert out.shape == x.shape
    assert torch.equal(out.view(30, 64), layer_norm(x.view(30, 64), None, None, EPS))


def test_weight_and_bias_may_be_of_other_float_types(device: str) -> None:
    x = rows_on(device, (2, 64), torch.bfloat16, 0)
    weight = rows_on(device, (64,), torch.float32, 1)
    bias = rows_on(device, (64,), torch.float16, 2)
    out = layer_norm(x, weight, bias, EPS)
    truth = layer_norm_reference(x.double(), weight.double(), bias.double(), EPS)
    peer = layer_norm_reference(x.float(), weight, bias, EPS).bfloat16()
    assert_as_accurate_as_torch(out, truth, peer)


def test_an_empty_batch_launches_nothing(device: str) -> None:
    assert layer_norm(torch.zeros(0, 64, device=device), None, None, EPS).shape == (0, 64)


def test_more_than_65535_rows_fit_the_grid(device: str) -> None:
    """They lie along its x axis: y and z end at 65,535."""
    bias = torch.tensor([0.5], device=device)
    assert layer_norm(torch.ones(70_000, 1, device=device), None, bias, EPS).eq(0.5).all()
    assert choose_launch(MAX_COLUMNS).grid(2**20) == (2**20,)
    row = torch.zeros(1, 1024).half()
    assert first_grid(lambda: layer_norm(row.expand(65_537, -1), None, None, EPS)) == (65_537, 1, 1)


def test_row_offsets_are_64_bit(device: str) -> None:
    """Four rows 2^30 elements apart, all but the first masked off: in int32 rows 2 and 3 wrap."""
    x, out = torch.arange(256.0, device=device), torch.zeros(256, device=device)
    with watched(device):
        layer_norm_kernel[(1,)](
            x, out, x, x, out, 2**30, 2**30, 2**30, 1, 256, 0.0,
            ROWS=4, COLUMNS=256, ADD=False, HAS_WEIGHT=False, HAS_BIAS=False,
        )  # fmt: skip
    assert torch.equal(out, layer_norm(x[None], None, None, 0.0)[0])


def test_wrong_tensors_are_refused_with_what_was_wanted(device: str) -> None:
    x, weight = torch.zeros(2, 64, device=device), torch.ones(64, device=device)
    with pytest.raises(KernelInputError, match=r"layer_norm: weight has shape \(32,\), wanted"):
        layer_norm(x, weight[:32], None, EPS)
    with pytest.raises(KernelInputError, match=r"bias has shape \(64, 1\), wanted \(64,\)"):
        layer_norm(x, weight, weight[:, None], EPS)
    with pytest.raises(KernelInputError, match="bias is int64, wanted float16 or"):
        layer_norm(x, weight, weight.long(), EPS)
    with pytest.raises(KernelInputError, match="bias must be contiguous"):
        layer_norm(x, weight, torch.ones(128, device=device)[::2], EPS)
    with pytest.raises(KernelInputError, match=r"must be adjacent.*contiguous\(\)"):
        layer_norm(torch.zeros(64, 2, device=device).t(), weight, None, EPS)
    with pytest.raises(KernelInputError, match="rows of 16385, wanted 1 to 16384"):
        layer_norm(torch.zeros(1, 16385, device=device), None, None, EPS)
    with pytest.raises(KernelInputError, match="residual has shape"):
        add_layer_norm(x, x[:1], weight, None, EPS)
    with pytest.raises(KernelInputError, match="residual is float16, wanted float32"):
        add_layer_norm(x, x.half(), weight, None, EPS)
    with pytest.raises(KernelInputError, match=r"one device, not x on .*bias on meta"):
        layer_norm(x, weight, weight.to("meta"), EPS)
