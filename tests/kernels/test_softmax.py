"""Softmax against float64, under the sanitizer."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import KernelInputError
from kernels.softmax import (
    CHUNK,
    MAX_REGISTER_COLUMNS,
    choose_launch,
    softmax,
    softmax_kernel,
    softmax_merge_kernel,
    softmax_parts_kernel,
    softmax_reference,
)
from kernels.testing.accuracy import assert_as_accurate_as_torch
from tests.kernels.on_device import first_grid, rows_on, watched
from tests.kernels.strategies import COLUMNS, DTYPES, ROWS, SEEDS

INF, NAN = float("inf"), float("nan")
# The longest row in registers, the shortest in chunks, a whole number of chunks, and beyond.
EDGES = [MAX_REGISTER_COLUMNS, MAX_REGISTER_COLUMNS + 1, 3 * CHUNK, 3 * CHUNK + 257]


def assert_right(x: torch.Tensor, out: torch.Tensor, scale: float = 1.0, log: bool = False) -> None:
    assert_as_accurate_as_torch(
        out,
        softmax_reference(x.double(), scale=scale, log=log),
        softmax_reference(x, scale=scale, log=log),
    )


@settings(max_examples=50)
@given(
    rows=ROWS,
    columns=COLUMNS,
    dtype=DTYPES,
    seed=SEEDS,
    padding=st.sampled_from([0, 1, 8]),
    spread=st.sampled_from([0.01, 1.0, 30.0]),
    scale=st.sampled_from([1.0, 0.125, -0.5, 3.0]),
    log=st.booleans(),
)
def test_rows_of_any_size_and_distance_are_as_accurate_as_torch(
    device: str,
    rows: int,
    columns: int,
    dtype: torch.dtype,
    seed: int,
    padding: int,
    spread: float,
    scale: float,
    log: bool,
) -> None:
    x = rows_on(device, (rows, columns), dtype, seed, padding=padding, scale=spread)
    with watched(device) as watch:
        out = softmax(x, scale=scale, log=log)
        watch.require_written(out=out)
    assert_right(x, out, scale, log)


@settings(max_examples=12)
@given(columns=st.sampled_from(EDGES), dtype=DTYPES, seed=SEEDS, log=st.booleans())
def test_long_rows_in_chunks_are_as_accurate_as_torch(
    device: str, columns: int, dtype: torch.dtype, seed: int, log: bool
) -> None:
    x = rows_on(device, (2, columns), dtype, seed, padding=3, scale=4.0)
    with watched(device) as watch:
        out = softmax(x, log=log)
        watch.require_written(out=out)
    assert_right(x, out, log=log)


def test_a_vocabulary_of_151936_is_as_accurate_as_torch(device: str) -> None:
    x = rows_on(device, (2, 151_936), torch.bfloat16, 0, scale=5.0)
    out = softmax(x, dtype=torch.float32)
    truth = softmax_reference(x.double())
    assert_as_accurate_as_torch(out, truth, softmax_reference(x.float()))
    assert (out.double().sum(-1) - 1).abs().max() < 1e-6


@pytest.mark.slow
@settings(max_examples=40)
@given(
    columns=st.one_of(
        st.integers(1, 3 * CHUNK), st.sampled_from([49_152, 128_256, 262_144, 1_000_003])
    ),
    rows=st.integers(1, 3),
    dtype=DTYPES,
    seed=SEEDS,
    log=st.booleans(),
)
def test_rows_up_to_a_million_are_as_accurate_as_torch(
    device: str, columns: int, rows: int, dtype: torch.dtype, seed: int, log: bool
) -> None:
    x = rows_on(device, (rows, columns), dtype, seed, padding=5, scale=6.0)
    with watched(device) as watch:
        out = softmax(x, log=log)
        watch.require_written(out=out)
    assert_right(x, out, log=log)


@settings(max_examples=30)
@given(
    columns=st.sampled_from([1, 3, 64, 257, 1025]),
    seed=SEEDS,
    shift=st.integers(-100_000, 100_000),
    log=st.booleans(),
)
def test_a_constant_added_to_a_row_does_not_matter(
    device: str, columns: int, seed: int, shift: int, log: bool
) -> None:
    """Exactly: whole numbers below 2^24 lose nothing in fp32, and only differences count."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-50, 50, (2, columns), generator=generator).float().to(device)
    assert torch.equal(softmax(x + shift, log=log), softmax(x, log=log))


