"""When a request ends, and which prompt log-probabilities it still owes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.engine.request import KV_CACHE_FULL, Request, RequestStatus
from tests.engine.scheduler_helpers import EOS, make_request

EOS_IDS = frozenset({EOS})


def append(request: Request, token_ids, max_model_len: int = 100, capacity: int = 100):
    kept = request.append(token_ids, max_model_len, capacity)
    return kept, request.status.finish_reason, request.stop_reason


def test_max_tokens_cuts_what_came_beyond_it() -> None:
    request = make_request("a", 3, max_tokens=2)
    assert append(request, [10, 11, 12]) == ([10, 11], "length", None)
    assert request.output_token_ids == [10, 11]
    assert request.num_tokens == 5


def test_a_stop_token_is_kept_and_named() -> None:
    request = make_request("a", 3, stop_token_ids=(42,))
    assert append(request, [10, 42, 12]) == ([10, 42], "stop", 42)


def test_the_end_token_stops_without_a_stop_reason() -> None:
    assert append(make_request("a", 3, eos=EOS_IDS), [1, EOS, 2]) == ([1, EOS], "stop", None)


def test_any_of_several_end_tokens_stops() -> None:
    for eos in (5, 6):
        request = make_request("a", 3, eos=frozenset({5, 6}))
        assert append(request, [1, eos, 2]) == ([1, eos], "stop", None)


def test_the_end_token_can_be_ignored_and_a_stop_token_cannot() -> None:
    request = make_request("a", 3, eos=EOS_IDS, ignore_eos=True, stop_token_ids=(42,))
    assert append(request, [EOS, 42]) == ([EOS, 42], "stop", 42)


def test_nothing_stops_before_min_tokens() -> None:
    request = make_request("a", 3, eos=EOS_IDS, min_tokens=3, stop_token_ids=(42,))
    assert append(request, [EOS, 42]) == ([EOS, 42], None, None)
    assert append(request, [EOS]) == ([EOS], "stop", None)


def test_an_end_token_that_is_also_the_last_allowed_one_counts_as_a_stop() -> None:
    request = make_request("a", 3, eos=EOS_IDS, max_tokens=2)
    assert append(request, [1, EOS]) == ([1, EOS], "stop", None)


def test_without_max_tokens_the_model_length_is_the_limit() -> None:
    request = make_request("a", 3, max_tokens=None)
    assert append(request, [0] * 9, max_model_len=8) == ([0] * 5, "length", None)


def test_a_request_that_outgrows_the_whole_cache_says_so() -> None:
    request = make_request("a", 3, max_tokens=None)
    kept, reason, stop_reason = append(request, [0] * 9, capacity=8)
    assert (len(kept), reason, stop_reason) == (6, "length", KV_CACHE_FULL)


@pytest.mark.parametrize("status", RequestStatus)
def test_only_finished_states_have_a_finish_reason(status: RequestStatus) -> None:
    expected = {
        RequestStatus.FINISHED_STOPPED: "stop",
        RequestStatus.FINISHED_LENGTH: "length",
        RequestStatus.FINISHED_ABORTED: "abort",
    }
    assert status.finish_reason == expected.get(status)


def test_a_request_without_prompt_logprobs_owes_none() -> None:
    assert make_request("a", 9).prompt_logprobs_from(0, 9) is None


@given(st.integers(1, 30), st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=40))
def test_each_prompt_logprob_is_owed_once_whatever_is_computed_twice(num_prompt, chunks) -> None:
    request = make_request("a", num_prompt, prompt_logprobs=0)
    delivered: list[int] = []
    start = 0
    for size, preempted in [*chunks, (num_prompt, True), (num_prompt, False)]:
        start = 0 if preempted else start
        end = min(start + size, num_prompt)
        first = request.prompt_logprobs_from(start, end)
        if first is not None:
            positions = range(first, min(end, num_prompt - 1))
            assert positions.start >= start
            assert positions
            delivered += positions
            request.num_prompt_logprobs += len(positions)
        start = end
    assert delivered == list(range(num_prompt - 1))
    assert not request.owes_prompt_logprobs
