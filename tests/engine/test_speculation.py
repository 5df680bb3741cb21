"""Speculation through the scheduler and a model that notices every wrong byte: drafts take what is
left over, rejected ones leave no trace, and every request yields what it yields alone."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from infra_lab.engine.request import Request
from infra_lab.engine.speculation import Speculation
from infra_lab.sampling_params import SamplingParams
from infra_lab.speculative.proposer import DraftRequest
from infra_lab.speculative_config import SpeculativeConfig
from infra_lab.step import NO_DRAFT, Draft, ModelOutput, ScheduledRequest, SchedulerOutput
from tests.engine.scheduler_helpers import (
    VOCABULARY,
    FakeModel,
    ScriptedModel,
    digests,
    make_request,
    make_scheduler,
    next_token,
)
from tests.engine.test_scheduler_machine import MAX_MODEL_LEN, SchedulerMachine


class VerifyingModel(FakeModel):
    """Writes drafted tokens' content too, reads it back, and keeps the drafts that are right."""

    last: tuple[SchedulerOutput, ModelOutput]

    def execute(self, step: SchedulerOutput) -> ModelOutput:
        output = super().execute(step)
        self.last = (step, output)
        return output

    def _write(self, item: ScheduledRequest) -> None:
        known = self.tokens[item.request_id]
        tokens = [*known, *item.draft.token_ids]
        end = item.num_computed_tokens + len(item.token_ids)
        assert item.token_ids, "nothing was scheduled"
        assert list(item.token_ids) == tokens[item.num_computed_tokens : end]
        assert item.samples == (end == len(tokens))
        values = digests(tokens)
        for position in range(item.num_computed_tokens, end):
            self.kv[self._slot(item, position)] = values[position]

    def _read(self, item: ScheduledRequest) -> None:
        end = item.num_computed_tokens + len(item.token_ids)
        values = digests([*self.tokens[item.request_id], *item.draft.token_ids][:end])
        for position in range(end):
            assert self.kv[self._slot(item, position)] == values[position], (
                f"{item.request_id} reads foreign content at position {position}"
            )

    def _sample(self, item: ScheduledRequest, output: ModelOutput) -> None:
        if len(item.draft) == 0:
            super()._sample(item, output)
            return
        tokens, seed = self.tokens[item.request_id], self.known[item.request_id].seed
        sampled = []
        for drafted in [*item.draft.token_ids, None]:
            tokens.append(next_token(tokens, seed))
            sampled.append(tokens[-1])
            if tokens[-1] != drafted:
                break
        output.sampled_token_ids[item.request_id] = sampled


class OracleProposer:
    """Knows the right tokens, and drafts a wrong one in between as often as it is told to."""

    relative_cost = 0.0

    def __init__(self, share_wrong: float, seed: int = 0) -> None:
        self._share_wrong = share_wrong
        self._random = random.Random(seed)
        self.asked: list[DraftRequest] = []
        self.forgotten: list[str] = []

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self.asked += requests
        return [self._draft(request) for request in requests]

    def forget(self, request_id: str) -> None:
        self.forgotten.append(request_id)

    def _draft(self, request: DraftRequest) -> Draft:
        assert request.num_draft_tokens >= 1
        tokens = list(request.token_ids)
        for _ in range(self._random.randint(0, request.num_draft_tokens)):
            right = next_token(tokens, request.request.seed)
            is_wrong = self._random.random() < self._share_wrong
            tokens.append((right + 1) % VOCABULARY if is_wrong else right)
        drafted = tokens[len(request.token_ids) :]
        return Draft(drafted) if drafted else NO_DRAFT


class SpeculatingMachine(SchedulerMachine):
    """All that the scheduler's machine does, with drafts of every kind between the steps."""

    def __init__(self) -> None:
        super().__init__()
        self.speculation: Speculation | None = None

    @property
    def model(self) -> VerifyingModel:
        return self._model

    @model.setter
    def model(self, given: FakeModel) -> None:
        """Whatever model a machine is built with, it verifies."""
        self._model = VerifyingModel(given.block_size)

    @rule(
        k=st.integers(1, 6),
        share_wrong=st.sampled_from([0.0, 0.2, 0.5, 1.0]),
        seed=st.integers(0, 9),
        adaptive=st.booleans(),
    )
    def draft_from_now_on(self, k: int, share_wrong: float, seed: int, adaptive: bool) -> None:
        settings_of = SpeculativeConfig("ngram", num_speculative_tokens=k, adaptive=adaptive)
        proposer = OracleProposer(share_wrong, seed)
        self.speculation = Speculation(
            settings_of, proposer, self.kv_cache, MAX_MODEL_LEN, row_cost=0.05
        )

    def _step(self, aborted_in_flight: str | None = None) -> None:
        if self.speculation is None:
            self.draft_from_now_on(k=3, share_wrong=0.3, seed=0, adaptive=False)
        assert self.speculation is not None
        super()._step(aborted_in_flight)
        self.speculation.forget(self.model.last[0].finished_request_ids)
        self.speculation.observe(*self.model.last)
        self.speculation.propose(self.scheduler.running)
        self.scheduler.check_integrity()


SpeculatingMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=15, deadline=None
)
TestSpeculatingSchedulerAndPool = SpeculatingMachine.TestCase


class Loop:
    """The engine's loop around a scheduler: step, observe, propose."""

    def __init__(self, proposer: OracleProposer, k: int, **config: int | bool) -> None:
        self.scheduler = make_scheduler(max_model_len=100, **config)  # type: ignore[arg-type]
        self.model = VerifyingModel(self.scheduler.kv_cache.block_size)
        settings_of = SpeculativeConfig("ngram", num_speculative_tokens=k, adaptive=False)
        self.speculation = Speculation(
            settings_of, proposer, self.scheduler.kv_cache, max_model_len=100, row_cost=0.0
        )

    def step(self) -> dict[str, int]:
        """Computes one step; returns how many tokens of each request were in it."""
        scheduled = self.scheduler.schedule()
        self.speculation.forget(scheduled.finished_request_ids)
        output = self.model.execute(scheduled)
        self.speculation.observe(scheduled, output)
        self.scheduler.update_from_output(scheduled, output)
        self.speculation.propose(self.scheduler.running)
        self.scheduler.check_integrity()
        return scheduled.num_scheduled_tokens


class Always(OracleProposer):
    """As many tokens as are wanted, all of them right or all wrong."""

    def __init__(self, right: bool = True) -> None:
        super().__init__(share_wrong=0.0 if right else 1.0)
        self._random.randint = lambda low, high: high  # type: ignore[method-assign]


def test_a_chunked_prompt_is_drafted_for_only_when_it_has_said_something() -> None:
    """Budget 50, prompt 80, k 3: 50, 30 (not 33), then 4, as vLLM publishes."""
    loop = Loop(Always(), k=3, max_num_batched_tokens=50, max_num_seqs=50)
    loop.scheduler.add_request(make_request("r", 80, ignore_eos=True))
    assert [loop.step() for _ in range(3)] == [{"r": 50}, {"r": 30}, {"r": 4}]
    assert loop.scheduler.running[0].num_tokens == 80 + 1 + 4


def test_a_draft_is_no_longer_than_what_may_still_come_out() -> None:
    """max_tokens 4, one token out: three may follow, of which a step adds the last itself."""
    proposer = Always()
    loop = Loop(proposer, k=8)
    loop.scheduler.add_request(make_request("r", 5, max_tokens=4, ignore_eos=True))
    assert [loop.step(), loop.step()] == [{"r": 5}, {"r": 3}]
    assert not loop.scheduler.has_unfinished_requests
    assert [request.num_draft_tokens for request in proposer.asked] == [2]


def test_a_draft_stops_at_the_end_of_the_context_and_of_the_pool() -> None:
    proposer = Always()
    loop = Loop(proposer, k=8)
    loop.scheduler.add_request(make_request("r", 96, max_tokens=None, ignore_eos=True))
    while loop.scheduler.has_unfinished_requests:
        loop.step()
    assert [request.num_draft_tokens for request in proposer.asked] == [2]
    small = Loop(Always(), k=8, num_blocks=2, block_size=4)
    small.scheduler.add_request(make_request("r", 5, max_tokens=None, ignore_eos=True))
    sizes = []
    while small.scheduler.has_unfinished_requests:
        sizes.append(small.step()["r"])
    assert sizes == [5, 3]


def test_a_request_may_draft_less_than_the_engine_or_nothing() -> None:
    proposer = Always()
    loop = Loop(proposer, k=5)
    for name, k in (("a", 2), ("b", 0), ("c", None)):
        loop.scheduler.add_request(make_request(name, 4, ignore_eos=True, num_speculative_tokens=k))
    loop.step()
    assert loop.step() == {"a": 3, "b": 1, "c": 6}
    assert {request.request_id for request in proposer.asked} == {"a", "c"}


def test_drafts_take_only_the_budget_that_known_tokens_leave() -> None:
    """Budget 8: a's draft must not keep b's and c's tokens, or the new prompt, out of the step."""
    loop = Loop(Always(), k=6, max_num_batched_tokens=8, max_num_seqs=4)
    for name in "abc":
        loop.scheduler.add_request(make_request(name, 2, ignore_eos=True))
    assert loop.step() == {"a": 2, "b": 2, "c": 2}
    assert loop.step() == {"a": 6, "b": 1, "c": 1}
    loop.scheduler.add_request(make_request("d", 4, ignore_eos=True))
    assert loop.step() == {"a": 2, "b": 1, "c": 1, "d": 4}