@settings(max_examples=20)
@given(columns=COLUMNS, seed=SEEDS, power=st.integers(-6, 6))
def test_a_scale_is_a_multiplication_beforehand(
    device: str, columns: int, seed: int, power: int
) -> None:
    """Exactly so for powers of two."""
    x = rows_on(device, (2, columns), torch.float32, seed)
    scale = 2.0**power
    assert torch.equal(softmax(x, scale=scale), softmax(x * scale))
    assert torch.equal(softmax(x, scale=-scale), softmax(-x * scale))


@settings(max_examples=20)
@given(columns=COLUMNS, dtype=DTYPES, seed=SEEDS)
def test_a_row_does_not_depend_on_the_rows_beside_it(
    device: str, columns: int, dtype: torch.dtype, seed: int
) -> None:
    x = rows_on(device, (9, columns), dtype, seed)
    together = softmax(x)
    assert torch.equal(softmax(x[4:5]), together[4:5])
    spoiled = x.clone()
    spoiled[0] = NAN
    assert torch.equal(softmax(spoiled)[1:], together[1:])


@pytest.mark.parametrize("columns", [5, 64, 3 * CHUNK])
@pytest.mark.parametrize("log", [False, True])
def test_masked_elements_get_nothing(device: str, columns: int, log: bool) -> None:
    """Also where whole chunks are masked, before and after the others."""
    x = rows_on(device, (1, columns), torch.float32, 0)
    kept = columns // 2
    masked = torch.full_like(x, -INF)
    masked[:, kept : kept + 2] = x[:, kept : kept + 2]
    out = softmax(masked, log=log)
    assert torch.equal(out[:, kept : kept + 2], softmax(x[:, kept : kept + 2].clone(), log=log))
    rest = torch.cat((out[:, :kept], out[:, kept + 2 :]), 1)
    assert rest.eq(-INF if log else 0.0).all()


