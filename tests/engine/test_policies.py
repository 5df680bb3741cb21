"""Who runs first, who gives way, and that nobody starves."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra_lab.cache.free_block_queue import CacheIntegrityError
from infra_lab.config import EngineConfig
from infra_lab.engine.admission import MIN_PRIORITY
from infra_lab.engine.policies import (
    FirstComeFirstServed,
    PriorityFirst,
    ShortestJobFirst,
    StaticBatching,
    make_policy,
)
from infra_lab.engine.request import Request, RequestStatus
from infra_lab.engine.scheduler import Scheduler
from infra_lab.errors import InvalidRequestError, UsageError
from infra_lab.sampling_params import SamplingParams
from tests.engine.scheduler_helpers import (
    FakeModel,
    generate_alone,
    make_request,
    make_scheduler,
    run_step,
    run_to_end,
)


def order_of_first_runs(scheduler: Scheduler, model: FakeModel) -> list[str]:
    """Runs to the end; ids in the order in which they were let in."""
    order: list[str] = []
    while scheduler.has_unfinished_requests:
        step = scheduler.schedule()
        order += [new.request_id for new in step.new_requests]
        scheduler.update_from_output(step, model.execute(step))
        scheduler.check_integrity()
    return order


def ids(requests: Sequence[Request]) -> list[str]:
    return [request.request_id for request in requests]


def test_the_lower_priority_number_goes_first_and_then_the_earlier_arrival() -> None:
    scheduler = make_scheduler(max_num_seqs=1, scheduling_policy="priority")
    for name, (priority, arrival) in enumerate([(2, 1), (1, 3), (1, 2), (0, 4)]):
        request = make_request(str(name), 4, max_tokens=2, priority=priority)
        request.arrival_time = arrival
        scheduler.add_request(request)
    assert order_of_first_runs(scheduler, FakeModel(16)) == ["3", "2", "1", "0"]


def test_a_running_request_loses_its_blocks_to_a_later_one_of_higher_priority() -> None:
    scheduler, model = make_scheduler(5, 16, scheduling_policy="priority"), FakeModel(16)
    low = make_request("low", 30, max_tokens=30, priority=5)
    scheduler.add_request(low)
    for _ in range(3):
        run_step(scheduler, model)
    high = make_request("high", 60, max_tokens=3, priority=0)
    scheduler.add_request(high)
    step = scheduler.schedule()
    assert step.preempted_request_ids == ["low"]
    assert step.num_scheduled_tokens == {"high": 60}
    scheduler.update_from_output(step, model.execute(step))
    assert low.num_tokens == 33
    # What it had generated is computed again with its prompt.
    while low.status is not RequestStatus.RUNNING:
        step = scheduler.schedule()
        scheduler.update_from_output(step, model.execute(step))
    (item,) = step.scheduled
    assert item.num_computed_tokens + len(item.token_ids) == 33
    run_to_end(scheduler, model)
    assert len(low.output_token_ids) == 30


def test_only_as_many_give_way_as_are_needed_and_the_last_first() -> None:
    scheduler, model = make_scheduler(9, 4, scheduling_policy="priority"), FakeModel(4)
    for name, priority in [("a", 1), ("b", 2), ("c", 3)]:
        scheduler.add_request(make_request(name, 10, max_tokens=9, priority=priority))
    run_step(scheduler, model)
    scheduler.add_request(make_request("urgent", 16, max_tokens=2, priority=0))
    step = scheduler.schedule()
    assert step.preempted_request_ids == ["c", "b"], "three blocks each, and four are needed"
    assert set(step.num_scheduled_tokens) == {"a", "urgent"}
    scheduler.update_from_output(step, model.execute(step))
    scheduler.check_integrity()
    assert ids(scheduler.running) == ["urgent", "a"]
    assert ids(scheduler.waiting) == ["b", "c"]


def test_nobody_gives_way_where_that_would_not_be_enough() -> None:
    scheduler, model = make_scheduler(6, 4, scheduling_policy="priority"), FakeModel(4)
    scheduler.add_request(make_request("first", 11, max_tokens=5, priority=0))
    scheduler.add_request(make_request("low", 7, max_tokens=3, priority=9))
    run_step(scheduler, model)
    scheduler.add_request(make_request("large", 16, max_tokens=2, priority=5))
    assert scheduler.schedule().preempted_request_ids == []


def test_blocks_that_others_share_are_not_counted_as_given_back() -> None:
    prompt = list(range(12))
    scheduler, model = make_scheduler(6, 4, scheduling_policy="priority"), FakeModel(4)
    scheduler.add_request(make_request("a", prompt, max_tokens=9, priority=0))
    run_step(scheduler, model)
    scheduler.add_request(make_request("twin", [*prompt, 1], max_tokens=9, priority=9))
    run_step(scheduler, model)
    scheduler.add_request(make_request("urgent", 12, max_tokens=1, priority=5))
    # Of the twin's four blocks three are also the first one's: only one would come free.
    assert scheduler.kv_cache.usage.used == 5
    assert scheduler.schedule().preempted_request_ids == []


def test_for_want_of_budget_alone_the_low_one_waits_a_step_and_keeps_its_blocks() -> None:
    scheduler = make_scheduler(
        max_num_seqs=2, max_num_batched_tokens=2, scheduling_policy="priority"
    )
    model = FakeModel(16)
    low = make_request("low", 9, max_tokens=4, priority=1)
    scheduler.add_request(low)
    run_step(scheduler, model)
    scheduler.add_request(make_request("high", 2, max_tokens=4, priority=0))
    step = scheduler.schedule()
    assert step.num_scheduled_tokens == {"high": 2}
    assert step.preempted_request_ids == []
    assert low.num_computed_tokens == 2
    scheduler.update_from_output(step, model.execute(step))
    scheduler.check_integrity()
    run_to_end(scheduler, model)
    assert low.num_preemptions == 0


def test_with_one_seat_and_one_token_a_step_the_higher_priority_still_gets_in() -> None:
    scheduler = make_scheduler(
        max_num_seqs=1, max_num_batched_tokens=1, scheduling_policy="priority"
    )
    model = FakeModel(16)
    scheduler.add_request(make_request("low", 3, max_tokens=9, priority=1))
    run_step(scheduler, model)
    scheduler.add_request(make_request("high", 3, max_tokens=9, priority=0))
    assert scheduler.schedule().num_scheduled_tokens == {"high": 1}


def test_without_ageing_a_stream_of_urgent_requests_starves_the_other() -> None:
    def is_served(aging_steps: int) -> bool:
        scheduler = make_scheduler(
            max_num_seqs=1, scheduling_policy="priority", aging_steps=aging_steps
        )
        model, names = FakeModel(16), count()
        patient = make_request("patient", 3, max_tokens=2, priority=4)
        scheduler.add_request(patient)
        for _ in range(100):
            scheduler.add_request(make_request(f"u{next(names)}", 3, max_tokens=1, priority=0))
            run_step(scheduler, model)
        return patient.is_finished

    assert [is_served(steps) for steps in (0, 5, 20)] == [False, True, True]


def test_the_shortest_job_goes_first_but_takes_nobodys_place() -> None:
    scheduler, model = make_scheduler(max_num_seqs=1, scheduling_policy="sjf"), FakeModel(16)
    scheduler.add_request(make_request("long", 3, max_tokens=30))
    run_step(scheduler, model)
    for name, length in [("b", 9), ("c", 4), ("a", 20)]:
        scheduler.add_request(make_request(name, 3, max_tokens=length))
    assert order_of_first_runs(scheduler, model) == ["c", "b", "a"]


def test_a_preempted_job_comes_back_before_a_new_one_that_is_shorter() -> None:
    scheduler, model = make_scheduler(6, 4, scheduling_policy="sjf"), FakeModel(4)
    a, b = (make_request(name, 8, max_tokens=length) for name, length in [("a", 12), ("b", 13)])
    scheduler.add_request(a)
    scheduler.add_request(b)
    while b.status is not RequestStatus.PREEMPTED:
        run_step(scheduler, model)
    scheduler.add_request(make_request("tiny", 1, max_tokens=1))
    assert ids(scheduler.waiting) == ["b", "tiny"]
    run_to_end(scheduler, model)


def test_a_predictor_takes_the_place_of_max_tokens() -> None:
    def by_first_token(token_ids: Sequence[int], params: SamplingParams) -> float:
        return token_ids[0] / 2

    scheduler = make_scheduler(
        max_num_seqs=1, scheduling_policy="sjf", output_length_predictor=by_first_token
    )
    for name, first in [("a", 9), ("b", 3), ("c", 6), ("d", 500)]:
        scheduler.add_request(make_request(name, [first, 1], max_tokens=8))
    assert order_of_first_runs(scheduler, FakeModel(16)) == ["b", "c", "a", "d"]


@pytest.mark.parametrize("answer", [math.nan, math.inf, "many", None, ZeroDivisionError("x")])
def test_a_prediction_that_is_no_number_is_reported_and_max_tokens_counts(
    answer: object, caplog: pytest.LogCaptureFixture
) -> None:
    def predict(token_ids: Sequence[int], params: SamplingParams) -> float:
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[return-value]

    policy = ShortestJobFirst(100, predict)
    with caplog.at_level(logging.WARNING):
        assert policy.rank(make_request("r", 4, max_tokens=9), 0, 0) == (9, 0)
    assert "'r'" in caplog.text
    assert "9 tokens" in caplog.text


@pytest.mark.parametrize(("predicted", "cost"), [(-5.0, 0), (3.5, 3.5), (1e9, 9)])
def test_a_prediction_counts_within_what_the_request_may_have(
    predicted: float, cost: float
) -> None:
    policy = ShortestJobFirst(100, lambda token_ids, params: predicted)
    assert policy.rank(make_request("r", 4, max_tokens=9), 0, 0) == (cost, 0)


def test_a_job_without_max_tokens_counts_as_the_context_has_room() -> None:
    assert ShortestJobFirst(100).rank(make_request("r", 4, max_tokens=None), 7, 3) == (103, 3)


def test_a_static_batch_runs_until_all_have_finished_and_only_then_comes_the_next() -> None:
    scheduler, model = make_scheduler(max_num_seqs=2, scheduling_policy="static"), FakeModel(16)
    for name, length in [("a", 2), ("b", 6), ("c", 1), ("d", 3)]:
        scheduler.add_request(make_request(name, 3, max_tokens=length))
    batches = []
    while scheduler.has_unfinished_requests:
        step = scheduler.schedule()
        batches.append("".join(item.request_id for item in step.scheduled))
        scheduler.update_from_output(step, model.execute(step))
        scheduler.check_integrity()
    assert batches == ["ab", "ab", "b", "b", "b", "b", "cd", "d", "d"]


def test_a_static_batch_is_not_joined_by_who_comes_later() -> None:
    scheduler, model = make_scheduler(max_num_seqs=8, scheduling_policy="static"), FakeModel(16)
    scheduler.add_request(make_request("a", 3, max_tokens=3))
    run_step(scheduler, model)
    scheduler.add_request(make_request("b", 3, max_tokens=1))
    assert scheduler.schedule().num_scheduled_tokens == {"a": 1}


def test_a_static_batch_may_be_filled_over_several_steps() -> None:
    scheduler = make_scheduler(max_num_seqs=3, max_num_batched_tokens=4, scheduling_policy="static")
    for name in "abcd":
        scheduler.add_request(make_request(name, 3, max_tokens=9))
    seats, model = [], FakeModel(16)
    for _ in range(4):
        run_step(scheduler, model)
        seats.append(len(scheduler.running))
    assert seats == [2, 3, 3, 3]


def test_a_preempted_member_of_a_static_batch_comes_back_before_the_next_batch() -> None:
    scheduler, model = make_scheduler(6, 4, scheduling_policy="static"), FakeModel(4)
    requests = [make_request(name, 8, max_tokens=7) for name in "abc"]
    for request in requests:
        scheduler.add_request(request)
    assert order_of_first_runs(scheduler, model) == ["a", "b", "c"]
    assert requests[1].num_preemptions > 0
    assert [len(request.output_token_ids) for request in requests] == [7, 7, 7]


def test_a_queue_that_is_out_of_order_is_noticed() -> None:
    scheduler = make_scheduler(scheduling_policy="sjf")
    for name, length in [("a", 3), ("b", 9)]:
        scheduler.add_request(make_request(name, 3, max_tokens=length))
    scheduler.waiting.reverse()
    with pytest.raises(CacheIntegrityError, match="policy's order"):
        scheduler.check_integrity()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("fcfs", FirstComeFirstServed),
        ("sjf", ShortestJobFirst),
        ("priority", PriorityFirst),
        ("static", StaticBatching),
    ],
)
def test_the_config_names_the_policy(name: str, kind: type) -> None:
    assert type(make_policy(EngineConfig(scheduling_policy=name), 100)) is kind


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"scheduling_policy": "lifo"}, "one of fcfs, sjf, priority, static, not 'lifo'"),
        ({"aging_steps": 3}, "means nothing to scheduling_policy 'fcfs'"),
        ({"aging_steps": 3, "scheduling_policy": "static"}, "means nothing"),
        ({"aging_steps": -1, "scheduling_policy": "sjf"}, "at least 0, not -1"),
        ({"output_length_predictor": len}, "of no use to scheduling_policy 'fcfs'"),
        ({"output_length_predictor": 3, "scheduling_policy": "sjf"}, "must be a function"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    fields: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        EngineConfig(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("priority", [MIN_PRIORITY - 1, 1001, 1.0, True, "0", None])
def test_a_priority_that_is_no_small_integer_is_refused(priority: object) -> None:
    scheduler = make_scheduler(scheduling_policy="priority")
    with pytest.raises(InvalidRequestError, match="-1000 to 1000"):
        scheduler.add_request(make_request("r", 4, priority=priority))  # type: ignore[arg-type]
    assert not scheduler.has_unfinished_requests


def test_a_priority_without_the_policy_for_it_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="'fcfs'"):
        make_scheduler().add_request(make_request("r", 4, priority=1))


arrivals = st.lists(
    st.tuples(
        st.integers(0, 12),  # steps after the one before
        st.integers(1, 14),  # prompt tokens
        st.integers(1, 10),  # output tokens
        st.integers(0, 3),  # priority
    ),
    min_size=2,
    max_size=24,
)


@settings(max_examples=150, deadline=None)
@given(
    arrivals=arrivals,
    policy=st.sampled_from(["fcfs", "static", "sjf", "priority"]),
    aging_steps=st.integers(1, 4),
    num_blocks=st.sampled_from([6, 7, 9, 30]),
    max_num_seqs=st.integers(1, 4),
    spare_budget=st.integers(0, 12),
    chunked=st.booleans(),
)
def test_nobody_is_overtaken_after_the_bound_nor_waits_longer_than_it(
    arrivals: list[tuple[int, int, int, int]],
    policy: str,
    aging_steps: int,
    num_blocks: int,
    max_num_seqs: int,
    spare_budget: int,
    chunked: bool,
) -> None:
    """The two bounds of infra_lab.engine.policies, computed here from the trace alone."""
    ages = policy in ("sjf", "priority")
    max_num_batched_tokens = max(14, max_num_seqs + spare_budget)
    scheduler = make_scheduler(
        num_blocks,
        4,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        enable_chunked_prefill=chunked,
        scheduling_policy=policy,
        aging_steps=aging_steps if ages else None,
    )
    model = FakeModel(4)
    came: dict[str, int] = {}
    requests: dict[str, Request] = {}
    let_in: dict[str, int] = {}
    ended: dict[str, int] = {}
    pending, due, step_index = list(arrivals), arrivals[0][0], 0
    while pending or scheduler.has_unfinished_requests:
        while pending and due <= step_index:
            _, prompt, output, priority = pending.pop(0)
            request = make_request(
                f"r{len(came)}",
                prompt,
                max_tokens=output,
                priority=priority if policy == "priority" else 0,
            )
            scheduler.add_request(request)
            came[request.request_id] = step_index
            requests[request.request_id] = request
            due += pending[0][0] if pending else 0
        step = scheduler.schedule()
        for new in step.new_requests:
            let_in[new.request_id] = step_index
        for update in scheduler.update_from_output(step, model.execute(step)):
            if update.finish_reason:
                ended[update.request.request_id] = step_index
        scheduler.check_integrity()
        step_index += 1
        assert step_index < 20_000

    def cost(name: str) -> int:
        by_policy = {
            "sjf": requests[name].sampling_params.max_tokens or 0,
            "priority": requests[name].priority,
        }
        return by_policy.get(policy, 0)

    least = min(map(cost, requests))
    for name, request in requests.items():
        last = came[name] + aging_steps * (cost(name) - least)
        for other, step_of_other in came.items():
            if step_of_other > last:
                assert let_in[other] >= let_in[name], f"{other} overtook {name}"
        alive = [r for r in requests if came[r] <= last]
        work = sum(requests[r].num_tokens for r in alive)
        assert ended[name] <= last + (len(alive) + 1) * work
        alone = generate_alone(
            request.prompt_token_ids, request.sampling_params, frozenset(), 4096, num_blocks * 4
        )
        assert request.output_token_ids == alone[0], "an order changes no token"


def test_nobody_gives_way_to_who_would_lack_the_budget_all_the_same() -> None:
    scheduler = make_scheduler(
        max_num_seqs=2,
        max_num_batched_tokens=10,
        enable_chunked_prefill=False,
        scheduling_policy="priority",
    )
    model = FakeModel(16)
    scheduler.add_request(make_request("first", 5, max_tokens=9, priority=0))
    scheduler.add_request(make_request("low", 5, max_tokens=9, priority=9))
    run_step(scheduler, model)
    # Ten tokens at once, of which the first request takes one.
    scheduler.add_request(make_request("whole", 10, max_tokens=2, priority=5))
    step = scheduler.schedule()
    assert step.preempted_request_ids == []
    assert step.num_scheduled_tokens == {"first": 1, "low": 1}
