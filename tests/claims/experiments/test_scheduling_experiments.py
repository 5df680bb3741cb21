"""The parts of the experiments on scheduling, by hand and by law."""

from __future__ import annotations

from random import Random

import pytest

from infra_lab.claims.experiments.chunked_prefill import (
    LONG_PROMPT,
    chats_and_long_prompts,
    of_run,
    serve,
)
from infra_lab.claims.experiments.continuous_batching import (
    gain,
    normalized_latency_s,
    occupancy,
    three_jobs,
)
from infra_lab.claims.experiments.continuous_batching import serve as serve_jobs
from infra_lab.claims.experiments.disaggregation import (
    ReceivedPrompts,
    attained,
    colocated,
    disaggregated,
    experience,
)
from infra_lab.claims.experiments.prefill_decode_interference import goodput
from infra_lab.claims.experiments.scheduling_policies import (
    RULES,
    aging_bound_steps,
    starved_wait_steps,
)
from infra_lab.claims.experiments.step_cost import llama_13b_on_a100
from infra_lab.engine.simulation import TracedRequest
from infra_lab.step import ScheduledRequest, SchedulerOutput

COST = llama_13b_on_a100()


# --- continuous batching ----------------------------------------------------------------------


def test_the_posts_three_jobs_are_exact() -> None:
    numbers = three_jobs()
    assert numbers["static_alone"] == numbers["fcfs_alone"] == 350 / 600
    assert numbers["static_queued_steps"] == 50 * 200
    assert numbers["fcfs_queued_steps"] == 5850


def test_two_seats_and_four_jobs_by_hand() -> None:
    run = serve_jobs([2, 8, 2, 8], 2, "static")
    assert len(run.steps) == 16
    assert occupancy(run, 2) == 20 / 32
    assert len(serve_jobs([2, 8, 2, 8], 2, "fcfs").steps) == 12


def test_equal_lengths_gain_nothing_and_exponential_ones_the_harmonic_number() -> None:
    assert gain("equal", 8, Random(0)) == 1
    harmonic = sum(1 / n for n in range(1, 9))
    assert gain("exponential", 8, Random(0)) == pytest.approx(harmonic, rel=0.15)


def test_normalized_latency_is_seconds_a_token() -> None:
    assert normalized_latency_s(serve_jobs([4], 1, "fcfs")) == 1


# --- chunked prefill --------------------------------------------------------------------------


def test_long_prompts_come_every_two_seconds_among_the_chats() -> None:
    arrivals = chats_and_long_prompts(0)
    moments = [one.arrival_s for one in arrivals]
    long = [one.arrival_s for one in arrivals if one.prompt_len == LONG_PROMPT]
    assert moments == sorted(moments)
    assert long[:2] == [2.0, 4.0]


def test_a_whole_prompt_is_one_step_and_a_chunked_one_never_passes_the_budget() -> None:
    arrivals = [TracedRequest(0.0, 96, 40), TracedRequest(0.1, LONG_PROMPT, 4)]
    whole, chunked = (of_run(serve(arrivals, budget)) for budget in (0, 256))
    assert whole.most_tokens == LONG_PROMPT + 1
    assert chunked.most_tokens == 256
    assert max(whole.inter_token_s) > 5 * max(chunked.inter_token_s)


# --- policies ---------------------------------------------------------------------------------


def test_the_bound_of_ageing_is_a_times_the_difference_of_costs() -> None:
    assert aging_bound_steps(1, 200, 10) == 190
    assert aging_bound_steps(100, 1, 0) == 100


@pytest.mark.parametrize("rule", RULES, ids=lambda one: one.name)
def test_who_ages_waits_as_long_in_a_longer_stream_and_who_does_not_starves(rule: object) -> None:
    short, long = (starved_wait_steps(rule, size) for size in (60, 120))  # type: ignore[arg-type]
    if rule.aging_steps == 0:  # type: ignore[attr-defined]
        assert long >= short + 100
    else:
        assert long <= 250


# --- prefill and decode apart -----------------------------------------------------------------


def test_an_experience_is_told_from_its_token_times() -> None:
    seen = experience([1.0, 1.5, 3.0])
    assert (seen.ttft_s, seen.tpot_s, seen.longest_gap_s) == (1.0, 1.0, 1.5)
    assert attained([seen, seen], 1.0, 1.0) == 1
    assert attained([seen], 0.9, 1.0) == attained([seen], 1.0, 0.9) == 0


def test_a_received_prompt_costs_its_last_token() -> None:
    prompt = ScheduledRequest("x", [0] * 900, 0, [], True)
    decode = ScheduledRequest("x", [0], 899, [], True)
    found = ReceivedPrompts(COST).seconds(SchedulerOutput([prompt]))
    assert found == COST.seconds(SchedulerOutput([decode]))


def test_one_request_has_the_same_first_token_apart_and_waits_for_the_transfer_after_it() -> None:
    arrivals = [TracedRequest(0.0, 1000, 3), TracedRequest(100.0, 1000, 3)]
    (whole, _), _ = colocated(arrivals, COST, 0)
    (apart, _), _ = disaggregated(arrivals, COST, 25e9)
    assert apart.ttft_s == pytest.approx(whole.ttft_s)
    moved_s = 1000 * 819_200 / 25e9
    assert apart.longest_gap_s - whole.longest_gap_s == pytest.approx(moved_s, rel=0.05)


def test_all_requests_are_served_in_either_way() -> None:
    arrivals = [TracedRequest(0.1 * index, 300 + index, 5) for index in range(11)]
    assert len(colocated(arrivals, COST, 256)[0]) == 11
    assert len(disaggregated(arrivals, COST, 25e9)[0]) == 11


def test_goodput_is_where_the_share_crosses_the_wanted_one() -> None:
    assert goodput({1.0: 1.0, 2.0: 0.8}) == pytest.approx(1.5)
    assert goodput({1.0: 0.95, 2.0: 0.9}) == 2.0
    assert goodput({1.0: 0.5, 2.0: 0.4}) == 0.0
