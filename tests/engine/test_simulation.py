"""The scheduler on a modelled clock: what a simulated run records, by hand and by law."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra_lab.config import EngineConfig
from infra_lab.engine.simulation import (
    SimulatedStep,
    TracedRequest,
    UnitSteps,
    percentile,
    simulate,
)
from infra_lab.errors import UsageError


def config(**fields: int) -> EngineConfig:
    return EngineConfig(**{"num_blocks": 64, "block_size": 4, **fields})


def test_every_token_has_its_time_after_the_arrival() -> None:
    run = simulate([TracedRequest(5.0, 10, 4)], config(), UnitSteps())
    (served,) = run.served
    assert list(served.token_times_s) == [1.0, 2.0, 3.0, 4.0]
    assert (served.ttft_s, served.latency_s) == (1.0, 4.0)
    assert served.inter_token_s == [1.0, 1.0, 1.0]
    assert (run.elapsed_s, run.output_tokens_per_s) == (4.0, 1.0)


def test_a_step_says_what_ran_what_waited_and_what_was_held() -> None:
    arrivals = [TracedRequest(0.0, 5, 2), TracedRequest(0.0, 3, 1)]
    run = simulate(arrivals, config(max_num_seqs=1), UnitSteps())
    assert run.steps == [
        SimulatedStep(0.0, 1.0, 1, 5, 1, blocks_used=2, held_tokens=5),
        SimulatedStep(1.0, 1.0, 1, 1, 1, blocks_used=2, held_tokens=6),
        SimulatedStep(2.0, 1.0, 1, 3, 0, blocks_used=1, held_tokens=3),
    ]


def test_a_chunked_prompt_holds_only_what_is_computed() -> None:
    run = simulate(
        [TracedRequest(0.0, 10, 1)],
        config(max_num_seqs=4, max_num_batched_tokens=4),
        UnitSteps(),
    )
    assert [one.held_tokens for one in run.steps] == [4, 8, 10]
    assert [one.blocks_used for one in run.steps] == [1, 2, 3]


def test_a_small_pool_preempts_and_everybody_is_served() -> None:
    arrivals = [TracedRequest(0.0, 8, 20), TracedRequest(0.0, 8, 20)]
    run = simulate(arrivals, config(num_blocks=8), UnitSteps())
    assert run.num_preemptions > 0
    assert {len(one.token_times_s) for one in run.served} == {20}


@settings(max_examples=25)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12)), min_size=1, max_size=12),
    gap=st.floats(0, 5),
    seats=st.integers(1, 4),
)
def test_tokens_and_time_are_kept_account_of(
    lengths: list[tuple[int, int]], gap: float, seats: int
) -> None:
    arrivals = [TracedRequest(gap * index, *one) for index, one in enumerate(lengths)]
    run = simulate(arrivals, config(max_num_seqs=seats, max_num_batched_tokens=16), UnitSteps())
    assert sorted(map(id, (one.traced for one in run.served))) == sorted(map(id, arrivals))
    for one in run.served:
        assert len(one.token_times_s) == one.traced.output_len
        assert list(one.token_times_s) == sorted(one.token_times_s)
    computed = sum(prompt + output - 1 for prompt, output in lengths)
    assert sum(step.num_tokens for step in run.steps) == computed
    assert run.elapsed_s >= len(run.steps) - 1e-9
    for step in run.steps:
        assert step.num_requests <= seats
        assert 0 <= step.blocks_used * 4 - step.held_tokens < 4 * seats


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_priority_matters_under_the_policy_of_that_name_only(policy: str) -> None:
    arrivals = [TracedRequest(0.0, 1, 5, 1), TracedRequest(0.0, 1, 5, 0)]
    run = simulate(
        arrivals,
        EngineConfig(num_blocks=64, max_num_seqs=1, scheduling_policy=policy),
        UnitSteps(),
    )
    first = run.served[0].traced.priority
    assert first == (0 if policy == "priority" else 1)


@pytest.mark.parametrize(
    ("arrivals", "fields", "message"),
    [
        ([], {}, "at least 1 request"),
        ([TracedRequest(1.0, 4, 2), TracedRequest(0.0, 4, 2)], {}, "in order of arrival"),
        ([TracedRequest(0.0, 4, 2)], {"swap_space_bytes": 1 << 20}, "neither a swap space"),
    ],
)
def test_what_a_simulation_cannot_be_true_to_is_refused(
    arrivals: list[TracedRequest], fields: dict[str, int], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        simulate(arrivals, config(**fields), UnitSteps())


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.floats(0, 100))
def test_a_percentile_is_that_of_numpy(values: list[float], percent: float) -> None:
    assert percentile(values, percent) == pytest.approx(np.percentile(values, percent), abs=1e-6)
