"""Rounding of keys, values, weights and activations: small cases by hand, and what must hold."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infra_lab.claims.experiments import activation_rounding as activations
from infra_lab.claims.experiments import kv_rounding as kv
from infra_lab.claims.experiments import weight_rounding as weights
from infra_lab.quantization.distance import relative_error

seeds = st.integers(0, 2**31)


def numbers(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@given(seeds, st.integers(1, 80), st.sampled_from([2, 4, 8]))
def test_keys_by_channel_come_back_within_half_a_step_and_the_last_group_untouched(
    seed: int, num_tokens: int, bits: int
) -> None:
    keys = numbers(seed, num_tokens, 2, 4)
    found = kv.by_channels(keys, bits)
    whole = num_tokens // kv.KEY_GROUP * kv.KEY_GROUP
    assert torch.equal(found[whole:], keys[whole:])
    if whole:
        groups = keys[:whole].unflatten(0, (-1, kv.KEY_GROUP))
        # Zero is a point of the grid: ranges reach it.
        high, low = groups.amax(1).clamp(min=0), groups.amin(1).clamp(max=0)
        steps = (high - low) / (2**bits - 1)
        apart = (found[:whole].unflatten(0, (-1, kv.KEY_GROUP)) - groups).abs().amax(1)
        assert (apart <= 0.5 * steps * (1 + 1e-4) + 1e-6).all()


def test_one_large_channel_spoils_its_head_and_not_its_neighbours() -> None:
    """A token's head of 1, 1 and 1000: int8's step is 1000 / 127, and 1 rounds to nothing."""
    keys = torch.tensor([[[1.0, 1.0, 1000.0]]]).expand(32, 1, 3).contiguous()
    by_row = kv.by_rows(keys, "int8")
    assert by_row[0, 0].tolist() == pytest.approx([0, 0, 1000])
    torch.testing.assert_close(kv.by_channels(keys, 8), keys)


def test_every_format_gives_back_its_shape_and_most_of_its_numbers() -> None:
    key_value = numbers(0, 64, 2, 3, 64)
    for name, one in kv.formats().items():
        found = one.both(key_value)
        assert found.shape == key_value.shape
        error = relative_error(found, key_value)
        assert error < {"8": 0.04, "4": 0.35, "2": 0.8}[name.partition("_")[0][-1]], name


def test_bits_are_those_of_the_codes_and_their_scales() -> None:
    """A head of 64: one fp32 scale is half a bit; a channel of 32 tokens has a scale and a zero."""
    bits = {name: one.bits for name, one in kv.formats().items()}
    assert bits["int8_tensor"] == 8
    assert bits["int8_row"] == bits["fp8_row"] == 8.5
    assert bits["int4_row"] == 5
    assert bits["int8_channel"] == 9.25
    assert bits["int4_channel"] == 5.5


def test_attention_through_an_exact_cache_has_no_error() -> None:
    exact = kv.KVFormat({"en": "", "zh": ""}, 32, lambda part: part, lambda part: part)
    queries, keys, values = (numbers(seed, 8, 4) for seed in range(3))
    assert kv.attention_error(queries, keys, values, exact) == 0
    grown = kv.with_large_channels(keys, 2, 10)
    assert torch.equal(grown[:, :2], keys[:, :2] * 10)
    assert torch.equal(grown[:, 2:], keys[:, 2:])


@given(seeds, st.integers(2, 8))
def test_a_scale_for_fewer_is_never_worse_on_average(seed: int, bits: int) -> None:
    matrix = numbers(seed, 16, 64)
    errors = [
        weights.mean_error([matrix], bits, granularity) for granularity in ("tensor", "channel", 8)
    ]
    assert errors[2] <= errors[1] * 1.05
    assert errors[1] <= errors[0] * 1.05


def test_rounding_by_hand() -> None:
    """Symmetric 4 bits have the codes -8 to 7 and a scale of 2 x 7.5 / 15 = 1: each of these is
    half a step off. Asymmetric ones from 0 to 15 lie on their grid."""
    matrix = torch.tensor([[7.5, -7.5, 0.5, -0.5]])
    assert weights.mean_error([matrix], 4, "channel") == pytest.approx(1 / 113**0.5)
    asymmetric = weights.mean_error([torch.arange(16.0)[None]], 4, "channel", symmetric=False)
    assert asymmetric == 0


def test_values_in_a_group_are_counted() -> None:
    matrix = torch.tensor([[1.0, 1, 2, 2, 5, 6, 7, 8]])
    assert weights.most_values_in_a_group([matrix], 4) == 4
    assert weights.most_values_in_a_group([matrix[:, :4]], 4) == 2


def test_a_gradient_passes_inside_the_range_and_not_outside() -> None:
    assert weights.straight_through() == (1, 0)


def layer(seed: int) -> weights.LayerInputs:
    inputs = numbers(seed, 256, 32)
    inputs[:, :2] *= 8
    mixed = inputs @ numbers(seed + 1, 32, 32)
    return weights.LayerInputs(numbers(seed + 2, 24, 32), mixed[:192], mixed[192:])


def test_columns_kept_whole_cost_nothing_when_they_are_all() -> None:
    found = weights.salient_columns(layer(0), 3, 16, 1.0, 0)
    assert found["none"] > 0
    assert found["salient"] == found["random"] == 0


@settings(max_examples=10)
@given(st.integers(0, 1000))
def test_methods_that_see_inputs_beat_rounding_on_inputs_that_go_together(seed: int) -> None:
    errors = weights.method_errors(layer(seed), 3, 16)
    assert set(errors) == {"rtn", "awq", "gptq", "ldlq"}
    assert errors["gptq"] < errors["rtn"]
    assert errors["ldlq"] < errors["rtn"]


@given(seeds)
def test_beside_a_hundred_nine_levels_are_left(seed: int) -> None:
    left = activations.levels_left(3, 100, seed)
    assert left.levels == 9
    assert 0.15 < left.error < 0.35
    # Near the cut a level is met by seven numbers in the mean: one or two may be met by none.
    assert 250 < activations.levels_left(3, 3, seed).levels <= 255


@given(seeds, st.floats(0, 1), st.sampled_from([1.0, 10.0, 100.0]))
def test_smoothing_never_changes_the_product(seed: int, alpha: float, factor: float) -> None:
    product = activations.made_up_product(seed, factor)
    smooth = product.smoothed(alpha)
    assert relative_error(smooth.value, product.value) < 1e-12


@settings(max_examples=10)
@given(seeds)
def test_large_channels_hurt_a_token_and_smoothing_helps(seed: int) -> None:
    product = activations.made_up_product(seed, 30)
    token, channel = product.error("token"), product.error("channel")
    assert channel < 0.6 * token
    assert product.smoothed().error("token") < token
    assert token < product.error("tensor")


def test_one_scale_for_fp8_reaches_the_largest() -> None:
    found = kv.float8_tensor(torch.tensor([1000.0, 0.0, -1000.0]))
    assert found.tolist() == [1000, 0, -1000]
    assert (
        partial(kv.integers, bits=8, granularity="tensor")(torch.ones(2, 1, 3)).tolist()
        == [[[1, 1, 1]]] * 2
    )
