"""What fits into a step: the token budget, chunks, seats, and who is refused at the door."""

from __future__ import annotations

import pytest

from infra_lab.engine.scheduler import Scheduler
from infra_lab.errors import InvalidRequestError
from tests.engine.scheduler_helpers import FakeModel, make_request, make_scheduler, run_to_end


def steps_of(
    scheduler: Scheduler, count: int, model: FakeModel | None = None
) -> list[dict[str, int]]:
    """The next `count` steps, as request id -> number of scheduled tokens."""
    model, steps = model or FakeModel(scheduler.kv_cache.block_size), []
    for _ in range(count):
        step = scheduler.schedule()
        steps.append(step.num_scheduled_tokens)
        assert step.total_num_scheduled_tokens <= scheduler.config.max_num_batched_tokens
        scheduler.update_from_output(step, model.execute(step))
    return steps


def test_long_prompts_share_the_budget_under_a_cap() -> None:
    scheduler = make_scheduler(200, max_num_batched_tokens=1024, long_prefill_token_threshold=400)
    for name in "abc":
        scheduler.add_request(make_request(name, 800))
    assert steps_of(scheduler, 3) == [
        {"a": 400, "b": 400, "c": 224},
        {"a": 400, "b": 400, "c": 224},
        {"a": 1, "b": 1, "c": 352},
    ]


def test_with_chunking_off_nothing_overtakes_a_prompt_that_does_not_fit() -> None:
    scheduler = make_scheduler(200, max_num_batched_tokens=1024, enable_chunked_prefill=False)
    for name, length in zip("abcd", (800, 800, 10, 10), strict=True):
        scheduler.add_request(make_request(name, length))
    assert steps_of(scheduler, 2) == [{"a": 800}, {"a": 1, "b": 800, "c": 10, "d": 10}]


def test_with_chunking_off_the_cap_does_not_split_a_prompt() -> None:
    scheduler = make_scheduler(enable_chunked_prefill=False, long_prefill_token_threshold=8)
    scheduler.add_request(make_request("a", 100))
    assert steps_of(scheduler, 1) == [{"a": 100}]


def test_prefill_chunks_and_decodes_share_a_step() -> None:
    scheduler, model = make_scheduler(max_num_batched_tokens=8, max_num_seqs=8), FakeModel(16)
    scheduler.add_request(make_request("a", 4))
    assert steps_of(scheduler, 1, model) == [{"a": 4}]
    scheduler.add_request(make_request("b", 12))
    assert steps_of(scheduler, 3, model) == [{"a": 1, "b": 7}, {"a": 1, "b": 5}, {"a": 1, "b": 1}]


def test_only_the_last_chunk_of_a_prompt_samples() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=8, max_num_seqs=8)
    scheduler.add_request(make_request("a", 12))
    model, sampled = FakeModel(16), []
    for _ in range(3):
        step = scheduler.schedule()
        sampled.append([item.samples for item in step.scheduled])
        scheduler.update_from_output(step, model.execute(step))
    assert sampled == [[False], [True], [True]]


def test_no_more_requests_run_than_there_are_seats() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    for name in "abc":
        scheduler.add_request(make_request(name, 4, max_tokens=2))
    assert steps_of(scheduler, 3) == [{"a": 4, "b": 4}, {"a": 1, "b": 1}, {"c": 4}]


def test_a_waiting_request_enters_only_when_all_its_tokens_have_room() -> None:
    scheduler = make_scheduler(4, 4, max_num_batched_tokens=4, max_num_seqs=4)
    model = FakeModel(4)
    scheduler.add_request(make_request("a", 4, max_tokens=2))
    assert steps_of(scheduler, 1, model) == [{"a": 4}]
    scheduler.add_request(make_request("b", 13, max_tokens=1))
    assert steps_of(scheduler, 2, model) == [{"a": 1}, {"b": 4}]


def test_the_model_length_leaves_one_token_for_the_output() -> None:
    scheduler = make_scheduler(200, max_model_len=2048)
    scheduler.add_request(make_request("fits", 2047))
    with pytest.raises(InvalidRequestError, match=r"2048 tokens, but max_model_len is 2048"):
        scheduler.add_request(make_request("long", 2048))
    updates = run_to_end(scheduler, FakeModel(16))
    assert [len(u.new_token_ids) for u in updates] == [1]
    assert updates[-1].finish_reason == "length"


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="empty prompt"):
        make_scheduler().add_request(make_request("a", []))


def test_an_id_in_use_is_refused_and_free_again_afterwards() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 3))
    with pytest.raises(InvalidRequestError, match="'a' is running already"):
        scheduler.add_request(make_request("a", 3))
    model = FakeModel(16)
    run_to_end(scheduler, model)
    scheduler.add_request(make_request("a", 5, max_tokens=3))
    assert len(run_to_end(scheduler, model)) == 3


def test_a_prompt_larger_than_the_pool_is_refused_and_the_next_one_runs() -> None:
    scheduler = make_scheduler(8, 4, max_model_len=100)
    with pytest.raises(InvalidRequestError, match=r"36 tokens, which needs 9 KV blocks .* has 8"):
        scheduler.add_request(make_request("large", 36))
    scheduler.add_request(make_request("small", 3, max_tokens=2))
    assert run_to_end(scheduler, FakeModel(4))[-1].finish_reason == "length"


def test_with_chunking_off_a_prompt_larger_than_a_step_is_refused() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=64, enable_chunked_prefill=False)
    with pytest.raises(InvalidRequestError, match=r"65 tokens, .* max_num_batched_tokens = 64"):
        scheduler.add_request(make_request("a", 65))
    scheduler.add_request(make_request("b", 64))


def test_stats_count_what_the_step_did() -> None:
    scheduler = make_scheduler(4, 4, max_num_seqs=1)
    for name, prompt in (("a", range(9)), ("b", range(9)), ("c", range(50, 63))):
        scheduler.add_request(make_request(name, prompt, max_tokens=1))
    model, seen = FakeModel(4), []
    for _ in range(3):
        step = scheduler.schedule()
        seen.append(scheduler.stats())
        scheduler.update_from_output(step, model.execute(step))
    assert [s.prefix_hit_tokens for s in seen] == [0, 8, 0]
    assert [s.evictions for s in seen] == [0, 0, 2]
    assert [(s.running, s.waiting) for s in seen] == [(1, 2), (1, 1), (1, 0)]
    assert [(s.blocks_used, s.blocks_cached, s.blocks_free) for s in seen] == [
        (3, 0, 1),
        (3, 0, 1),
        (4, 0, 0),
    ]
    after = scheduler.stats()
    assert (after.blocks_used, after.blocks_cached, after.blocks_free) == (0, 3, 1)
