"""Policies on a modelled clock: what the figures mean, and what they must come to."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra_lab.bench.policies import StepCost, policies_report
from infra_lab.config import EngineConfig
from infra_lab.engine.simulation import TracedRequest, simulate
from infra_lab.engine.traces import Trace
from infra_lab.errors import UsageError

ONE_SECOND_A_STEP = StepCost(fixed_ms=1000.0, token_ms=0.0, context_token_ms=0.0)


def config(policy: str = "fcfs", **fields: int) -> EngineConfig:
    return EngineConfig(num_blocks=64, scheduling_policy=policy, **fields)


def test_times_of_one_request_can_be_told_by_hand() -> None:
    (served,) = simulate([TracedRequest(5.0, 10, 4, 1)], config(), ONE_SECOND_A_STEP).served
    assert (served.ttft_s, served.latency_s) == (1.0, 4.0)


def test_a_step_costs_its_fixed_part_its_tokens_and_the_context_they_read() -> None:
    cost = StepCost(fixed_ms=1.0, token_ms=10.0, context_token_ms=100.0)
    run = simulate([TracedRequest(0.0, 3, 2, 1)], config(), cost)
    assert run.served[0].ttft_s == pytest.approx((1 + 3 * 10 + 3 * 100) / 1e3)
    assert run.elapsed_s == pytest.approx((331 + 1 + 10 + 400) / 1e3)


def test_an_idle_engine_waits_for_the_next_arrival() -> None:
    arrivals = [TracedRequest(1.0, 4, 2, 1), TracedRequest(60.0, 4, 2, 1)]
    run = simulate(arrivals, config(), ONE_SECOND_A_STEP)
    assert [one.latency_s for one in run.served] == [2.0, 2.0]
    assert run.elapsed_s == 61.0
    assert run.output_tokens_per_s == 4 / 61


def test_continuous_batching_fills_seats_that_a_static_batch_leaves_empty() -> None:
    arrivals = [TracedRequest(0.0, 1, length, 1) for length in (2, 8, 2, 8)]
    runs = [
        simulate(arrivals, config(policy, max_num_seqs=2), ONE_SECOND_A_STEP)
        for policy in ("static", "fcfs")
    ]
    assert [run.elapsed_s for run in runs] == [16.0, 12.0]


def test_shortest_job_first_has_the_least_mean_of_all_orders_of_known_jobs() -> None:
    arrivals = [TracedRequest(0.0, 1, length, 1) for length in (9, 3, 6)]

    def latencies(policy: str) -> list[float]:
        run = simulate(arrivals, config(policy, max_num_seqs=1), ONE_SECOND_A_STEP)
        return sorted(one.latency_s for one in run.served)

    assert latencies("sjf") == [3.0, 9.0, 18.0]
    assert latencies("fcfs") == [9.0, 12.0, 18.0]


@pytest.mark.parametrize("rate", [0.0, 5.0])
def test_every_request_is_served_under_every_policy(rate: float) -> None:
    require_served(seed=1, rate=rate)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 100), rate=st.sampled_from([0.0, 1.0, 5.0]))
def test_every_request_is_served_under_every_policy_and_the_work_is_the_same(
    seed: int, rate: float
) -> None:
    require_served(seed, rate)


def require_served(seed: int, rate: float) -> None:
    trace = Trace(20, rate, seed)
    sizes = EngineConfig(num_blocks=60, max_num_seqs=4, max_num_batched_tokens=64)
    report = policies_report(trace, sizes, StepCost())
    for figures in report["policies"].values():
        assert figures["all"]["requests"] == 20
        assert 0 < figures["all"]["ttft_mean_s"] < figures["all"]["latency_mean_s"]
        assert figures["all"]["latency_mean_s"] <= figures["all"]["latency_p99_s"]
        assert figures["all"]["latency_p99_s"] <= figures["all"]["latency_max_s"]


def test_one_seed_is_one_trace_and_its_rate_is_as_asked() -> None:
    assert Trace(50, 2.0, 7).arrivals() == Trace(50, 2.0, 7).arrivals()
    last = Trace(4000, 2.0).arrivals()[-1]
    assert last.arrival_s == pytest.approx(2000, rel=0.1)
    assert {one.arrival_s for one in Trace(9, 0.0).arrivals()} == {0.0}


def test_a_seeds_requests_are_the_same_at_any_rate() -> None:
    at_once, slow, fast = (Trace(40, rate, 3).arrivals() for rate in (0.0, 0.5, 4.0))
    asked = [
        [(one.prompt_len, one.output_len, one.priority) for one in ones]
        for ones in (at_once, slow, fast)
    ]
    assert asked[0] == asked[1] == asked[2]
    assert [one.arrival_s for one in slow] == pytest.approx([8 * one.arrival_s for one in fast])


def test_lengths_reach_their_bounds_and_shares_are_as_asked() -> None:
    trace = Trace(4000, prompt=(3, 5), short=(1, 2), long=(7, 9), long_share=0.2, urgent_share=0.1)
    arrivals = trace.arrivals()
    assert {one.prompt_len for one in arrivals} == {3, 4, 5}
    assert {one.output_len for one in arrivals} == {1, 2, 7, 8, 9}
    # Four standard deviations of the binomial: 101 and 76.
    assert sum(one.output_len > 2 for one in arrivals) == pytest.approx(800, abs=100)
    assert sum(one.priority == 0 for one in arrivals) == pytest.approx(400, abs=80)


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 1 request, not 0"):
        Trace(0)
    with pytest.raises(UsageError, match="0 or more requests a second, not -1"):
        Trace(1, -1.0)
    with pytest.raises(UsageError, match="give num_blocks"):
        simulate(Trace(1).arrivals(), EngineConfig(), StepCost())
    with pytest.raises(UsageError, match="no policy 'lifo': choose among fcfs, sjf"):
        policies_report(Trace(1), config(), StepCost(), ["lifo"])
