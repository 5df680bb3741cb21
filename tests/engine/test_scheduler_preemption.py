"""What happens when blocks run out: who gives way, and how it comes back."""

from __future__ import annotations

from collections.abc import Sequence

from infra_lab.cache.kv_cache_manager import KVCacheManager
from infra_lab.config import EngineConfig
from infra_lab.engine.policies import FirstComeFirstServed
from infra_lab.engine.request import KV_CACHE_FULL, Request, RequestStatus
from infra_lab.engine.scheduler import Scheduler
from infra_lab.engine.step_builder import StepBuilder
from infra_lab.step import ScheduledRequest
from tests.engine.scheduler_helpers import (
    FakeModel,
    make_request,
    make_scheduler,
    run_step,
    run_to_end,
)


class FirstGivesWay(FirstComeFirstServed):
    """Takes requests out of a step that they are already in."""

    def choose_victim(self, running: Sequence[Request]) -> int:
        return 0


def step_until_preemption(scheduler: Scheduler, model: FakeModel):
    """Run until a step preempts; returns that step, executed and taken in."""
    for _ in range(100):
        step = scheduler.schedule()
        scheduler.update_from_output(step, model.execute(step))
        scheduler.check_integrity()
        if step.preempted_request_ids:
            return step
    raise AssertionError("nothing was preempted")


def test_the_last_admitted_gives_way_and_returns_ahead_of_those_behind_it() -> None:
    scheduler, model = make_scheduler(6, 4, max_num_seqs=2), FakeModel(4)
    requests = [make_request(name, 8, max_tokens=7) for name in "abc"]
    for request in requests:
        scheduler.add_request(request)
    step = step_until_preemption(scheduler, model)
    assert step.preempted_request_ids == ["b"]
    assert step.num_scheduled_tokens == {"a": 1}, "nobody is admitted in a step that preempts"
    assert [r.request_id for r in scheduler.waiting] == ["b", "c"]
    assert requests[1].status is RequestStatus.PREEMPTED
    assert requests[1].num_preemptions == 1
    assert scheduler.stats().preempted_request_ids == ("b",)
    run_to_end(scheduler, model)
    assert [len(r.output_token_ids) for r in requests] == [7, 7, 7]


def test_a_resumed_request_computes_all_its_tokens_less_the_cached_ones() -> None:
    scheduler, model = make_scheduler(6, 4), FakeModel(4)
    a, b = make_request("a", 8, max_tokens=7), make_request("b", 8, max_tokens=12)
    scheduler.add_request(a)
    scheduler.add_request(b)
    step_until_preemption(scheduler, model)
    assert b.num_tokens == 13
    assert b.num_computed_tokens == 0
    while b.status is RequestStatus.PREEMPTED:
        step = scheduler.schedule()
        scheduler.update_from_output(step, model.execute(step))
    (item,) = [item for item in step.scheduled if item.request_id == "b"]
    assert item.num_computed_tokens == 8, "its first two blocks were still cached"
    assert list(item.token_ids) == b.all_token_ids[8:13]
    assert item.samples
    assert step.new_requests == [], "the worker knows it already"
    assert b.num_cached_tokens == 0, "what its first scheduling found"


def test_a_request_that_fills_the_pool_alone_ends_cleanly() -> None:
    scheduler = make_scheduler(2, 4)
    request = make_request("a", 8, max_tokens=None)
    scheduler.add_request(request)
    (update,) = run_to_end(scheduler, FakeModel(4))
    assert len(update.new_token_ids) == 1
    assert (update.finish_reason, update.stop_reason) == ("length", KV_CACHE_FULL)
    assert scheduler.kv_cache.usage.used == 0


def test_a_request_that_outgrows_the_pool_does_not_take_the_others_with_it() -> None:
    scheduler = make_scheduler(4, 4)
    first = make_request("a", 3, max_tokens=None)
    second = make_request("b", 3, max_tokens=4)
    scheduler.add_request(first)
    scheduler.add_request(second)
    run_to_end(scheduler, FakeModel(4))
    assert (first.status, first.stop_reason) == (RequestStatus.FINISHED_LENGTH, KV_CACHE_FULL)
    assert first.num_tokens == 17, "16 in the pool, and the last one needs no slot"
    assert len(second.output_token_ids) == 4


def test_outputs_are_the_same_with_room_for_one_request_only() -> None:
    def outputs(num_blocks: int) -> list[list[int]]:
        scheduler = make_scheduler(num_blocks, 4)
        requests = [make_request(name, 5, max_tokens=15) for name in "abcd"]
        for request in requests:
            scheduler.add_request(request)
        run_to_end(scheduler, FakeModel(4))
        return [request.output_token_ids for request in requests]

    assert outputs(5) == outputs(100)


def test_with_chunking_off_a_resumed_request_longer_than_a_step_is_split() -> None:
    scheduler = make_scheduler(
        8,
        4,
        max_num_batched_tokens=9,
        max_num_seqs=2,
        enable_chunked_prefill=False,
        enable_prefix_caching=False,
    )
    requests = [make_request(name, 8, max_tokens=12) for name in "ab"]
    for request in requests:
        scheduler.add_request(request)
    run_to_end(scheduler, FakeModel(4))
    assert requests[1].num_preemptions > 0
    assert [len(request.output_token_ids) for request in requests] == [12, 12]


def test_a_victim_already_in_the_step_leaves_it_and_nobody_behind_is_passed_over() -> None:
    config = EngineConfig(block_size=4, num_blocks=4)
    scheduler = Scheduler(config, KVCacheManager(5, 4), 100, FirstGivesWay())
    model = FakeModel(4)
    scheduler.add_request(make_request("a", 5, max_tokens=4))
    scheduler.add_request(make_request("b", 3, max_tokens=4))
    scheduler.add_request(make_request("c", 3, max_tokens=4))
    run_step(scheduler, model)
    run_step(scheduler, model)
    step = scheduler.schedule()
    assert step.preempted_request_ids == ["a"]
    assert step.num_scheduled_tokens == {"b": 1, "c": 1}
    scheduler.update_from_output(step, model.execute(step))
    scheduler.check_integrity()
    run_to_end(scheduler, model)


def test_a_victims_tokens_go_back_to_the_budget() -> None:
    step = StepBuilder(budget=10)
    step.add(ScheduledRequest("a", [1, 2, 3], 0, [1], False))
    step.add(ScheduledRequest("b", [4], 0, [2], True))
    step.preempt("a")
    assert step.budget == 9
    output = step.build([])
    assert output.num_scheduled_tokens == {"b": 1}
    assert output.preempted_request_ids == ["a"]


def test_prompt_logprobs_survive_a_preemption_once_each() -> None:
    scheduler = make_scheduler(6, 4, max_num_batched_tokens=6, max_num_seqs=4)
    a = make_request("a", 8, max_tokens=14)
    b = make_request("b", 8, max_tokens=9, prompt_logprobs=0)
    scheduler.add_request(a)
    scheduler.add_request(b)
    updates = run_to_end(scheduler, FakeModel(4))
    assert b.num_preemptions > 0
    entries = [e for u in updates if u.request is b for e in u.prompt_logprobs]
    assert [entry.token_id for entry in entries] == b.prompt_token_ids[1:]