def test_nobody_is_preempted_for_a_draft() -> None:
    """Two requests fill the pool; a draft that would need a block more is left out."""
    loop = Loop(Always(), k=4, num_blocks=4, block_size=4)
    for name in "ab":
        loop.scheduler.add_request(make_request(name, 7, max_tokens=2, ignore_eos=True))
    assert loop.step() == {"a": 7, "b": 7}
    loop.scheduler.running[0].draft = Draft([1, 2, 3, 4])
    assert loop.step() == {"a": 1, "b": 1}
    assert all(request.num_preemptions == 0 for request in loop.scheduler.running)


def test_rejected_tokens_are_never_found_by_another_request() -> None:
    """A wrong draft across a block's border, then a request with just these tokens (vllm#18668)."""
    loop = Loop(Always(right=False), k=6, block_size=4)
    prompt = [1, 2, 3, 4, 5, 6]
    loop.scheduler.add_request(make_request("a", prompt, ignore_eos=True))
    loop.step()
    request = loop.scheduler.running[0]
    wrong = [*request.all_token_ids, *request.draft.token_ids]
    assert len(wrong) == 13
    loop.step()
    loop.scheduler.add_request(make_request("b", [*wrong, 9], ignore_eos=True))
    loop.step()
    # One block of the prompt is shared; the second ends in the first rejected token.
    assert loop.scheduler.running[1].num_cached_tokens == 4


def test_acceptance_is_counted_by_place_and_a_step_without_output_is_not() -> None:
    loop = Loop(Always(), k=3)
    draft = Draft([1, 2, 3])
    item = ScheduledRequest("r", [9, 1, 2, 3], 5, [1, 2], samples=True, draft=draft)
    step = SchedulerOutput([item])
    assert loop.speculation.observe(step, ModelOutput({"r": [1, 5]})) == {"r": (3, 1)}
    assert loop.speculation.observe(step, ModelOutput({"r": []})) == {}
    assert loop.speculation.observe(step, ModelOutput()) == {}
    assert loop.speculation.stats.num_accepted_tokens_per_pos == [1, 0, 0]
    assert loop.speculation.stats.num_draft_tokens == 3


def test_a_proposer_that_fails_costs_its_drafts_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Always):
        def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
            raise RuntimeError("out of memory")

    loop = Loop(Broken(), k=3)
    loop.scheduler.add_request(make_request("r", 4, max_tokens=3, ignore_eos=True))
    assert [loop.step() for _ in range(3)] == [{"r": 4}, {"r": 1}, {"r": 1}]
    assert not loop.scheduler.has_unfinished_requests
    assert "drafting failed" in caplog.text


def test_an_ended_request_is_forgotten_before_its_id_is_used_again() -> None:
    proposer = Always()
    loop = Loop(proposer, k=2)
    loop.scheduler.add_request(make_request("r", 4, max_tokens=3, ignore_eos=True))
    while loop.scheduler.has_unfinished_requests:
        loop.step()
    loop.scheduler.add_request(make_request("r", 4, max_tokens=3, ignore_eos=True))
    asked = len(proposer.asked)
    loop.step()
    assert proposer.forgotten == ["r"]
    assert len(proposer.asked) == asked + 1


def test_an_adaptive_draft_ends_for_the_request_whose_drafts_fail() -> None:
    loop = Loop(Always(), k=4)
    settings_of = SpeculativeConfig("ngram", num_speculative_tokens=4)
    kv_cache = loop.scheduler.kv_cache
    loop.speculation = Speculation(settings_of, Always(right=False), kv_cache, 100, row_cost=0.1)
    loop.scheduler.add_request(make_request("r", 4, max_tokens=40, ignore_eos=True))
    sizes = []
    while loop.scheduler.has_unfinished_requests:
        sizes.append(loop.step()["r"])
    assert max(sizes[1:6]) > 1
    assert sizes[10:25].count(1) >= 14


def test_a_scripted_model_that_says_less_than_was_drafted_is_taken_at_its_word() -> None:
    """Ids past the end are dropped and what the cache holds of them is not counted."""
    scheduler = make_scheduler(block_size=4)
    scheduler.add_request(make_request("r", 3, max_tokens=3))
    model = ScriptedModel({"r": [[5], [6, 7, 8, 9]]})
    for _ in range(2):
        step = scheduler.schedule()
        updates = scheduler.update_from_output(step, model.execute(step))
        request: Request = updates[0].request
        request.draft = Draft([6, 7, 8])
    assert updates[0].new_token_ids == [6, 7]
    assert updates[0].finish_reason == "length"
    assert scheduler.kv_cache.usage.used == 0


def test_parameters_say_how_many_tokens_a_request_drafts() -> None:
    assert SamplingParams.from_dict({"num_speculative_tokens": 0}).num_speculative_tokens == 0
