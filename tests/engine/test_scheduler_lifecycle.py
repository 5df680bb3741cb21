"""A request's way through the scheduler: shared prefixes, drafts, aborts, what is told of it."""

from __future__ import annotations

import dataclasses

import pytest

from infra_lab.engine.request import RequestStatus
from infra_lab.step import ModelOutput, TokenLogprobs
from tests.engine.scheduler_helpers import (
    EOS,
    FakeModel,
    ScriptedModel,
    generate_alone,
    make_request,
    make_scheduler,
    run_step,
    run_to_end,
)


def test_a_prompt_that_is_cached_whole_computes_at_least_one_token() -> None:
    scheduler, model = make_scheduler(), FakeModel(16)
    first, second = make_request("a", range(32)), make_request("b", range(32))
    scheduler.add_request(first)
    run_to_end(scheduler, model)
    scheduler.add_request(second)
    step = scheduler.schedule()
    assert step.num_scheduled_tokens == {"b": 16}
    assert second.num_cached_tokens == 16
    scheduler.update_from_output(step, model.execute(step))
    run_to_end(scheduler, model)
    assert second.output_token_ids == first.output_token_ids


def test_generated_tokens_are_a_prefix_for_the_next_turn() -> None:
    scheduler, model = make_scheduler(block_size=4), FakeModel(4)
    first = make_request("a", 8, max_tokens=9)
    scheduler.add_request(first)
    run_to_end(scheduler, model)
    second = make_request("b", [*first.all_token_ids, 1, 2, 3])
    scheduler.add_request(second)
    run_step(scheduler, model)
    assert second.num_cached_tokens == 16, "the 17th token was sampled and never computed"


def test_identical_prompts_of_one_step_leave_two_usable_copies() -> None:
    scheduler, model = make_scheduler(7, 4), FakeModel(4)
    for name in "ab":
        scheduler.add_request(make_request(name, range(9), max_tokens=8))
    run_step(scheduler, model)
    assert scheduler.stats().prefix_hit_tokens == 0
    scheduler.abort("a")
    evictor = make_request("c", 16, max_tokens=1)
    scheduler.add_request(evictor)
    run_step(scheduler, model)
    assert scheduler.stats().evictions == 2, "the copies of a are gone"
    third = make_request("d", range(9), max_tokens=1)
    scheduler.add_request(third)
    run_to_end(scheduler, model)
    assert third.num_cached_tokens == 8


def test_different_salts_share_nothing() -> None:
    scheduler, model = make_scheduler(), FakeModel(16)
    requests = [
        make_request(name, range(40), cache_salt=salt)
        for name, salt in (("a", "x"), ("b", "y"), ("c", "x"), ("d", None))
    ]
    for request in requests:
        scheduler.add_request(request)
        run_to_end(scheduler, model)
    assert [request.num_cached_tokens for request in requests] == [0, 0, 32, 0]


def test_prompt_logprobs_are_whole_under_chunks_and_a_warm_cache() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=8, max_num_seqs=8)
    model, answers = FakeModel(16), []
    for name in "ab":
        request = make_request(name, range(33), max_tokens=2, prompt_logprobs=0)
        scheduler.add_request(request)
        updates = run_to_end(scheduler, model)
        answers.append([entry for update in updates for entry in update.prompt_logprobs])
        assert request.num_cached_tokens == 0, "the cache is not read, only written"
    assert [entry.token_id for entry in answers[0]] == list(range(1, 33))
    assert answers[0] == answers[1]
    reader = make_request("c", range(33))
    scheduler.add_request(reader)
    run_step(scheduler, model)
    assert reader.num_cached_tokens == 32


def draft_step(sampled: list[int]):
    """Schedule a 3-token prompt, let the worker verify the drafts [7, 8, 9] behind it, and
    have it answer `sampled`; blocks hold 4 tokens."""
    scheduler = make_scheduler(block_size=4)
    request = make_request("a", [1, 2, 3])
    scheduler.add_request(request)
    step = scheduler.schedule()
    scheduler.kv_cache.allocate_slots("a", 3, 0, num_lookahead_tokens=3)
    (item,) = step.scheduled
    drafted = dataclasses.replace(item, token_ids=[1, 2, 3, 7, 8, 9])
    step = dataclasses.replace(step, scheduled=[drafted])
    scheduler.update_from_output(step, ModelOutput({"a": sampled}))
    scheduler.check_integrity()
    return scheduler, request


