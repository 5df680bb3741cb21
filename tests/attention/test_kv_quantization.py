"""Codes and scales of keys and values: half a step at most, whatever the numbers are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infra_lab.attention.kv_quantization import (
    SMALLEST_SCALE,
    decoded,
    dequantize_channels,
    dequantize_rows,
    quantize_channels,
    quantize_rows,
)

ROUNDING = 2.0**-22  # of a few operations in fp32
CODES = pytest.mark.parametrize("code_dtype", [torch.int8, torch.float8_e4m3fn])
EDGES = [0.0, 1.0, -1.0, 127.0, 1e-45, 2e-38, 1e-30, 1e30, 3.4e38, -3.4e38]


@st.composite
def groups(draw: st.DrawFn) -> torch.Tensor:
    """Keys [groups, tokens, heads, head_dim] of every size, some channels constant or far out."""
    shape = tuple(draw(st.integers(1, limit)) for limit in (3, 16, 2, 8))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    keys = generator.standard_normal(shape) * 10.0 ** draw(st.integers(-40, 37))
    for _ in range(draw(st.integers(0, 3))):
        channel = draw(st.integers(0, shape[-1] - 1))
        kind = draw(st.sampled_from(["far out", "constant", "one edge"]))
        if kind == "far out":
            keys[..., channel] = keys[..., channel] * 1000 + keys.max() * 300
        elif kind == "constant":
            keys[..., channel] = draw(st.sampled_from(EDGES))
        else:
            keys[-1, -1, -1, channel] = draw(st.sampled_from(EDGES))
    return torch.from_numpy(np.clip(keys, -3.4e38, 3.4e38).astype(np.float32))


@CODES
@settings(max_examples=100)
@given(keys=groups())
def test_a_row_comes_back_within_half_a_step(code_dtype: torch.dtype, keys: torch.Tensor) -> None:
    codes, scales = quantize_rows(keys, code_dtype)
    error = (dequantize_rows(codes, scales).double() - keys.double()).abs()
    scale = scales.double()[..., None]
    if code_dtype == torch.int8:
        step = scale
    else:  # three bits of mantissa from 2^-6 on, and below it 2^-9
        step = torch.maximum(keys.double().abs() / 8, scale * 2**-9)
    tiny = 448 * SMALLEST_SCALE  # what is smaller reads back as zero
    assert (error <= step / 2 * (1 + ROUNDING) + scale * 128 * ROUNDING + tiny).all()


@settings(max_examples=150)
@given(keys=groups())
def test_a_channel_comes_back_within_half_a_step_of_its_own(keys: torch.Tensor) -> None:
    codes, ranges = quantize_channels(keys)
    error = (dequantize_channels(codes, ranges).double() - keys.double()).abs()
    scales = ranges[:, 1].double()[:, None]
    width = (keys.double().amax(1) - keys.double().amin(1))[:, None]
    largest = keys.double().abs().amax(1)[:, None]
    tiny = 127 * SMALLEST_SCALE
    assert (scales <= width / 254 * (1 + ROUNDING) + largest * ROUNDING).all()
    assert (error <= scales / 2 * (1 + ROUNDING) + largest * 2 * ROUNDING + tiny).all()


@CODES
def test_zeros_and_what_a_scale_cannot_hold_are_zero(code_dtype: torch.dtype) -> None:
    rows = torch.tensor([[0.0, -0.0], [1e-40, -1e-45]])
    codes, scales = quantize_rows(rows, code_dtype)
    assert not dequantize_rows(codes, scales).any()
    assert not scales.any()


def test_a_constant_channel_comes_back_exactly() -> None:
    keys = torch.tensor([3.3, -1e30, 1e-42, 0.0]).expand(2, 5, 3, 4)
    assert torch.equal(dequantize_channels(*quantize_channels(keys)), keys)


def test_per_channel_keys_survive_a_channel_that_per_token_keys_do_not() -> None:
    """The reason for KIVI: one channel of keys is often hundreds of times the others."""
    keys = torch.randn(4, 16, 2, 64, generator=torch.Generator().manual_seed(0))
    keys[..., 7] += 1000.0
    others = [channel for channel in range(64) if channel != 7]
    by_token = dequantize_rows(*quantize_rows(keys, torch.int8))[..., others]
    by_channel = dequantize_channels(*quantize_channels(keys))[..., others]
    size = keys[..., others].square().mean().sqrt()
    assert (by_token - keys[..., others]).square().mean().sqrt() > 0.95 * size  # nothing is left
    assert (by_channel - keys[..., others]).square().mean().sqrt() < 0.01 * size


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_bad_number_spoils_its_row_or_channel_and_nothing_else(bad: float) -> None:
    keys = torch.randn(2, 3, 2, 4, generator=torch.Generator().manual_seed(0))
    keys[1, 2, 0, 3] = bad
    for code_dtype in (torch.int8, torch.float8_e4m3fn):
        rows = dequantize_rows(*quantize_rows(keys, code_dtype))
        spoilt = rows.isnan()
        assert spoilt[1, 2, 0].all()
        assert spoilt.sum() == 4
    spoilt = dequantize_channels(*quantize_channels(keys)).isnan()
    assert spoilt[1, :, 0, 3].all()
    assert spoilt.sum() == 3


def test_codes_are_decoded_exactly() -> None:
    bits = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(decoded(bits.view(torch.int8)), bits.view(torch.int8).float())
    numbers = bits[(bits & 0x7F) != 0x7F].view(torch.float8_e4m3fn)
    assert torch.equal(decoded(numbers), numbers.float())


@pytest.fixture(scope="module")
def kernels_rows() -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    pytest.importorskip("triton")
    from kernels.row_quantization import quantize_rows_reference

    return quantize_rows_reference


@CODES
@settings(max_examples=100)
@given(keys=groups(), bad=st.sampled_from([0.0, float("nan"), float("inf")]))
def test_rows_are_those_of_the_kernels_bit_for_bit(
    kernels_rows: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    code_dtype: torch.dtype,
    keys: torch.Tensor,
    bad: float,
) -> None:
    keys[0, 0, 0, 0] = bad
    ours, theirs = quantize_rows(keys, code_dtype), kernels_rows(keys, code_dtype)
    assert torch.equal(ours[0].view(torch.int8), theirs[0].view(torch.int8))
    assert torch.equal(ours[1], theirs[1]) or torch.equal(ours[1].isfinite(), theirs[1].isfinite())
