"""Samples of one prompt: one prefill, shared blocks, a copy when one of them writes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from infra_lab.engine.request import Request, RequestStatus
from infra_lab.engine.scheduler import Scheduler
from infra_lab.step import BlockCopy
from tests.engine.scheduler_helpers import (
    FakeModel,
    generate_alone,
    make_request,
    make_scheduler,
    run_step,
    run_to_end,
)


def add_group(scheduler: Scheduler, prompt: int, n: int, max_tokens: int = 4) -> list[Request]:
    leader = make_request("s0", prompt, max_tokens=max_tokens, ignore_eos=True)
    group = [
        replace(leader, request_id=f"s{seed}", seed=seed, output_token_ids=[]) for seed in range(n)
    ]
    for request in group:
        scheduler.add_request(request, None if request is group[0] else "s0")
    return group


def assert_as_alone(group: list[Request]) -> None:
    for request in group:
        expected, _ = generate_alone(
            request.prompt_token_ids,
            request.sampling_params,
            frozenset(),
            4096,
            10**6,
            request.seed,
        )
        assert request.output_token_ids == expected


def test_the_prompt_is_computed_once_and_held_once() -> None:
    scheduler, model = make_scheduler(), FakeModel(16)
    group = add_group(scheduler, prompt=40, n=4)
    step = scheduler.schedule()
    assert step.num_scheduled_tokens == {"s0": 40}
    assert step.scheduled[0].forks == ("s1", "s2", "s3")
    assert [new.request_id for new in step.new_requests] == ["s0", "s1", "s2", "s3"]
    scheduler.update_from_output(step, model.execute(step))
    scheduler.check_integrity()
    assert scheduler.stats().blocks_used == 3
    assert [request.request_id for request in scheduler.running] == ["s0", "s1", "s2", "s3"]

    step = scheduler.schedule()
    assert step.num_scheduled_tokens == dict.fromkeys(("s0", "s1", "s2", "s3"), 1)
    assert step.block_copies == [BlockCopy(3, 4), BlockCopy(3, 5), BlockCopy(3, 6)]
    scheduler.update_from_output(step, model.execute(step))
    assert scheduler.stats().blocks_used == 6  # not 12
    run_to_end(scheduler, model)
    assert_as_alone(group)


def test_a_chunked_prompt_is_waited_for() -> None:
    scheduler, model = make_scheduler(max_num_batched_tokens=16, max_num_seqs=8), FakeModel(16)
    group = add_group(scheduler, prompt=40, n=3)
    other = make_request("other", 5, max_tokens=2)
    scheduler.add_request(other)
    assert scheduler.stats().waiting == 4
    run_step(scheduler, model)
    run_step(scheduler, model)
    assert not group[1].sent_to_worker
    step = scheduler.schedule()
    assert step.num_scheduled_tokens == {"s0": 8, "other": 5}, "others pass those that wait"
    scheduler.update_from_output(step, model.execute(step))
    run_to_end(scheduler, model)
    assert_as_alone(group)


def test_where_max_num_seqs_leaves_no_room_samples_run_later() -> None:
    scheduler, model = make_scheduler(max_num_seqs=2), FakeModel(16)
    group = add_group(scheduler, prompt=40, n=5)
    run_step(scheduler, model)
    assert [request.request_id for request in scheduler.running] == ["s0", "s1"]
    assert [request.request_id for request in scheduler.waiting] == ["s2", "s3", "s4"]
    run_to_end(scheduler, model)
    assert_as_alone(group)
    assert [request.num_cached_tokens for request in group] == [0, 0, 32, 32, 32]


def test_an_aborted_leader_is_followed_by_the_next() -> None:
    scheduler, model = make_scheduler(max_num_batched_tokens=16, max_num_seqs=8), FakeModel(16)
    group = add_group(scheduler, prompt=40, n=3)
    run_step(scheduler, model)
    scheduler.abort("s0")
    scheduler.check_integrity()
    step = scheduler.schedule()
    assert list(step.num_scheduled_tokens) == ["s1"]
    scheduler.update_from_output(step, model.execute(step))
    run_to_end(scheduler, model)
    assert_as_alone(group[1:])


def test_samples_survive_a_leader_that_is_aborted_while_they_sample() -> None:
    scheduler, model = make_scheduler(), FakeModel(16)
    group = add_group(scheduler, prompt=40, n=3)
    step = scheduler.schedule()
    output = model.execute(step)
    scheduler.abort("s0")
    scheduler.abort("s1")
    scheduler.check_integrity()
    updates = scheduler.update_from_output(step, output)
    assert [update.request.request_id for update in updates] == ["s2"]
    assert group[2].status is RequestStatus.WAITING
    scheduler.check_integrity()
    run_to_end(scheduler, model)
    assert_as_alone(group[2:])


@pytest.mark.parametrize("prompt", [32, 33])
def test_samples_that_end_at_once_leave_nothing_behind(prompt: int) -> None:
    scheduler, model = make_scheduler(), FakeModel(16)
    group = add_group(scheduler, prompt, n=4, max_tokens=1)
    run_step(scheduler, model)
    assert not scheduler.has_unfinished_requests
    assert scheduler.kv_cache.usage.used == 0
    assert_as_alone(group)