@pytest.mark.parametrize("columns", [1, 7, 64, 1025, 3 * CHUNK])
def test_a_row_of_nothing_but_minus_infinity_is_zero(device: str, columns: int) -> None:
    """Attention's convention; torch gives NaN."""
    x = torch.full((2, columns), -INF, device=device)
    x[1, columns // 2] = 0.0
    assert softmax(x)[0].eq(0).all()
    assert softmax(x, log=True)[0].isneginf().all()
    assert softmax(x)[1].sum() == 1


@pytest.mark.parametrize("columns", [3, 65, 2 * CHUNK + 100])
@pytest.mark.parametrize("culprit", [NAN, INF])
@pytest.mark.parametrize("log", [False, True])
def test_nan_and_infinity_spoil_their_row_as_in_torch(
    device: str, columns: int, culprit: float, log: bool
) -> None:
    x = rows_on(device, (2, columns), torch.float32, 0)
    x[0, columns - 1] = culprit
    out = softmax(x, log=log)
    plain = torch.log_softmax(x, -1) if log else torch.softmax(x, -1)
    assert torch.equal(out.isnan(), plain.isnan())
    assert not out[1].isnan().any()


def test_a_row_of_one_element_is_one(device: str) -> None:
    x = torch.tensor([[3.0], [-4e4]], device=device).half()
    assert softmax(x).eq(1).all()
    assert softmax(x, log=True).eq(0).all()


def test_large_values_do_not_overflow(device: str) -> None:
    x = torch.tensor([[3e38, -3e38, 3e38]], device=device)
    assert softmax(x).tolist() == [[0.5, 0.0, 0.5]]
    assert math.isclose(softmax(x, log=True)[0, 0].item(), -math.log(2), rel_tol=1e-6)


def test_a_wider_result_is_rounded_only_there(device: str) -> None:
    x = rows_on(device, (3, 300), torch.bfloat16, 0)
    out = softmax(x, dtype=torch.float32)
    assert torch.equal(out.bfloat16(), softmax(x))
    assert_as_accurate_as_torch(out, softmax_reference(x.double()), softmax_reference(x.float()))


def test_leading_dimensions_are_rows(device: str) -> None:
    x = rows_on(device, (2, 3, 40), torch.float16, 0)
    assert torch.equal(softmax(x).view(6, 40), softmax(x.view(6, 40)))


@pytest.mark.parametrize("shape", [(0, 64), (3, 0), (0, 20_000), (2, 0, 5)])
def test_an_empty_batch_launches_nothing(device: str, shape: tuple[int, ...]) -> None:
    assert softmax(torch.zeros(shape, device=device)).shape == shape


def test_more_than_65535_rows_fit_the_grid(device: str) -> None:
    """They lie along its x axis: y and z end at 65,535."""
    assert softmax(torch.zeros(70_000, 1, device=device)).eq(1).all()
    row = torch.zeros(1, 1025).half()
    assert first_grid(lambda: softmax(row.expand(65_537, -1))) == (65_537, 1, 1)


@pytest.mark.slow
def test_more_than_65535_programs_fit_the_grid(device: str) -> None:
    x = rows_on(device, (1, 1024), torch.float16, 0)
    out = softmax(x.expand(65_537, -1))
    assert torch.equal(out, softmax(x).expand(65_537, -1))


def test_row_offsets_are_64_bit(device: str) -> None:
    """Two rows 2^31 elements apart, the second masked off; then a part's row likewise."""
    x, out = torch.arange(512.0, device=device), torch.zeros(512, device=device)
    with watched(device):
        softmax_kernel[(1,)](
            x, out, 2**31 - 1, 2**31 - 1, 1, 512, 1.0, ROWS=4, COLUMNS=512, LOG=False
        )
    assert torch.equal(out, softmax(x[None])[0])
    parts = torch.zeros(4, device=device)
    with watched(device):
        # No chunk of the third row holds a column: all lanes are masked off.
        softmax_parts_kernel[(4,)](x, parts, parts.clone(), 2**31 - 1, 1, 0, 1.0, CHUNK=512)
        softmax_merge_kernel[(4,)](
            x, parts, parts, out, 2**31 - 1, 2**31 - 1, 1, 0, 1.0, CHUNK=512, CHUNKS=1, LOG=False
        )
    assert parts.isneginf().all()


@pytest.mark.parametrize("columns", [1, 127, 4096, 16_384, 16_385, 151_936, 2**23])
def test_a_launch_covers_a_row(columns: int) -> None:
    launch = choose_launch(columns)
    assert launch.columns * launch.chunks >= columns
    assert launch.columns * (launch.chunks - 1) < columns
    assert launch.num_warps in (2, 4, 8, 16)
    assert launch.chunks == 1 or launch.rows == 1


def test_wrong_tensors_are_refused_with_what_was_wanted(device: str) -> None:
    x = torch.zeros(2, 64, device=device)
    with pytest.raises(KernelInputError, match="x is int32, wanted float16 or bfloat16 or float32"):
        softmax(x.int())
    for scale in (float("nan"), float("inf")):
        with pytest.raises(KernelInputError, match=f"scale is {scale}, wanted a finite number"):
            softmax(x, scale=scale)
    with pytest.raises(KernelInputError, match="the result is float64, wanted float16"):
        softmax(x, dtype=torch.float64)
    with pytest.raises(KernelInputError, match=r"must be adjacent.*contiguous\(\)"):
        softmax(x.t())
    with pytest.raises(KernelInputError, match="do not lie at one distance"):
        softmax(torch.zeros(4, 6, 64, device=device)[:, :5].transpose(0, 1))
    with pytest.raises(KernelInputError, match="rows of 8388609, wanted at most 8388608"):
        softmax(torch.empty(1, 2**23 + 1, dtype=torch.float16, device=device))
    with pytest.raises(KernelInputError, match="scalar"):
        softmax(torch.tensor(1.0, device=device))
    with pytest.raises(KernelInputError, match="x is on meta, a Triton kernel needs a GPU"):
        softmax(x.to("meta"))
