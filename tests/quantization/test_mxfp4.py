"""MXFP4 as ml_dtypes, torchao and gguf have it: codes, and scales of every mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infra_lab.errors import UsageError
from infra_lab.quantization.mxfp4 import MODES, e2m1_codes, quantize_mxfp4, scale_exponents
from tests.quantization.inputs import SEEDS, random_weight

ml_dtypes = pytest.importorskip("ml_dtypes")


def test_every_tie_and_its_neighbours_round_as_in_ml_dtypes() -> None:
    """.25 -> 0, .75 -> 1, 1.25 -> 1, 1.75 -> 2, 2.5 -> 2, 3.5 -> 4, 5 -> 4."""
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    ties = (table[1:] + table[:-1]) / 2
    far = torch.full_like(ties, 1e9)
    around = torch.cat(
        [table, ties, torch.nextafter(ties, far), torch.nextafter(ties, -far), far[:1]]
    )
    around = torch.cat([around, -around])
    wanted = around.clamp(-6, 6).numpy().astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    assert torch.equal(e2m1_codes(around), torch.from_numpy(wanted))
    rounded = [float(table[int(code)]) for code in e2m1_codes(ties)]
    assert rounded == [0, 1, 1, 2, 2, 4, 4]


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=30)
@given(seed=SEEDS, exponent=st.integers(-30, 30))
def test_scales_and_codes_are_those_of_torchao(mode: Any, seed: int, exponent: int) -> None:
    mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    weight = random_weight(4, 96, seed, torch.float32) * 10.0**exponent
    weight[0, ::32] = torch.tensor([2.0, 4.0, 6.0])  # exact powers, and the largest code
    weight[0, 1::32] = 0
    theirs = mx.MXTensor.to_mx(weight, torch.float4_e2m1fn_x2, 32, mx.ScaleCalculationMode(mode))
    ours = quantize_mxfp4(weight, mode)
    exponents = theirs.scale.view(torch.uint8).int() - 127
    assert torch.equal(ours.scales, torch.exp2(exponents.double()).float().view(4, 3))
    packed = theirs.qdata.view(torch.uint8)
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(-2)
    assert torch.equal(ours.codes, codes)


@pytest.mark.parametrize(
    ("largest", "powers"),
    [  # floor, even, ceil, rceil
        (7.9, (0, 1, 1, 1)),
        (4.0, (0, 0, 0, 0)),  # an exact power of two is not doubled
        (6.0, (0, 0, 1, 0)),
        (6.1, (0, 0, 1, 1)),
        (7.0, (0, 1, 1, 1)),
        (2.0, (-1, -1, -1, -1)),
        (0.0, (-127,) * 4),
        (1e-38, (-127,) * 4),
        (3e38, (125, 126, 126, 126)),
    ],
)
def test_each_mode_is_what_it_says(largest: float, powers: tuple[int, ...]) -> None:
    """vLLM PR#43557, mlx PR#4353, ORT PR#32122: 7.9, and exact powers of two."""
    got = tuple(int(scale_exponents(torch.tensor([largest]), mode)) for mode in MODES)
    assert got == powers


@settings(max_examples=25)
@given(SEEDS, st.integers(-20, 20))
def test_only_floor_and_even_saturate(seed: int, exponent: int) -> None:
    weight = random_weight(6, 64, seed) * 2.0**exponent * 1.7
    for mode in MODES:
        quantized = quantize_mxfp4(weight, mode)
        ratio = (weight.view(6, 2, 32).abs().amax(-1) / quantized.scales).max()
        assert ratio <= {"floor": 8, "even": 7, "ceil": 4, "rceil": 6}[mode]


@settings(max_examples=25)
@given(SEEDS, st.sampled_from(MODES))
def test_what_was_rounded_rounds_to_itself(seed: int, mode: Any) -> None:
    """With its own scales: a mode may choose others for the rounded numbers."""
    quantized = quantize_mxfp4(random_weight(3, 64, seed), mode)
    blocks = quantized.dequantize().view(3, 2, 32) / quantized.scales[..., None]
    assert torch.equal(e2m1_codes(blocks).view(3, 64), quantized.codes)


def test_ggufs_own_quantizer_gives_the_same_numbers_where_it_takes_the_same_scale() -> None:
    """gguf takes floor(log2(largest)) - 2 as well."""
    gguf = pytest.importorskip("gguf")
    weight = random_weight(4, 64, 3, torch.float32)
    packed = gguf.quants.quantize(weight.numpy(), gguf.GGMLQuantizationType.MXFP4)
    theirs = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.MXFP4)
    ours = quantize_mxfp4(weight).dequantize()
    same = torch.from_numpy(theirs) == ours
    # Of two equally near numbers gguf takes the lower.
    assert same.float().mean() > 0.99


def test_zero_blocks_and_short_last_blocks_are_fine() -> None:
    weight = random_weight(2, 70, 0, torch.float32)
    weight[:, :32] = 0
    quantized = quantize_mxfp4(weight)
    assert not quantized.dequantize()[:, :32].any()
    alone = quantize_mxfp4(weight[:, 64:])
    assert torch.equal(quantized.dequantize()[:, 64:], alone.dequantize())


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(UsageError, match="floor, even, ceil, rceil, not 'nearest'"):
        quantize_mxfp4(torch.ones(2, 32), "nearest")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not finite"):
        quantize_mxfp4(torch.full((1, 32), float("inf")))
