"""Lengths, arrivals, and the roofline of a mixed step against the calculators' own."""

from __future__ import annotations

from random import Random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.calculators.model_table import model
from infra_lab.calculators.roofline import decode_cost, prefill_cost, tpot_floor, ttft_floor
from infra_lab.claims.experiments.step_cost import (
    OVERHEAD_S,
    RooflineCost,
    blocks_that_fit,
    llama_13b_on_a100,
)
from infra_lab.engine.simulation import percentile
from infra_lab.engine.traces import (
    ALPACA,
    SHAREGPT,
    draw_lengths,
    poisson,
)
from infra_lab.step import ScheduledRequest, SchedulerOutput

COST = llama_13b_on_a100()


def chunk(tokens: int, computed: int = 0, samples: bool = True) -> ScheduledRequest:
    return ScheduledRequest("x", [0] * tokens, computed, [], samples)


def test_lengths_have_the_papers_means_and_fit_the_context() -> None:
    for lengths in (SHAREGPT, ALPACA):
        drawn = draw_lengths(lengths, 4000, Random(0))
        assert mean(prompt for prompt, _ in drawn) == pytest.approx(lengths.mean_prompt, rel=0.1)
        assert mean(output for _, output in drawn) == pytest.approx(lengths.mean_output, rel=0.1)
        assert all(prompt + output <= 2048 and min(prompt, output) >= 1 for prompt, output in drawn)


def test_one_seed_is_one_workload() -> None:
    assert draw_lengths(ALPACA, 50, Random(3)) == draw_lengths(ALPACA, 50, Random(3))
    assert draw_lengths(ALPACA, 50, Random(3)) != draw_lengths(ALPACA, 50, Random(4))


def test_arrivals_come_at_their_rate_and_in_order() -> None:
    arrivals = poisson([(1, 1)] * 4000, 5.0, Random(0))
    moments = [one.arrival_s for one in arrivals]
    assert moments == sorted(moments)
    assert moments[-1] == pytest.approx(800, rel=0.1)
    assert {one.arrival_s for one in poisson([(1, 1)] * 3, 0, Random(0))} == {0.0}


def test_a_percentile_lies_between_its_neighbours() -> None:
    assert percentile([3.0], 99) == 3.0
    assert percentile(list(map(float, range(101))), 99) == 99.0


@given(tokens=st.integers(2, 4000))
def test_a_prompt_alone_takes_what_the_calculator_says(tokens: int) -> None:
    wanted = ttft_floor(COST.model, tokens, COST.setting).time_s
    found = COST.seconds(SchedulerOutput([chunk(tokens)]))
    assert found == pytest.approx(wanted + OVERHEAD_S, rel=1e-9)


@given(requests=st.integers(1, 200), context=st.integers(1, 4000))
def test_a_decode_step_takes_what_the_calculator_says(requests: int, context: int) -> None:
    wanted = tpot_floor(COST.model, requests, context, COST.setting).time_s
    found = COST.seconds(SchedulerOutput([chunk(1, context - 1)] * requests))
    assert found == pytest.approx(wanted + OVERHEAD_S, rel=1e-9)


def test_a_mixed_step_reads_the_weights_once() -> None:
    both = COST.seconds(SchedulerOutput([chunk(64, samples=False), chunk(1, 999)]))
    apart = COST.seconds(SchedulerOutput([chunk(64, samples=False)])) + COST.seconds(
        SchedulerOutput([chunk(1, 999)])
    )
    weights = prefill_cost(COST.model, 1, 0, COST.setting).weight_bytes
    saved = weights / COST.setting.bytes_per_s + OVERHEAD_S
    assert apart - both == pytest.approx(saved, rel=1e-6)
    assert decode_cost(COST.model, 1, 1000, COST.setting).weight_bytes == weights


def test_what_the_model_cannot_say_is_refused() -> None:
    for name in ("mixtral-8x7b", "deepseek-v2"):
        with pytest.raises(ValueError, match="not modelled here"):
            RooflineCost(model(name), COST.setting)


def test_the_blocks_fill_what_the_weights_leave() -> None:
    # 0.92 x 80 GB - 26.03 GB of weights, over 16 x 819,200 bytes
    assert blocks_that_fit(COST) == 3629