def cached_tokens(scheduler, prompt: list[int]) -> int:
    chain = scheduler.kv_cache.new_chain()
    return scheduler.kv_cache.find_cached_prefix(chain, prompt).num_tokens


def test_rejected_drafts_are_never_cached() -> None:
    scheduler, request = draft_step(sampled=[5])
    assert request.all_token_ids == [1, 2, 3, 5]
    assert request.num_computed_tokens == 3
    assert cached_tokens(scheduler, [1, 2, 3, 7, 0]) == 0
    assert cached_tokens(scheduler, [1, 2, 3, 5, 0]) == 0, "5 is final but not computed"


def test_accepted_drafts_are_computed_and_cached() -> None:
    scheduler, request = draft_step(sampled=[7, 8, 5])
    assert request.num_computed_tokens == 5
    assert cached_tokens(scheduler, [1, 2, 3, 7, 0]) == 4
    step = scheduler.schedule()
    assert list(step.scheduled[0].token_ids) == [5]


def test_several_sampled_tokens_are_cut_behind_the_stop_with_their_logprobs() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 3, stop_token_ids=(42,), logprobs=0))
    step = scheduler.schedule()
    logprobs = [TokenLogprobs(t, -1.0, 1, []) for t in (10, 42, 12)]
    output = ModelOutput({"a": [10, 42, 12]}, logprobs={"a": logprobs})
    (update,) = scheduler.update_from_output(step, output)
    assert update.new_token_ids == [10, 42]
    assert update.logprobs == logprobs[:2]
    assert (update.finish_reason, update.stop_reason) == ("stop", 42)
    assert not scheduler.has_unfinished_requests


def test_a_request_is_introduced_once_and_its_end_is_told_once() -> None:
    scheduler, model = make_scheduler(max_num_batched_tokens=4, max_num_seqs=4), FakeModel(16)
    scheduler.add_request(make_request("a", 6, max_tokens=2))
    introduced, finished = [], []
    for _ in range(6):
        step = scheduler.schedule()
        introduced.append([new.request_id for new in step.new_requests])
        finished.append(step.finished_request_ids)
        scheduler.update_from_output(step, model.execute(step))
    assert introduced == [["a"], [], [], [], [], []]
    assert finished == [[], [], [], ["a"], [], []]


def test_the_worker_is_told_seed_parameters_and_end_tokens() -> None:
    scheduler = make_scheduler()
    request = make_request("a", 6, eos=frozenset({EOS}), top_k=3)
    request.seed = 99
    scheduler.add_request(request)
    (new,) = scheduler.schedule().new_requests
    assert (new.seed, new.eos_token_ids) == (99, {EOS})
    assert new.sampling_params is request.sampling_params
    assert new.prompt_token_ids == request.prompt_token_ids


def test_a_chunk_that_brings_nothing_makes_no_update() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=4, max_num_seqs=4)
    scheduler.add_request(make_request("a", 6))
    model = FakeModel(16)
    assert run_step(scheduler, model) == []
    assert len(run_step(scheduler, model)) == 1


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_an_abort_gives_everything_back_once(num_steps: int) -> None:
    scheduler = make_scheduler(block_size=4, max_num_batched_tokens=6, max_num_seqs=4)
    model = FakeModel(4)
    request = make_request("a", 10)
    scheduler.add_request(request)
    for _ in range(num_steps):
        run_step(scheduler, model)
    assert scheduler.abort("a")
    assert not scheduler.abort("a")
    assert request.status is RequestStatus.FINISHED_ABORTED
    scheduler.check_integrity()
    assert scheduler.kv_cache.usage.used == 0
    assert not scheduler.has_unfinished_requests
    step = scheduler.schedule()
    assert step.finished_request_ids == (["a"] if num_steps else []), "if the worker knew it"


