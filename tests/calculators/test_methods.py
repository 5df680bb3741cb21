"""Speculation, prefix caching, batching, FlashAttention, quantization: hand-worked, and laws."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.calculators.flash_attention import (
    attention_head_flops,
    block_rows,
    first_version_io_elements,
    score_matrices_bytes,
    standard_io_elements,
    theorem_2_elements,
    theorem_2_gain,
    tiled_io_elements,
)
from infra_lab.calculators.prefix import (
    computed_tokens,
    hit_tokens,
    memory_saved_share,
    prefill_speedup,
    saved_share,
)
from infra_lab.calculators.quantization import (
    codes_used,
    e2m1_values,
    e4m3_values,
    e5m2_values,
    effective_bits,
    integer_range,
    nf4_values,
    smoothing_scale,
    symmetric_step,
    uniform_sqnr_db,
)
from infra_lab.calculators.reliability import chain_success, downtime_hours, scan_bytes
from infra_lab.calculators.scheduling import (
    continuous_batches,
    exponential_gain,
    static_batches,
)
from infra_lab.calculators.speculation import (
    acceptance_rate,
    arithmetic_factor,
    best_num_drafts,
    draft_cost_for,
    expected_tokens,
    speedup,
    target_steps,
)
from infra_lab.errors import UsageError

shares = st.floats(0, 1)
drafts = st.integers(0, 40)


def test_five_drafts_at_four_fifths() -> None:
    assert expected_tokens(0.8, 5) == pytest.approx(3.68928)
    assert speedup(0.8, 5, 0.1) == pytest.approx(2.4595, abs=1e-4)
    assert speedup(0.8, 5, 0.05) == pytest.approx(2.9514, abs=1e-4)
    assert speedup(0.8, 5, 0) == pytest.approx(3.68928)
    assert target_steps(1000, 0.8, 5) == 272
    assert draft_cost_for(0.8, 5, 2.5) == pytest.approx(0.0951, abs=1e-4)


@given(shares, drafts)
def test_a_step_yields_one_token_to_all_drafts_and_one(acceptance: float, k: int) -> None:
    found = expected_tokens(acceptance, k)
    assert 1 <= found <= (k + 1) * (1 + 1e-12)
    assert found == pytest.approx(sum(acceptance**i for i in range(k + 1)))


@given(drafts)
def test_the_limits_of_acceptance(k: int) -> None:
    assert expected_tokens(0, k) == 1
    assert expected_tokens(1, k) == k + 1
    assert expected_tokens(1 - 1e-12, k) == pytest.approx(k + 1)


@given(st.floats(0.05, 0.95), st.integers(1, 10))
def test_the_expectation_is_that_of_playing_it(acceptance: float, k: int) -> None:
    rng = random.Random(0)
    total, rounds = 0, 4000
    for _ in range(rounds):
        accepted = 0
        while accepted < k and rng.random() < acceptance:
            accepted += 1
        total += accepted + 1
    assert total / rounds == pytest.approx(expected_tokens(acceptance, k), abs=5 * k / rounds**0.5)


@given(st.floats(0.01, 0.99), st.floats(0, 1))
def test_drafting_pays_exactly_where_acceptance_beats_cost(acceptance: float, cost: float) -> None:
    best = best_num_drafts(acceptance, cost)
    gains = speedup(acceptance, 1, cost) > 1
    if abs(acceptance - cost) > 1e-9:
        assert (best > 0) == gains == (acceptance > cost)  # corollary 3.9


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0.5, 8))
def test_the_best_number_of_drafts_has_the_largest_speedup(
    acceptance: float, cost: float, verify_cost: float
) -> None:
    best = best_num_drafts(acceptance, cost, 10, verify_cost)
    speedups = [speedup(acceptance, k, cost, verify_cost if k else 1) for k in range(11)]
    assert speedups[best] == max(speedups)


def test_what_verifying_costs_decides_whether_drafts_pay() -> None:
    assert best_num_drafts(0.8, 0.1, 10, verify_cost=3) == 9
    assert best_num_drafts(0.8, 0.1, 10, verify_cost=4) == 0


@given(st.floats(0, 1), st.integers(1, 20), st.floats(0, 0.5))
def test_the_cost_that_gives_a_speedup_gives_it(acceptance: float, k: int, cost: float) -> None:
    wanted = speedup(acceptance, k, cost)
    assert speedup(acceptance, k, draft_cost_for(acceptance, k, wanted)) == pytest.approx(wanted)


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=8), st.randoms())
def test_acceptance_is_one_less_the_distance(weights: list[float], rng: random.Random) -> None:
    p = [w / sum(weights) for w in weights]
    other = weights[:]
    rng.shuffle(other)
    q = [w / sum(other) for w in other]
    distance = sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
    assert acceptance_rate(p, q) == pytest.approx(1 - distance)
    assert acceptance_rate(p, p) == pytest.approx(1)


@given(st.floats(0, 1), st.integers(1, 20))
def test_speculation_never_saves_arithmetic(acceptance: float, k: int) -> None:
    assert arithmetic_factor(acceptance, k, 0) >= 1 - 1e-12


def test_1500_of_2000_cached_tokens_leave_512_to_compute() -> None:
    assert hit_tokens(1500, 2000) == 1488
    assert computed_tokens(1500, 2000) == 512


def test_a_prompt_that_is_all_there_still_computes_its_end() -> None:
    assert hit_tokens(32, 32) == 16
    assert hit_tokens(33, 33) == 32
    assert hit_tokens(1, 1) == 0


@given(st.integers(1, 5000), st.integers(1, 64), st.data())
def test_hits_are_whole_blocks_and_never_the_last_token(
    prompt: int, block: int, data: st.DataObject
) -> None:
    shared = data.draw(st.integers(0, prompt))
    found = hit_tokens(shared, prompt, block)
    assert found % block == 0
    assert found <= shared
    assert found < prompt
    assert found > min(shared, prompt - 1) - block


def test_three_requests_save_63_percent_and_not_90() -> None:
    assert saved_share(2000, [100, 150, 80]) == pytest.approx(4000 / 6330)
    assert saved_share(2000, [110] * 1000) == pytest.approx(0.947, abs=1e-3)
    assert [prefill_speedup(p) for p in (0.5, 0.8, 0.9)] == pytest.approx([2, 5, 10])
    assert memory_saved_share(0.5, 1) == 0


def test_static_batch_of_three_fills_58_percent() -> None:
    found = static_batches([200, 50, 100], 3)
    assert (found.num_steps, found.busy_slot_steps) == (200, 350)
    assert found.occupancy == pytest.approx(0.5833, abs=1e-4)
    assert continuous_batches([200, 50, 100], 3).num_steps == 200


def test_continuous_batching_needs_a_queue() -> None:
    queue = [200, 50, 100] * 50
    static, continuous = static_batches(queue, 3), continuous_batches(queue, 3)
    assert static.occupancy == pytest.approx(0.5833, abs=1e-4)
    assert continuous.occupancy > 0.99
    assert static.num_steps / continuous.num_steps == pytest.approx(1.71, abs=0.01)


def test_exponential_lengths_gain_the_harmonic_number_of_the_seats() -> None:
    assert exponential_gain(1) == 1
    assert exponential_gain(3) == pytest.approx(11 / 6)
    draw = random.Random(0)
    queue = [1 + int(-1000 * math.log(1 - draw.random())) for _ in range(8000)]
    static, continuous = static_batches(queue, 8), continuous_batches(queue, 8)
    assert static.num_steps / continuous.num_steps == pytest.approx(exponential_gain(8), rel=0.03)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 8))
def test_continuous_is_never_later_than_static_and_never_before_the_work(
    lengths: list[int], slots: int
) -> None:
    static, continuous = static_batches(lengths, slots), continuous_batches(lengths, slots)
    assert continuous.num_steps <= static.num_steps
    assert continuous.num_steps >= max(max(lengths), math.ceil(sum(lengths) / slots))
    assert continuous.num_steps <= sum(lengths) / slots + max(lengths)


def test_flops_of_one_head() -> None:
    assert attention_head_flops(4096, 128) == pytest.approx(8.59e9, rel=1e-3)
    assert attention_head_flops(4096, 128, causal=True) == pytest.approx(4.296e9, rel=1e-3)
    assert score_matrices_bytes(4096, num_matrices=1) == 32 * 2**20
    assert score_matrices_bytes(4096, num_heads=64) == 4 * 2**30


def test_traffic_of_one_head() -> None:
    assert 2 * standard_io_elements(4096, 128) == 138_412_032  # 132 MiB
    assert 2 * tiled_io_elements(4096, 128, 128) == pytest.approx(69.2e6, rel=1e-3)
    assert theorem_2_gain(128, 98_304) == 6
    assert theorem_2_gain(64, 98_304) == 24
    assert block_rows(98_304, 128) == (128, 192)


def brute_force_io(tokens: int, dim: int, rows: int) -> int:
    """Walks the loops of FlashAttention-2 and counts what passes the boundary."""
    moved = 0
    for start in range(0, tokens, rows):
        here = min(rows, tokens - start)
        moved += here * dim  # a block of Q
        for key_start in range(0, tokens, 16):
            moved += 2 * min(16, tokens - key_start) * dim  # blocks of K and V
        moved += here * dim  # of O
    return moved


@given(st.integers(1, 200), st.integers(1, 64), st.integers(1, 64))
def test_tiled_traffic_is_what_the_loops_move(tokens: int, dim: int, rows: int) -> None:
    assert tiled_io_elements(tokens, dim, rows) == brute_force_io(tokens, dim, rows)


@given(st.integers(1, 200), st.integers(1, 64))
def test_one_block_of_queries_moves_each_matrix_once(tokens: int, dim: int) -> None:
    assert tiled_io_elements(tokens, dim, tokens) == 4 * tokens * dim
    first = first_version_io_elements(tokens, dim, tokens)
    assert first == 5 * tokens * dim + 4 * tokens


@given(st.integers(1, 4096), st.integers(1, 256), st.integers(1, 200_000))
def test_theorem_2_stays_quadratic_in_tokens(tokens: int, dim: int, sram: int) -> None:
    one = theorem_2_elements(tokens, dim, sram)
    assert theorem_2_elements(2 * tokens, dim, sram) == pytest.approx(4 * one)
    assert tokens**2 / one == pytest.approx(theorem_2_gain(dim, sram))


def test_an_outlier_leaves_nine_levels() -> None:
    assert codes_used(3, 100) == 9
    assert effective_bits(9) == pytest.approx(3.17, abs=0.005)
    assert symmetric_step(100, 8) / symmetric_step(3, 8) == pytest.approx(33.3, abs=0.1)
    assert symmetric_step(3, 8) == pytest.approx(0.0236, abs=1e-4)


def test_small_floats_are_those_of_ml_dtypes() -> None:
    import ml_dtypes
    import numpy as np

    for values, kind in (
        (e4m3_values(), ml_dtypes.float8_e4m3fn),
        (e5m2_values(), ml_dtypes.float8_e5m2),
        (e2m1_values(), ml_dtypes.float4_e2m1fn),
    ):
        codes = np.arange(len(values), dtype=np.uint8).view(kind)
        assert values == codes.astype(np.float64).tolist()
        assert values[-1] == float(ml_dtypes.finfo(kind).max)
    assert max(e4m3_values()) == 448
    assert max(e5m2_values()) == 57344
    assert e2m1_values() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def test_nf4_levels_are_bitsandbytes_own() -> None:
    known = [
        -1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0,
        0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0,
    ]  # fmt: skip
    assert nf4_values() == pytest.approx(known, abs=1e-6)


@given(st.integers(2, 16), st.floats(1.8, 100))
def test_a_bit_is_worth_six_decibels_and_an_outlier_costs_its_ratio(bits: int, peak: float) -> None:
    assert uniform_sqnr_db(bits + 1) - uniform_sqnr_db(bits) == pytest.approx(6.0206, abs=1e-4)
    assert uniform_sqnr_db(bits) == pytest.approx(6.0206 * bits, abs=1e-3)
    assert uniform_sqnr_db(bits, 10 * peak) == pytest.approx(uniform_sqnr_db(bits, peak) - 20)


def test_noise_of_a_uniform_signal_is_as_the_formula_says() -> None:
    rng = random.Random(1)
    step = 2 / 2**6
    values = [rng.uniform(-1, 1) for _ in range(20_000)]
    noise = [(math.floor(v / step) + 0.5) * step - v for v in values]
    ratio = sum(v * v for v in values) / sum(e * e for e in noise)
    assert 10 * math.log10(ratio) == pytest.approx(uniform_sqnr_db(6), abs=0.2)


@given(st.floats(0.01, 100), st.floats(0.01, 100), shares)
def test_smoothing_moves_the_range_and_keeps_the_product(
    activation: float, weight: float, strength: float
) -> None:
    scale = smoothing_scale(activation, weight, strength)
    assert (activation / scale) * (weight * scale) == pytest.approx(activation * weight)
    if strength == 0.5:
        assert activation / scale == pytest.approx(weight * scale)


def test_chains_multiply() -> None:
    assert chain_success(0.95, 10) == pytest.approx(0.5987, abs=1e-4)
    assert chain_success(0.999, 10) == pytest.approx(0.990, abs=1e-3)
    assert downtime_hours(0.999) == pytest.approx(8.76)
    assert downtime_hours(0.999, 30 * 24) * 60 == pytest.approx(43.2)
    assert scan_bytes(1_000_000, 768) == 3.072e9
    assert integer_range(8) == (-128, 127)
    assert integer_range(4) == (-8, 7)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: expected_tokens(1.2, 5), "acceptance must be from 0 to 1, not 1.2"),
        (lambda: expected_tokens(0.5, -1), "num_drafts must be at least 0, not -1"),
        (lambda: speedup(0.5, 2, -0.1), "draft_cost must be at least 0, not -0.1"),
        (lambda: draft_cost_for(0.5, 3, 10), "a speed-up of 10 is out of reach"),
        (lambda: acceptance_rate([1.0], [0.5, 0.5]), "one vocabulary is needed"),
        (lambda: acceptance_rate([0.5, 0.4], [0.5, 0.5]), "add up to 1"),
        (lambda: hit_tokens(20, 10), "20 shared tokens of a prompt of 10"),
        (lambda: hit_tokens(1, 10, 0), "block_size must be at least 1"),
        (lambda: prefill_speedup(1), "must be below 1"),
        (lambda: saved_share(10, []), "no requests"),
        (lambda: exponential_gain(0), "num_slots must be at least 1"),
        (lambda: static_batches([], 3), "no requests"),
        (lambda: static_batches([5], 0), "num_slots must be at least 1"),
        (lambda: continuous_batches([0], 1), "a request's length must be at least 1"),
        (lambda: tiled_io_elements(0, 1, 1), "num_tokens must be at least 1"),
        (lambda: codes_used(5, 1), "5 is beyond 1"),
        (lambda: smoothing_scale(1, 1, 2), "strength must be from 0 to 1"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(call: object, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        call()  # type: ignore[operator]
    assert "\n" not in str(raised.value)
