"""KV cache, weights, capacity and paging: figures worked by hand, and laws that hold for all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.calculators.capacity import capacity, fewest_gpus
from infra_lab.calculators.formats import FORMATS, grouped, number_format, per_head_vector
from infra_lab.calculators.hardware import device
from infra_lab.calculators.kv_cache import (
    block_bytes,
    bytes_per_token,
    cache_bytes,
    cache_format,
    elements_per_token_layer,
    num_blocks,
    working,
)
from infra_lab.calculators.model_table import MODELS, model
from infra_lab.calculators.models import Model
from infra_lab.calculators.paging import (
    block_table_bytes,
    contiguous_utilization,
    last_block_waste,
    mean_last_block_waste,
    paged_utilization,
    tokens_fill_blocks,
)
from infra_lab.calculators.units import GB, GIB, binary_text, bytes_text, decimal_text
from infra_lab.calculators.weights import most_bits_per_weight, stored_bytes, weight_bytes
from infra_lab.errors import UsageError

LLAMA_70B = model("llama-2-70b")
models = st.sampled_from(list(MODELS.values()))
tokens = st.integers(0, 200_000)


@pytest.mark.parametrize(
    ("name", "per_token"),
    [
        ("llama-2-70b", 327_680),  # 2 x 80 x 8 x 128 x 2: 0.3125 MiB
        ("qwen1.5-72b", 2_621_440),  # 64 KV heads: 2.5 MiB
        ("llama-2-7b", 524_288),  # 0.5 MiB
        ("smollm2-135m", 23_040),  # 2 x 30 x 3 x 64 x 2
        ("deepseek-v3", 70_272),  # 61 x (512 + 64) x 2
        ("opt-13b", 819_200),  # 800 KB, as the vLLM paper says (section 3)
    ],
)
def test_bytes_of_a_token_in_16_bits(name: str, per_token: int) -> None:
    assert bytes_per_token(model(name)) == per_token


def test_4k_tokens_of_a_70b_are_1342_mb_and_not_13400() -> None:
    size = cache_bytes(LLAMA_70B, 4096)
    assert size == 1_342_177_280 == 1.25 * GIB
    assert bytes_text(size) == "1,342,177,280 bytes = 1.342 GB = 1.25 GiB"
    assert working(LLAMA_70B, 4096) == ("2 x 80 layers x 8 KV heads x 128 x 4,096 tokens x 2 bytes")


def test_latents_are_57_times_smaller_than_the_heads_they_stand_for() -> None:
    v3 = model("deepseek-v3")
    assert elements_per_token_layer(v3) == 576
    as_heads = 128 * (192 + 128)  # what MHA would keep: keys of 192, values of 128
    assert as_heads / elements_per_token_layer(v3) == pytest.approx(71.1, abs=0.1)
    assert elements_per_token_layer(replace(v3, latent=None)) / 576 == pytest.approx(56.9, abs=0.1)


def test_a_scale_for_each_token_and_head_costs_its_bits() -> None:
    assert per_head_vector(8, 128).bits_per_element == 8.125
    assert per_head_vector(4, 128).bits_per_element == 4.125
    assert cache_format("int8_per_token_head", LLAMA_70B).bits_per_element == 8.125
    assert cache_format("int8-engine", model("smollm2-135m")).bits_per_element == 8.5
    assert cache_format("fp8", LLAMA_70B).bits_per_element == 8


def test_one_layer_of_a_block_is_65536_bytes_and_80_layers_are_5_mib() -> None:
    assert block_bytes(LLAMA_70B) == 5 * 2**20
    assert block_bytes(LLAMA_70B) / 80 == 65_536


@given(models, st.integers(0, 10_000), st.integers(0, 64))
def test_cache_is_linear_in_tokens_requests_and_layers(shape: Model, n: int, requests: int) -> None:
    one = cache_bytes(shape, 1)
    assert cache_bytes(shape, n, requests) == n * requests * one
    twice = replace(shape, num_layers=2 * shape.num_layers)
    assert bytes_per_token(twice) == 2 * bytes_per_token(shape)


@given(models)
def test_as_many_kv_heads_as_query_heads_is_mha_and_fewer_divide_it(shape: Model) -> None:
    plain = replace(shape, latent=None)
    mha = replace(plain, num_kv_heads=plain.num_query_heads)
    assert mha.attention_kind == "MHA"
    groups = plain.num_query_heads // plain.num_kv_heads
    assert bytes_per_token(mha) == groups * bytes_per_token(plain)


@given(tokens, st.integers(1, 256))
def test_whole_blocks_hold_all_tokens_and_waste_less_than_one(n: int, block_size: int) -> None:
    held = num_blocks(n, block_size) * block_size
    assert n <= held < n + block_size
    assert last_block_waste(n, block_size) == held - n
    assert tokens_fill_blocks(n, block_size) in (
        num_blocks(n, block_size),
        num_blocks(n, block_size) - 1,
    )


@given(st.integers(1, 128))
def test_the_mean_waste_is_that_of_all_remainders(block_size: int) -> None:
    wastes = [last_block_waste(n, block_size) for n in range(1, block_size + 1)]
    assert mean_last_block_waste(block_size) == sum(wastes) / block_size


@given(st.lists(st.integers(1, 2048), min_size=1, max_size=20), st.integers(1, 64))
def test_pages_never_use_memory_worse_than_a_reservation(used: list[int], block_size: int) -> None:
    reserved = num_blocks(2048, block_size) * block_size
    assert contiguous_utilization(used, reserved) <= paged_utilization(used, block_size) <= 1


def test_what_reservations_waste() -> None:
    assert contiguous_utilization([100, 500], 2048) == pytest.approx(0.1465, abs=1e-4)
    assert 1 - contiguous_utilization([500], 4096) == pytest.approx(0.878, abs=1e-3)
    assert 1 - contiguous_utilization([256], 4096) == 0.9375
    assert block_table_bytes(4096, 16) == 1024


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("int4-g128", 4.125),
        ("int4-g128-z4", 4.15625),
        ("int4-g128-z16", 4.25),
        ("int4-g32", 4.5),
        ("int3-g64-s32", 3.5),
        ("nf4", 4.5),
        ("nf4-double", 4.126953125),
        ("mxfp4", 4.25),
        ("nvfp4", 4.5),
        ("q4_1", 5.0),
        ("q8_0", 8.5),
        ("bf16", 16.0),
        ("gptq", 4.125),
    ],
)
def test_bits_with_scales_and_zeros(name: str, bits: float) -> None:
    assert number_format(name).bits_per_element == bits


@given(st.integers(1, 8), st.integers(1, 4096), st.integers(0, 32), st.integers(0, 16))
def test_a_larger_group_is_never_dearer(bits: int, group: int, scale: int, zero: int) -> None:
    small, large = grouped(bits, group, scale, zero), grouped(bits, 2 * group, scale, zero)
    assert bits <= large.bits_per_element <= small.bits_per_element


def test_70e9_weights() -> None:
    assert stored_bytes(70e9, number_format("fp16")) == 140 * GB
    assert stored_bytes(70e9, number_format("int4")) == 35 * GB
    assert stored_bytes(70e9, number_format("int4-g128")) == pytest.approx(36.1 * GB, rel=1e-3)
    assert most_bits_per_weight(70_000_000_000, 24 * GB) == pytest.approx(2.743, abs=1e-3)


@given(models)
def test_quantizing_leaves_tables_and_norms_alone(shape: Model) -> None:
    plain, packed = weight_bytes(shape), weight_bytes(shape, number_format("int4"))
    assert packed.other_bytes == plain.other_bytes
    assert packed.linear_bytes == plain.linear_bytes / 4
    assert weight_bytes(shape, number_format("fp32")).total_bytes == 2 * plain.total_bytes


def test_33_requests_and_not_3() -> None:
    found = capacity(80 * GB, 35 * GB, cache_bytes(LLAMA_70B, 4096), utilization=1.0)
    assert found.num_requests == 33
    assert found.exact_requests == pytest.approx(33.5, abs=0.05)
    vllm = capacity(80 * GIB, 35 * GB, cache_bytes(LLAMA_70B, 4096), utilization=0.92)
    assert vllm.exact_requests == pytest.approx(32.8, abs=0.05)


def test_a_70b_in_16_bits_needs_two_a100() -> None:
    memory = device("a100").memory_bytes
    weights = weight_bytes(LLAMA_70B).total_bytes
    one = capacity(memory, weights, cache_bytes(LLAMA_70B, 4096))
    assert not one.fits
    assert one.cache_bytes < 0
    assert one.num_requests == 0
    assert fewest_gpus(memory, weights, cache_bytes(LLAMA_70B, 4096)) == 2


sizes = st.floats(1, 1e12)


@given(sizes, sizes, sizes, st.floats(0.01, 1), st.floats(0, 1e11))
def test_the_fewest_gpus_are_enough_and_one_less_is_not(
    memory: float, weights: float, request: float, utilization: float, other: float
) -> None:
    settings = {"utilization": utilization, "other_bytes": other}
    found = fewest_gpus(memory, weights, request, **settings)
    exact = (weights + other + request) / (memory * utilization)
    assert found - 1 <= exact * (1 + 1e-9)
    assert exact <= found * (1 + 1e-9)


@given(sizes, sizes, sizes, st.integers(1, 8))
def test_more_memory_never_holds_fewer_requests(
    memory: float, weights: float, request: float, gpus: int
) -> None:
    less = capacity(memory, weights, request, num_gpus=gpus)
    more = capacity(memory, weights, request, num_gpus=gpus + 1)
    assert more.exact_requests >= less.exact_requests


def test_gb_and_gib_are_told_apart() -> None:
    assert decimal_text(80 * GB) == "80 GB"
    assert binary_text(80 * GB) == "74.51 GiB"
    assert bytes_text(12) == "12 bytes"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cache_bytes(LLAMA_70B, -1), "num_tokens must be at least 0, not -1"),
        (lambda: cache_bytes(LLAMA_70B, 1, block_size=0), "block_size must be at least 1"),
        (lambda: capacity(GB, GB, GB, num_gpus=0), "num_gpus must be at least 1, not 0"),
        (lambda: capacity(GB, GB, GB, utilization=1.5), "utilization must be from 0 to 1"),
        (lambda: capacity(0, GB, GB), "memory_bytes must be above 0, not 0"),
        (lambda: fewest_gpus(GB, GB, GB, utilization=0), "utilization must be above 0"),
        (lambda: number_format("fp12"), "no number format is called 'fp12': did you mean "),
        (lambda: number_format("int9-g128"), "1 to 8 bits"),
        (lambda: grouped(4, 0), "group must be at least 1"),
        (lambda: device("a100-80"), "no GPU is called 'a100-80': did you mean a100-80gb"),
        (lambda: contiguous_utilization([5000], 4096), "does not fit into 4096"),
        (lambda: paged_utilization([], 16), "no requests"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(call: object, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        call()  # type: ignore[operator]
    assert "\n" not in str(raised.value)


def test_every_format_has_the_bits_of_its_codes_at_least() -> None:
    assert [one.name for one in FORMATS.values() if one.bits_per_element < one.bits] == []
