"""FLOPs, rooflines and parallelism: figures worked by hand, brute force, and limits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from infra_lab.calculators.compute import (
    attention_flops,
    attention_pairs,
    cacheless_projection_ratio,
    cacheless_score_ratio,
    decode_attention_intensity,
    decode_flops,
    equal_length,
    prefill_flops,
    product_flops,
)
from infra_lab.calculators.formats import number_format
from infra_lab.calculators.hardware import DEVICES, custom_device, device, pcie_one_way_bytes_per_s
from infra_lab.calculators.kv_cache import cache_bytes
from infra_lab.calculators.model_table import MODELS, model
from infra_lab.calculators.models import Model
from infra_lab.calculators.parallel import (
    all_reduce_message_bytes,
    all_reduces_per_step,
    cache_copies,
    kv_head_of_ranks,
    kv_heads_per_rank,
    layer_ranges,
    padded_vocabulary,
    pipeline_bubble,
    quickest_all_reduce,
    ring_all_reduce,
    step_communication_s,
    transfer_s,
    tree_all_reduce,
)
from infra_lab.calculators.parameters import linear_parameters
from infra_lab.calculators.replicas import fewest_gpus_that_split, replica_plans
from infra_lab.calculators.roofline import (
    Setting,
    crossover_batch,
    decode_cost,
    experts_met,
    intensity_limit,
    read_weight_bytes,
    ridge_batch,
    roofline_time,
    step_time,
    tpot_floor,
    ttft_floor,
)
from infra_lab.calculators.units import GB, TERA
from infra_lab.errors import UsageError

LLAMA_70B = model("llama-2-70b")
A100 = device("a100")
FULL = Setting(A100)
models = st.sampled_from(list(MODELS.values()))
dense = st.sampled_from([one for one in MODELS.values() if one.experts is None])
devices = st.sampled_from(list(DEVICES.values()))


def test_prefill_of_4k_tokens_is_595_tflop() -> None:
    products = product_flops(70e9, 4096)
    scores = attention_flops(LLAMA_70B, attention_pairs(4096))
    assert products == pytest.approx(573.4e12, rel=1e-3)
    assert scores == pytest.approx(22.0e12, rel=1e-3)
    assert (
        attention_flops(LLAMA_70B, attention_pairs(4096, causal=False)) == 4 * 80 * 4096**2 * 8192
    )
    assert (products + scores) / 312e12 == pytest.approx(1.908, abs=1e-3)


def test_attention_costs_as_much_as_the_products_at_106k_tokens() -> None:
    assert equal_length(LLAMA_70B, 70e9) == pytest.approx(106_800, rel=1e-3)
    assert equal_length(LLAMA_70B, 70e9, causal=False) == pytest.approx(53_400, rel=1e-3)


@given(st.integers(0, 60), st.integers(0, 60))
def test_pairs_are_those_one_would_count(queries: int, cached: int) -> None:
    total = cached + queries
    counted = sum(1 for q in range(cached, total) for k in range(total) if k <= q)
    assert attention_pairs(queries, cached) == counted
    assert attention_pairs(queries, cached, causal=False) == queries * total


@given(models, st.integers(1, 5000), st.integers(1, 5000))
def test_chunks_cost_what_the_prompt_costs_but_for_a_row_of_logits(
    shape: Model, first: int, second: int
) -> None:
    whole = prefill_flops(shape, first + second)
    chunks = [prefill_flops(shape, first), prefill_flops(shape, second, num_cached=first)]
    assert whole.attention_flops == sum(one.attention_flops for one in chunks)
    assert whole.linear_flops == sum(one.linear_flops for one in chunks)


@given(dense, st.integers(1, 512), st.integers(1, 100_000))
def test_a_decode_step_is_a_prefill_of_one_token_for_each_request(
    shape: Model, requests: int, context: int
) -> None:
    assume(shape.latent is None)
    one = prefill_flops(shape, 1, num_cached=context - 1)
    assert decode_flops(shape, requests, context).total_flops == requests * one.total_flops


def test_decode_attention_does_heads_over_kv_heads_flops_a_byte() -> None:
    assert decode_attention_intensity(LLAMA_70B) == 8
    assert decode_attention_intensity(model("llama-2-7b")) == 1
    assert decode_attention_intensity(model("deepseek-v3")) == pytest.approx(241.8, abs=0.1)


@given(st.integers(1, 300))
def test_what_the_cache_saves_is_the_sum_over_all_steps(n: int) -> None:
    steps = range(1, n + 1)
    assert cacheless_score_ratio(n) == pytest.approx(sum(t * t for t in steps) / sum(steps))
    assert cacheless_projection_ratio(n) == sum(steps) / n


def test_the_ridge_of_an_a100_is_153_and_of_an_h100_295() -> None:
    assert 312e12 / 2e12 == 156
    assert A100.ridge_flops_per_byte("fp16") == pytest.approx(153.0, abs=0.1)
    assert device("h100").ridge_flops_per_byte("bf16") == pytest.approx(295.3, abs=0.1)


def test_a_4k_context_never_becomes_compute_bound_on_an_a100() -> None:
    """Each token of 70e9 parameters: (140 + 10.7) GFLOP for 1.342 GB of its own keys and values."""
    assert crossover_batch(LLAMA_70B, 4096, FULL) is None
    limit = intensity_limit(LLAMA_70B, 4096, FULL)
    assert limit == pytest.approx((2 * 68.71e9 + 10.74e9) / 1.342e9, rel=1e-3)
    assert limit < A100.ridge_flops_per_byte("bf16")
    exact = (product_flops(70e9, 1) + attention_flops(LLAMA_70B, 4096)) / 1_342_177_280
    assert exact == pytest.approx(112.3, abs=0.1)


@given(dense, devices)
def test_without_context_the_crossover_is_the_ridge(shape: Model, gpu: object) -> None:
    assert gpu in DEVICES.values()
    setting = Setting(gpu)  # type: ignore[arg-type]
    ridge = ridge_batch(number_format("bf16"), setting)
    assert ridge == pytest.approx(setting.device.ridge_flops_per_byte("bf16"))
    assert ridge_batch(number_format("int4"), setting) == pytest.approx(ridge / 4)
    found = crossover_batch(shape, 1, setting)
    assert found == pytest.approx(ridge, rel=0.05)


@given(dense, devices, st.integers(1, 4096))
def test_at_the_crossover_both_limits_take_as_long(shape: Model, gpu: object, context: int) -> None:
    setting = Setting(gpu)  # type: ignore[arg-type]
    batch = crossover_batch(shape, context, setting)
    assume(batch is not None and batch >= 1)
    assert batch is not None
    below, above = int(batch), int(batch) + 1
    assert tpot_floor(shape, below, context, setting).bound == "memory"
    assert tpot_floor(shape, above, context, setting).bound == "compute"


@given(st.floats(1, 1e18), st.floats(1, 1e15), st.floats(1e9, 1e16), st.floats(1e9, 1e13))
def test_the_roofline_is_the_longer_of_two_times(
    flops: float, size: float, peak: float, bandwidth: float
) -> None:
    found = roofline_time(flops, size, peak, bandwidth)
    assert found.time_s == max(flops / peak, size / bandwidth)
    assert found.bound == ("compute" if found.compute_s > found.memory_s else "memory")


@given(models, st.integers(1, 64), st.integers(1, 8192), st.integers(1, 7))
def test_twice_the_gpus_take_half_the_time(
    shape: Model, requests: int, context: int, gpus: int
) -> None:
    one = tpot_floor(shape, requests, context, replace(FULL, num_gpus=gpus))
    two = tpot_floor(shape, requests, context, replace(FULL, num_gpus=2 * gpus))
    assert two.time_s == pytest.approx(one.time_s / 2)


@given(models, st.integers(1, 256), st.integers(1, 8192))
def test_a_larger_batch_or_context_never_makes_a_step_shorter(
    shape: Model, requests: int, context: int
) -> None:
    now = tpot_floor(shape, requests, context, FULL).time_s
    assert tpot_floor(shape, requests + 1, context, FULL).time_s >= now
    assert tpot_floor(shape, requests, context + 1, FULL).time_s >= now


def test_weights_alone_bound_a_token_of_a_70b_at_70_ms() -> None:
    assert roofline_time(140e9, 140e9, 312e12, 2e12).time_s == 0.07
    found = tpot_floor(LLAMA_70B, 1, 4096, FULL)
    assert found.bound == "memory"
    assert found.time_s == pytest.approx((68.71e9 * 2 + 1.342e9) / 2.039e12, rel=1e-3)
    packed = replace(FULL, weights=number_format("int4"))
    assert tpot_floor(LLAMA_70B, 1, 4096, packed).time_s < 0.3 * found.time_s


def test_the_head_stays_wide_where_layers_are_packed() -> None:
    head = 2 * 8192 * 32000
    assert read_weight_bytes(LLAMA_70B, 1, number_format("int4")) == pytest.approx(
        linear_parameters(LLAMA_70B) / 2 + head
    )


def test_a_prompt_found_in_the_cache_leaves_only_its_end_to_compute() -> None:
    whole = ttft_floor(LLAMA_70B, 2100, FULL)
    rest = ttft_floor(LLAMA_70B, 100, FULL, num_cached=2000)
    assert whole.bound == "compute"
    assert whole.compute_s / rest.compute_s == pytest.approx(21, rel=0.02)
    assert rest.bound == "memory"


@given(st.integers(1, 256), st.integers(1, 512))
def test_experts_met_grow_from_those_of_one_token_to_all(experts: int, tokens: int) -> None:
    active = max(1, experts // 8)
    met = experts_met(experts, active, tokens)
    assert experts_met(experts, active, 1) == pytest.approx(active)
    assert active * (1 - 1e-9) <= met <= min(experts, active * tokens) * (1 + 1e-9)


def test_one_token_reads_its_active_experts_and_a_large_batch_all() -> None:
    mixtral = model("mixtral-8x7b")
    one = read_weight_bytes(mixtral, 1)
    assert one == pytest.approx(2 * (12_879_925_248 - 32000 * 4096 - 65 * 4096), rel=1e-9)
    many = read_weight_bytes(mixtral, 1000)
    assert many == pytest.approx(2 * (46_702_792_704 - 32000 * 4096 - 65 * 4096), rel=1e-6)


def test_two_all_reduces_a_layer_forward_and_as_many_backward() -> None:
    assert all_reduces_per_step(80) == 160
    assert all_reduces_per_step(80, backward=True) == 320
    assert all_reduce_message_bytes(8192, 1) == 16 * 1024


def test_small_messages_are_bound_by_latency() -> None:
    one = ring_all_reduce(16 * 1024, 8, 300 * GB)
    wire = step_communication_s(LLAMA_70B, one)
    assert wire == pytest.approx(15.3e-6, rel=0.01)
    started = ring_all_reduce(16 * 1024, 8, 300 * GB, latency_s=1e-6)
    assert started.latency_s == 14e-6
    assert tree_all_reduce(16 * 1024, 8, 300 * GB, latency_s=1e-6).latency_s == 6e-6


@given(st.floats(0, 1e10), st.integers(1, 64), st.floats(1e6, 1e12), st.floats(0, 1e-3))
def test_a_ring_sends_less_than_twice_the_message(
    size: float, gpus: int, bandwidth: float, latency: float
) -> None:
    ring = ring_all_reduce(size, gpus, bandwidth, latency)
    assert ring.transfer_s <= 2 * size / bandwidth
    assert ring.latency_s == pytest.approx(2 * (gpus - 1) * latency)
    assert ring_all_reduce(size, 1, bandwidth, latency).time_s == 0
    assert tree_all_reduce(size, 1, bandwidth, latency).time_s == 0
    assert tree_all_reduce(size, gpus, bandwidth, latency).latency_s <= ring.latency_s + 1e-12


def test_heads_are_shared_or_copied() -> None:
    assert kv_heads_per_rank(LLAMA_70B, 8) == 1
    assert kv_heads_per_rank(LLAMA_70B, 4) == 2
    two_heads = replace(LLAMA_70B, num_query_heads=8, num_kv_heads=2)
    assert kv_head_of_ranks(two_heads, 4) == [0, 0, 1, 1]
    assert kv_head_of_ranks(LLAMA_70B, 4) == [0, 2, 4, 6]
    assert cache_copies(two_heads, 4) == 2
    assert cache_copies(LLAMA_70B, 8) == 1
    assert cache_copies(model("deepseek-v3"), 8) == 8


@pytest.mark.parametrize(
    ("vocab", "gpus", "padded"),
    [(50257, 1, 50304), (50257, 2, 50432), (50257, 8, 51200), (32001, 2, 32256), (49152, 3, 49152)],
)
def test_vocabularies_are_padded_as_megatron_pads_them(vocab: int, gpus: int, padded: int) -> None:
    assert padded_vocabulary(vocab, gpus) == padded


@pytest.mark.parametrize(
    ("layers", "stages", "ranges"),
    [
        (3, 2, [(0, 2), (2, 3)]),
        (4, 3, [(0, 1), (1, 3), (3, 4)]),
        (5, 3, [(0, 2), (2, 4), (4, 5)]),
        (80, 4, [(0, 20), (20, 40), (40, 60), (60, 80)]),
    ],
)
def test_layers_are_split_as_vllm_splits_them(
    layers: int, stages: int, ranges: list[tuple[int, int]]
) -> None:
    assert layer_ranges(layers, stages) == ranges


@given(st.integers(1, 200), st.integers(1, 200))
def test_stages_cover_all_layers_once_and_evenly(layers: int, stages: int) -> None:
    assume(stages <= layers)
    ranges = layer_ranges(layers, stages)
    assert [layer for first, last in ranges for layer in range(first, last)] == list(range(layers))
    sizes = [last - first for first, last in ranges]
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 32), st.integers(1, 1000))
def test_the_bubble_is_the_idle_share_of_a_schedule(stages: int, batches: int) -> None:
    total = batches + stages - 1
    idle = sum(total - batches for _ in range(stages))
    assert pipeline_bubble(stages, batches) == pytest.approx(idle / (total * stages))


def test_moving_a_prompts_cache_takes_tens_of_milliseconds() -> None:
    size = cache_bytes(LLAMA_70B, 4096)
    assert transfer_s(size, 50 * GB) == pytest.approx(26.8e-3, abs=1e-4)
    assert transfer_s(size, 12.5 * GB) == pytest.approx(107.4e-3, abs=1e-4)
    assert pcie_one_way_bytes_per_s(4) == pytest.approx(31.5 * GB, rel=1e-3)
    assert transfer_s(size, pcie_one_way_bytes_per_s(4)) == pytest.approx(42.6e-3, abs=1e-4)


def test_links_are_stated_for_both_directions_and_used_for_one() -> None:
    assert A100.nvlink_bytes_per_s == 600 * GB
    assert A100.nvlink_one_way_bytes_per_s == 300 * GB
    assert device("rtx-4090").nvlink_one_way_bytes_per_s is None
    assert A100.shared_memory_bytes == 108 * 164 * 1024


@given(devices)
def test_every_device_has_sources_and_believable_numbers(gpu: object) -> None:
    found = device(getattr(gpu, "name"))  # noqa: B009
    assert found.sources
    assert found.peak("bf16") >= found.peak("fp32")
    assert 0.5 * TERA < found.bandwidth_bytes_per_s < 10 * TERA


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Setting(A100, num_gpus=0), "num_gpus must be at least 1, not 0"),
        (lambda: Setting(A100, operands="fp8"), "A100 SXM 80 GB has no peak for 'fp8' operands"),
        (lambda: Setting(A100, compute_efficiency=0), "compute_efficiency must be above 0"),
        (lambda: kv_heads_per_rank(LLAMA_70B, 3), "num_gpus 3 does not divide num_query_heads 64"),
        (lambda: kv_heads_per_rank(model("smollm2-135m"), 2), "num_gpus 2 does not divide"),
        (lambda: layer_ranges(3, 4), "4 stages for 3 layers"),
        (lambda: decode_cost(LLAMA_70B, 0, 1), "num_requests must be at least 1"),
        (lambda: decode_cost(LLAMA_70B, 1, -4), "context must be at least 1, not -4"),
        (lambda: ring_all_reduce(1, 2, 0), "bytes_per_s must be above 0, not 0"),
        (lambda: transfer_s(-1, 1), "message_bytes must be at least 0, not -1"),
        (lambda: pcie_one_way_bytes_per_s(6), "PCIe generation must be 3, 4 or 5"),
        (lambda: custom_device("x", {"fp32": -1.0}, 1, 1, ""), "the peak for fp32"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(call: object, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        call()  # type: ignore[operator]
    assert "\n" not in str(raised.value)


def test_a_step_of_its_own_numbers_is_a_step() -> None:
    mine = custom_device("mine", {"fp32": 1e11}, 1e10, 8 * GB, "measured")
    found = step_time(decode_cost(model("smollm2-135m"), 1, 1), Setting(mine, operands="fp32"))
    assert found.bound == "memory"


def test_two_a100_at_least_hold_a_70b_and_wider_replicas_are_quicker() -> None:
    one, two, four, eight = replica_plans(LLAMA_70B, FULL, 8, 16, 4096, 300 * GB)
    assert [plan.tensor_parallel for plan in (one, two, four, eight)] == [1, 2, 4, 8]
    assert one.most_requests == 0
    assert not one.holds(16)
    assert eight.holds(16)
    assert one.step_s > two.step_s > four.step_s > eight.step_s
    assert eight.most_requests > four.most_requests > two.most_requests > 0


@given(
    shape=st.sampled_from(list(MODELS.values())),
    memory=st.floats(1e9, 2e11),
    weights=st.floats(1e9, 1e12),
    request_bytes=st.floats(1e6, 1e10),
)
def test_the_fewest_gpus_that_split_fit_and_no_smaller_split_does(
    shape: Model, memory: float, weights: float, request_bytes: float
) -> None:
    found = fewest_gpus_that_split(shape, memory, weights, request_bytes)

    def fits(number: int) -> bool:
        try:
            copies = cache_copies(shape, number)
        except UsageError:
            return False
        return 0.92 * memory * number - weights >= request_bytes * copies

    fitting = [one for one in range(1, shape.num_query_heads + 1) if fits(one)]
    assert found == (fitting[0] if fitting else None)


def test_start_ups_can_make_two_replicas_of_four_better_than_one_of_eight() -> None:
    def best(latency_s: float) -> int:
        packed = Setting(A100, weights=number_format("int4"))
        plans = replica_plans(LLAMA_70B, packed, 8, 8, 128, 300 * GB, latency_s)
        return max(plans, key=lambda plan: plan.tokens_per_s).tensor_parallel

    assert best(0) == 8
    assert best(20e-6) < 8


@given(dense, st.integers(1, 4), st.integers(1, 64), st.integers(1, 4096))
def test_without_communication_the_widest_replica_decodes_most(
    shape: Model, half: int, requests: int, context: int
) -> None:
    """Fewer replicas read the weights fewer times; no batch loses by it."""
    plans = replica_plans(shape, FULL, 2 * half, requests, context, 1e30)
    assert all(plan.tensor_parallel * plan.num_replicas == 2 * half for plan in plans)
    rates = [plan.tokens_per_s for plan in plans]
    assert rates == sorted(rates) or rates == pytest.approx(sorted(rates))


def test_splits_that_the_heads_forbid_are_left_out() -> None:
    plans = replica_plans(model("smollm2-135m"), FULL, 6, 1, 64, 300 * GB)
    assert [plan.tensor_parallel for plan in plans] == [1, 3]


@given(st.floats(1, 1e9), st.integers(1, 64), st.floats(1e6, 1e12), st.floats(0, 1e-3))
def test_the_quickest_all_reduce_is_one_of_the_two(
    size: float, gpus: int, bandwidth: float, latency: float
) -> None:
    given_times = [
        kind(size, gpus, bandwidth, latency).time_s for kind in (ring_all_reduce, tree_all_reduce)
    ]
    assert quickest_all_reduce(size, gpus, bandwidth, latency).time_s == min(given_times)
