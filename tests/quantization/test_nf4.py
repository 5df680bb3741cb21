"""NF4 bit for bit as bitsandbytes makes it, double quantization included."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from infra_lab.errors import UsageError
from infra_lab.quantization.nf4 import quantize_nf4
from tests.quantization.inputs import SEEDS, random_weight

bitsandbytes = pytest.importorskip("bitsandbytes.functional")


def unpacked(packed: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The first of two in the high nibble."""
    flat = packed.flatten()
    return torch.stack([flat >> 4, flat & 15], 1).view(shape)


@settings(max_examples=40)
@given(SEEDS, st.sampled_from([32, 64, 128]), st.booleans(), st.integers(-30, 30))
@example(0, 64, True, 0)
def test_codes_and_scales_are_those_of_bitsandbytes(
    seed: int, block_size: int, double: bool, exponent: int
) -> None:
    weight = random_weight(24, 256, seed, torch.float32) * 10.0**exponent
    weight[3] = 0
    weight[5] = weight[5, 0]
    ours = quantize_nf4(weight, double, block_size)
    packed, state = bitsandbytes.quantize_4bit(
        weight, blocksize=block_size, quant_type="nf4", compress_statistics=double
    )
    assert torch.equal(ours.codes, unpacked(packed, weight.shape))
    if not double:
        assert torch.equal(ours.scales.flatten(), state.absmax)
        assert torch.equal(ours.dequantize(), bitsandbytes.dequantize_4bit(packed, state))
        assert not ours.dequantize()[3].any()
        return
    # Near the middle of two of its 256 codes bitsandbytes' CPU code takes the other now and then.
    largest = bitsandbytes.dequantize_blockwise(state.absmax, state.state2) + state.offset
    off = (ours.scales.flatten() - largest).abs()
    assert (off > 0).float().mean() <= 0.05
    assert off.max() <= 0.02 * float(state.state2.absmax.max())


def test_midpoints_go_to_the_lower_number_as_theirs_do() -> None:
    table = quantize_nf4(torch.ones(1, 64)).values
    weight = torch.ones(1, 64)
    weight[0, :15] = (table[1:] + table[:-1]) / 2
    packed, _ = bitsandbytes.quantize_4bit(weight, blocksize=64, quant_type="nf4")
    ours = quantize_nf4(weight)
    assert torch.equal(ours.codes, unpacked(packed, weight.shape))
    assert ours.codes[0, :15].tolist() == list(range(15))


@given(SEEDS)
def test_what_was_rounded_rounds_to_itself(seed: int) -> None:
    quantized = quantize_nf4(random_weight(3, 128, seed, torch.float32))
    assert torch.equal(quantize_nf4(quantized.dequantize()).codes, quantized.codes)


def test_a_normal_weight_loses_less_than_with_evenly_spaced_numbers() -> None:
    from infra_lab.quantization.integer import IntegerScheme
    from infra_lab.quantization.rtn import round_to_nearest

    weight = random_weight(64, 512, 0, torch.float32)
    even = round_to_nearest(weight, IntegerScheme(4, symmetric=True, granularity=64))
    errors = [
        float((quantized.dequantize() - weight).square().mean())
        for quantized in (quantize_nf4(weight), even)
    ]
    assert errors[0] < 0.9 * errors[1]


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(UsageError, match="blocks of 64 do not divide rows of 100"):
        quantize_nf4(torch.ones(2, 100))
    with pytest.raises(UsageError, match="not finite"):
        quantize_nf4(torch.full((1, 64), float("nan")))
