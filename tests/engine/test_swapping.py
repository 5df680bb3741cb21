"""Preemption by swap: who is swapped, how it comes back, and what it falls back to."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.cache.swap_space import SwapWork
from infra_lab.config import EngineConfig
from infra_lab.engine.request import Request, RequestStatus
from infra_lab.engine.scheduler import Scheduler
from infra_lab.engine.swap_cost import SwapCost
from infra_lab.errors import UsageError
from infra_lab.step import SchedulerOutput
from tests.engine.scheduler_helpers import (
    FakeModel,
    make_request,
    make_scheduler,
    run_step,
    run_to_end,
)


def start(scheduler: Scheduler, **lengths: int) -> dict[str, Request]:
    """Requests of 8 prompt tokens and so many output tokens each, queued."""
    requests = {name: make_request(name, 8, max_tokens=length) for name, length in lengths.items()}
    for request in requests.values():
        scheduler.add_request(request)
    return requests


def step_until_preemption(scheduler: Scheduler, model: FakeModel) -> SchedulerOutput:
    for _ in range(100):
        step = scheduler.schedule()
        scheduler.update_from_output(step, model.execute(step))
        scheduler.check_integrity()
        if step.preempted_request_ids:
            return step
    raise AssertionError("nothing was preempted")


@pytest.mark.parametrize("caching", [True, False])
def test_a_swapped_request_goes_on_where_it_stopped(caching: bool) -> None:
    scheduler = make_scheduler(6, 4, swap_blocks=9, enable_prefix_caching=caching)
    model = FakeModel(4)
    requests = start(scheduler, a=7, b=12)
    step = step_until_preemption(scheduler, model)
    b = requests["b"]
    assert step.preempted_request_ids == ["b"]
    assert len(step.swap_outs) == 3
    assert (b.status, b.num_computed_tokens, b.num_tokens) == (RequestStatus.SWAPPED, 12, 13)
    while b.status is RequestStatus.SWAPPED:
        step = scheduler.schedule()
        scheduler.update_from_output(step, model.execute(step))
        scheduler.check_integrity()
    assert step.num_scheduled_tokens == {"b": 1}, "nothing is computed twice"
    assert (step.new_requests, scheduler.stats().prefix_hit_tokens) == ([], 0)
    assert len(step.swap_ins) == (1 if caching else 3), "two blocks were still cached"
    run_to_end(scheduler, model)
    assert [len(request.output_token_ids) for request in requests.values()] == [7, 12]
    assert scheduler.swap_space is not None
    scheduler.schedule()
    assert scheduler.swap_space.usage.used == 0


def test_a_swapped_request_resumes_before_a_new_one_is_admitted() -> None:
    scheduler, model = make_scheduler(6, 4, swap_blocks=9), FakeModel(4)
    start(scheduler, a=7, b=12)
    step_until_preemption(scheduler, model)
    scheduler.add_request(make_request("new", 1, max_tokens=1))
    order = []
    while scheduler.has_unfinished_requests:
        step = scheduler.schedule()
        order += [name for name in step.num_scheduled_tokens if name != "a"]
        scheduler.update_from_output(step, model.execute(step))
    assert order[0] == "b"


def test_a_full_swap_space_falls_back_to_recomputing() -> None:
    scheduler, model = make_scheduler(6, 4, swap_blocks=2), FakeModel(4)
    requests = start(scheduler, a=7, b=12)
    step = step_until_preemption(scheduler, model)
    assert step.swap_outs == []
    assert requests["b"].status is RequestStatus.PREEMPTED
    run_to_end(scheduler, model)
    assert [len(request.output_token_ids) for request in requests.values()] == [7, 12]


def test_an_aborted_swapped_request_leaves_nothing_in_either_pool() -> None:
    scheduler, model = make_scheduler(6, 4, swap_blocks=9), FakeModel(4)
    start(scheduler, a=7, b=12)
    step_until_preemption(scheduler, model)
    assert scheduler.abort("b")
    scheduler.check_integrity()
    assert scheduler.swap_space is not None
    assert scheduler.swap_space.usage.used == 0
    run_to_end(scheduler, model)
    assert scheduler.kv_cache.usage.used == 0
    assert scheduler.swap_space.reset()


def test_a_request_swapped_out_in_the_middle_of_its_prompt_goes_on_there() -> None:
    scheduler = make_scheduler(
        6, 4, swap_blocks=9, scheduling_policy="priority", max_num_batched_tokens=8, max_num_seqs=4
    )
    model = FakeModel(4)
    low = make_request("low", 20, max_tokens=3, priority=1, prompt_logprobs=0)
    scheduler.add_request(low)
    updates = run_step(scheduler, model)
    scheduler.add_request(make_request("high", 20, max_tokens=3, priority=0))
    step = scheduler.schedule()
    assert (step.preempted_request_ids, low.status) == (["low"], RequestStatus.SWAPPED)
    assert low.num_computed_tokens == 8
    updates += scheduler.update_from_output(step, model.execute(step))
    updates += run_to_end(scheduler, model)
    entries = [e for update in updates if update.request is low for e in update.prompt_logprobs]
    assert [entry.token_id for entry in entries] == low.prompt_token_ids[1:]


def test_those_swapped_out_come_back_in_the_order_of_their_priority() -> None:
    scheduler = make_scheduler(4, 4, swap_blocks=9, scheduling_policy="priority", aging_steps=0)
    model = FakeModel(4)
    for name, priority in [("low", 2), ("mid", 1)]:
        scheduler.add_request(make_request(name, 12, max_tokens=4, priority=priority))
        run_step(scheduler, model)
    scheduler.add_request(make_request("high", 12, max_tokens=2, priority=0))
    served = []
    while scheduler.has_unfinished_requests:
        step = scheduler.schedule()
        served += list(step.num_scheduled_tokens)
        scheduler.update_from_output(step, model.execute(step))
        scheduler.check_integrity()
    assert served == ["high"] * 2 + ["mid"] * 3 + ["low"] * 3


def test_a_failed_step_costs_the_swapped_their_blocks_but_no_token() -> None:
    scheduler, model = make_scheduler(6, 4, swap_blocks=9), FakeModel(4)
    requests = start(scheduler, a=7, b=12)
    step = SchedulerOutput()
    while not step.swap_outs:
        step = scheduler.schedule()
        if not step.swap_outs:
            scheduler.update_from_output(step, model.execute(step))
    assert requests["b"].status is RequestStatus.SWAPPED
    scheduler.abort("a")
    scheduler.abandon(step)  # none of its copies was made
    scheduler.check_integrity()
    assert (requests["b"].status, requests["b"].num_computed_tokens) == (RequestStatus.PREEMPTED, 0)
    run_to_end(scheduler, model)
    assert len(requests["b"].output_token_ids) == 12


works = st.builds(SwapWork, st.integers(0, 50), st.integers(0, 50), st.integers(0, 800))


@given(works, st.floats(1, 1e9), st.floats(0.1, 1e6))
def test_the_lesser_of_both_costs_is_chosen(
    work: SwapWork, bytes_per_s: float, tokens_per_s: float
) -> None:
    cost = SwapCost(bytes_per_block=100, bytes_per_s=bytes_per_s, tokens_per_s=tokens_per_s)
    swap_s = (work.blocks_out + work.blocks_in) * 100 / bytes_per_s
    assert cost.swap_s(work) == pytest.approx(swap_s)
    assert cost.recompute_s(work) == pytest.approx(work.num_tokens / tokens_per_s)
    cheaper = (work.blocks_out + work.blocks_in) * 100 * tokens_per_s / bytes_per_s
    if not math.isclose(cheaper, work.num_tokens):
        assert cost.prefers_swap(work) == (cheaper < work.num_tokens)


def test_the_speed_of_prefill_is_measured_where_it_is_not_given() -> None:
    cost = SwapCost(bytes_per_block=1000, bytes_per_s=1e4)
    work = SwapWork(blocks_out=5, blocks_in=5, num_tokens=80)
    assert cost.recompute_s(work) is None
    assert cost.prefers_swap(work), "nothing is known yet"
    cost.note_prefill(100, 0.5)
    cost.note_prefill(60, 0.3)
    assert cost.recompute_s(work) == pytest.approx(0.4)
    assert not cost.prefers_swap(work), "a second of copies against 0.4 of computing"


def test_a_mode_leaves_no_choice() -> None:
    work = SwapWork(1, 1, 16)
    for mode, chosen in [("swap", True), ("recompute", False)]:
        for tokens_per_s in (1e-9, 1e9):
            assert SwapCost(1, 1.0, tokens_per_s, mode).prefers_swap(work) is chosen


def test_requests_are_swapped_or_recomputed_by_their_own_cost() -> None:
    # Of 13 tokens 12 are computed: 3 blocks out and in against 12 tokens.
    for tokens_per_s, status in [(1.9, RequestStatus.SWAPPED), (2.1, RequestStatus.PREEMPTED)]:
        cost = SwapCost(bytes_per_block=1, bytes_per_s=1.0, tokens_per_s=tokens_per_s)
        scheduler = make_scheduler(6, 4, swap_blocks=9, swap_cost=cost)
        model = FakeModel(4)
        requests = start(scheduler, a=7, b=12)
        step_until_preemption(scheduler, model)
        assert requests["b"].status is status
        run_to_end(scheduler, model)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"swap_space_bytes": -1}, "at least 0, not -1"),
        ({"preemption_mode": "drop"}, "one of auto, swap, recompute, not 'drop'"),
        ({"preemption_mode": "swap"}, "set swap_space_bytes"),
        ({"swap_bytes_per_s": 1e9}, "swap_bytes_per_s is only reckoned with"),
        ({"recompute_tokens_per_s": 0, "swap_space_bytes": 1}, "above 0, not 0"),
        ({"recompute_tokens_per_s": math.nan, "swap_space_bytes": 1}, "above 0, not nan"),
        (
            {"swap_bytes_per_s": 1.0, "swap_space_bytes": 1, "preemption_mode": "swap"},
            "only reckoned with",
        ),
    ],
)
def test_settings_that_mean_nothing_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        EngineConfig(**fields)  # type: ignore[arg-type]


def offloaded(scheduler: Scheduler, model: FakeModel, prompt: list[int]) -> None:
    """Has a conversation computed and then moved to the swap space."""
    scheduler.add_request(make_request("talk", prompt, max_tokens=1))
    run_to_end(scheduler, model)
    space = scheduler.swap_space
    assert space is not None
    assert space.offload(scheduler.kv_cache.new_chain(), prompt) == len(prompt)
    scheduler.add_request(make_request("other", 1, max_tokens=1))
    run_to_end(scheduler, model)  # its step makes the copies


def test_a_prefix_that_who_gives_way_evicts_from_the_swap_space_is_computed_instead() -> None:
    scheduler = make_scheduler(
        12, 4, swap_blocks=3, scheduling_policy="priority", aging_steps=0, max_num_seqs=1
    )
    model, prompt = FakeModel(4), list(range(8))
    offloaded(scheduler, model, prompt)
    scheduler.add_request(make_request("low", 10, max_tokens=5, priority=1))
    run_step(scheduler, model)
    scheduler.add_request(make_request("high", [*prompt, 1], max_tokens=2, priority=0))
    step = scheduler.schedule()
    assert step.preempted_request_ids == ["low"]
    assert len(step.swap_outs) == 3, "the whole swap space"
    assert (step.swap_ins, step.num_scheduled_tokens) == ([], {"high": 9})
    scheduler.update_from_output(step, model.execute(step))
    scheduler.check_integrity()
    run_to_end(scheduler, model)


def test_after_a_failed_step_a_prefix_that_was_to_come_in_is_not_taken_for_there() -> None:
    scheduler, model, prompt = make_scheduler(12, 4, swap_blocks=6), FakeModel(4), list(range(8))
    offloaded(scheduler, model, prompt)
    scheduler.add_request(make_request("first", [*prompt, 1], max_tokens=2))
    step = scheduler.schedule()
    assert len(step.swap_ins) == 2
    for new in step.new_requests:
        model.know(new)
    scheduler.abort("first")
    scheduler.abandon(step)
    scheduler.check_integrity()
    again = make_request("again", [*prompt, 1], max_tokens=2)
    scheduler.add_request(again)
    step = scheduler.schedule()
    assert len(step.swap_ins) == 2, "it is still in the swap space"
    scheduler.update_from_output(step, model.execute(step))
    run_to_end(scheduler, model)
    assert len(again.output_token_ids) == 2