def test_aborting_an_unknown_or_finished_request_does_nothing() -> None:
    scheduler = make_scheduler()
    assert not scheduler.abort("unknown")
    scheduler.add_request(make_request("a", 3, max_tokens=1))
    run_to_end(scheduler, FakeModel(16))
    assert not scheduler.abort("a")
    scheduler.check_integrity()


def test_aborting_a_preempted_request_leaves_nothing_behind() -> None:
    scheduler, model = make_scheduler(4, 4), FakeModel(4)
    requests = [make_request(name, 8, max_tokens=6) for name in "ab"]
    for request in requests:
        scheduler.add_request(request)
    while requests[1].status is not RequestStatus.PREEMPTED:
        run_step(scheduler, model)
    assert scheduler.abort("b")
    run_to_end(scheduler, model)
    assert requests[1].num_computed_tokens == 0
    assert scheduler.kv_cache.usage.used == 0


def test_a_step_in_flight_says_nothing_of_a_request_aborted_meanwhile() -> None:
    scheduler, model = make_scheduler(), FakeModel(16)
    aborted, other = make_request("a", 20), make_request("b", 20)
    scheduler.add_request(aborted)
    scheduler.add_request(other)
    step = scheduler.schedule()
    scheduler.abort("a")
    scheduler.add_request(make_request("a", 3))
    (update,) = scheduler.update_from_output(step, model.execute(step))
    assert update.request is other
    assert aborted.output_token_ids == []
    scheduler.check_integrity()
    run_to_end(scheduler, model)


def test_an_aborted_partial_block_is_never_found() -> None:
    scheduler, model = make_scheduler(block_size=4), FakeModel(4)
    scheduler.add_request(make_request("a", range(6)))
    run_step(scheduler, model)
    scheduler.abort("a")
    assert cached_tokens(scheduler, list(range(9))) == 4


def test_a_stop_found_in_the_text_ends_a_request_as_stopped() -> None:
    scheduler = make_scheduler()
    request = make_request("a", 3)
    scheduler.add_request(request)
    run_step(scheduler, ScriptedModel({"a": [[5]]}))
    assert scheduler.finish("a", RequestStatus.FINISHED_STOPPED)
    assert request.status.finish_reason == "stop"
    assert not scheduler.has_unfinished_requests


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("budget", [1, 7, 64])
@pytest.mark.parametrize("num_blocks", [24, 400])
@pytest.mark.parametrize("caching", [True, False])
def test_outputs_do_not_depend_on_any_setting(
    block_size: int, budget: int, num_blocks: int, caching: bool
) -> None:
    scheduler = make_scheduler(
        num_blocks,
        block_size,
        max_num_batched_tokens=budget,
        max_num_seqs=min(budget, 4),
        enable_prefix_caching=caching,
    )
    requests = [
        make_request(f"r{i}", [*range(10), i % 2, i], max_tokens=8, eos=frozenset({EOS}))
        for i in range(4)
    ]
    for request in requests:
        scheduler.add_request(request)
    run_to_end(scheduler, FakeModel(block_size))
    for request in requests:
        expected, reason = generate_alone(
            request.prompt_token_ids, request.sampling_params, request.eos_token_ids, 4096, 10**6
        )
        assert (request.output_token_ids, request.status.finish_reason) == (expected, reason)


def test_the_prefix_cache_counts_what_was_asked_and_found_until_it_is_reset() -> None:
    scheduler, model = make_scheduler(num_blocks=20, block_size=4), FakeModel(4)
    for name in "ab":
        scheduler.add_request(make_request(name, list(range(10)), max_tokens=1))
        run_to_end(scheduler, model)
    stats = scheduler.prefix_cache_stats
    assert (stats.requests, stats.tokens, stats.hit_tokens, stats.hit_rate) == (2, 20, 8, 0.4)
    scheduler.add_request(make_request("c", list(range(10)), max_tokens=2))
    run_step(scheduler, model)
    assert not scheduler.reset_prefix_cache(), "a request holds blocks"
    run_to_end(scheduler, model)
    assert scheduler.reset_prefix_cache()
    assert scheduler.prefix_cache_stats.requests == 0
    scheduler.add_request(make_request("d", list(range(10)), max_tokens=1))
    run_to_end(scheduler, model)
    assert scheduler.prefix_cache_stats.hit_tokens == 0
