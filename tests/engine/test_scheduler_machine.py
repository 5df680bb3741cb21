"""Scheduler and block pool driven at random through a model that notices every wrong byte.

Whatever is added, aborted or preempted, in whatever pool: no block leaks or is freed twice,
every request finishes or is refused, and each yields what it would have yielded alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from infra_lab.cache.block_hash import sha256
from infra_lab.cache.kv_cache_manager import KVCacheManager
from infra_lab.cache.swap_space import SwapSpace
from infra_lab.config import EngineConfig
from infra_lab.engine.policies import (
    FirstComeFirstServed,
    PriorityFirst,
    ShortestJobFirst,
    StaticBatching,
)
from infra_lab.engine.request import Request, RequestStatus, cache_keys
from infra_lab.engine.scheduler import Scheduler
from infra_lab.engine.swap_cost import SwapCost
from infra_lab.engine.updates import RequestUpdate
from infra_lab.errors import InvalidRequestError
from infra_lab.sampling_params import SamplingParams
from infra_lab.step import SchedulerOutput
from tests.engine.scheduler_helpers import EOS, FakeModel, generate_alone, prompt_logprob

MAX_MODEL_LEN = 48
SHARED = [(i * i + 3) % 11 for i in range(40)]

prompts = st.builds(
    lambda shared, tail: SHARED[:shared] + tail,
    st.integers(0, 20),
    st.lists(st.integers(0, 10), max_size=3),
)
params = st.builds(
    SamplingParams,
    temperature=st.just(0.0),
    max_tokens=st.none() | st.integers(3, 30),
    min_tokens=st.integers(0, 3),
    ignore_eos=st.sampled_from([True, True, False]),
    stop_token_ids=st.sampled_from([(), (), (), (3,)]),
    prompt_logprobs=st.sampled_from([None, None, None, 0]),
)
arrivals = st.lists(
    st.tuples(prompts, params, st.sampled_from([None, None, "x"]), st.integers(0, 3)),
    min_size=1,
    max_size=4,
)


@dataclass
class Tracked:
    """What the test knows of one request from the updates alone."""

    request: Request
    order: int
    follows: bool = False
    finish_reason: str | None = None

    def __post_init__(self) -> None:
        self.token_ids: list[int] = []
        self.prompt_logprobs: list[object] = []


class FirstGivesWay(FirstComeFirstServed):
    """Takes requests out of a step they are already in."""

    def choose_victim(self, running: Sequence[Request]) -> int:
        return 0


KEEP_ARRIVAL_ORDER = (FirstComeFirstServed, StaticBatching)
policies = st.sampled_from(
    [
        FirstComeFirstServed,
        FirstComeFirstServed,
        FirstGivesWay,
        StaticBatching,
        lambda: ShortestJobFirst(MAX_MODEL_LEN),
        lambda: ShortestJobFirst(MAX_MODEL_LEN, aging_steps=0),
        lambda: PriorityFirst(aging_steps=3),
        lambda: PriorityFirst(aging_steps=0),
    ]
)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        pool_tokens=st.integers(12, 60),
        block_size=st.sampled_from([1, 2, 4, 16]),
        max_num_seqs=st.sampled_from([4, 5, 2, 1]),
        spare_budget=st.integers(0, 40),
        cap=st.sampled_from([0, 0, 3, 8]),
        chunked=st.booleans(),
        caching=st.sampled_from([True, True, False]),
        colliding=st.sampled_from([False, False, True]),
        tokens_per_step=st.sampled_from([1, 1, 3]),
        make_policy=policies,
        swap_tokens=st.sampled_from([0, 0, 8, 20, 100]),
        chooses=st.booleans(),
    )
    def build(
        self,
        pool_tokens,
        block_size,
        max_num_seqs,
        spare_budget,
        cap,
        chunked,
        caching,
        colliding,
        tokens_per_step,
        make_policy,
        swap_tokens,
        chooses,
    ) -> None:
        num_blocks = -(-pool_tokens // block_size)
        self.config = EngineConfig(
            block_size=block_size,
            num_blocks=num_blocks,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + spare_budget,
            long_prefill_token_threshold=cap,
            enable_chunked_prefill=chunked,
            enable_prefix_caching=caching,
            scheduling_policy="priority",  # lets requests carry one; the policy is given below
        )
        hash_function = (lambda _: b"same") if colliding else sha256
        self.kv_cache = KVCacheManager(num_blocks + 1, block_size, caching, hash_function)
        self.policy = make_policy()
        self.swap_space = None
        if swap_tokens:
            self.swap_space = SwapSpace(-(-swap_tokens // block_size) + 1, self.kv_cache)
        # By turns, whatever is the better for it: both ways, in one run, of requests that share.
        cost = SwapCost(bytes_per_block=2, bytes_per_s=1.0, tokens_per_s=1.5 / block_size)
        self.scheduler = Scheduler(
            self.config,
            self.kv_cache,
            MAX_MODEL_LEN,
            self.policy,
            self.swap_space,
            cost if chooses else None,
        )
        self.model = FakeModel(block_size, tokens_per_step)
        self.tracked: dict[str, Tracked] = {}

    @rule(requests=arrivals)
    def add(self, requests: list[tuple[list[int], SamplingParams, str | None, int]]) -> None:
        for prompt, sampling, salt, priority in requests:
            self._add(prompt, sampling, salt, priority=priority)

    @rule(prompt=prompts, sampling=params)
    def add_twins(self, prompt: list[int], sampling: SamplingParams) -> None:
        """Two requests that compute the same content, often in one step."""
        self._add(prompt, sampling, None)
        self._add(prompt, sampling, None)

    @rule(prompt=prompts, sampling=params, salt=st.sampled_from([None, "x"]), n=st.integers(2, 4))
    def add_group(
        self, prompt: list[int], sampling: SamplingParams, salt: str | None, n: int
    ) -> None:
        """Samples of one prompt, each with a seed of its own."""
        leader = self._add(prompt, sampling, salt, seed=1)
        for seed in range(2, n + 1):
            if leader is not None:
                own = replace(sampling, prompt_logprobs=None)
                self._add(prompt, own, salt, seed, leader_id=leader.request_id)

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self._step()

    @precondition(lambda self: self.tracked)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self._abort(data.draw(st.sampled_from(sorted(self.tracked))))

    @precondition(lambda self: self.scheduler.has_unfinished_requests)
    @rule(data=st.data())
    def abort_while_a_step_is_in_flight(self, data: st.DataObject) -> None:
        self._step(data.draw(st.sampled_from(sorted(self.tracked))))

    @precondition(lambda self: self.swap_space is not None and self.config.enable_prefix_caching)
    @rule(prompt=prompts, salt=st.sampled_from([None, "x"]))
    def offload(self, prompt: list[int], salt: str | None) -> None:
        """Any prefix, whoever computed it; often one that requests use or that is here already."""
        chain = self.kv_cache.new_chain(cache_keys(salt))
        num_found = self.swap_space.offload(chain, prompt)
        assert num_found <= len(prompt)
        assert num_found % self.config.block_size == 0

    @precondition(lambda self: self.tracked)
    @rule(data=st.data())
    def offload_what_a_request_computed(self, data: st.DataObject) -> None:
        if self.swap_space is not None and self.config.enable_prefix_caching:
            name = data.draw(st.sampled_from(sorted(self.tracked)))
            request = self.tracked[name].request
            chain = self.kv_cache.new_chain(request.extra_keys)
            self.swap_space.offload(chain, request.all_token_ids)

    @precondition(lambda self: self.scheduler.has_unfinished_requests)
    @rule()
    def a_step_fails(self) -> None:
        """Its copies are not made, and its requests end, as the engine ends them."""
        step = self.scheduler.schedule()
        for item in step.scheduled:
            for name in (item.request_id, *item.forks):
                self._abort(name)
        self.scheduler.abandon(step)
        self.scheduler.check_integrity()
        for new in step.new_requests:
            self.model.know(new)
        for copy in step.swap_outs:
            self.model.spoil(self.model.host_kv, copy.target)
        for copy in (*step.block_copies, *step.swap_ins):
            self.model.spoil(self.model.kv, copy.target)
        for name in step.finished_request_ids:
            self.model.forget(name)

    @rule()
    def reset_swap_space(self) -> None:
        if self.swap_space is not None:
            is_held = any(one.status is RequestStatus.SWAPPED for one in self.scheduler.waiting)
            assert self.swap_space.reset() is not is_held

    @rule()
    def reset_prefix_cache(self) -> None:
        assert self.kv_cache.reset_prefix_cache() == (self.kv_cache.usage.used == 0)

    @invariant()
    def accounts_are_in_order(self) -> None:
        self.scheduler.check_integrity()

    @invariant()
    def requests_stand_in_order_of_arrival(self) -> None:
        queue = [*self.scheduler.running, *self.scheduler.waiting]
        tracked = [self.tracked[request.request_id] for request in queue]
        order = [one.order for one in tracked if not one.follows]
        assert order == sorted(order) or type(self.policy) not in KEEP_ARRIVAL_ORDER

    def teardown(self) -> None:
        for _ in range(3000):
            if not self.scheduler.has_unfinished_requests:
                break
            self._step()
        assert not self.scheduler.has_unfinished_requests
        self._step()
        assert not self.model.known, "the worker still keeps state of ended requests"
        assert self.kv_cache.usage.used == 0
        assert self.kv_cache.reset_prefix_cache()
        if self.swap_space is not None:
            assert self.swap_space.reset()
        for tracked in self.tracked.values():
            self._check_output(tracked)

    def _add(
        self,
        prompt: list[int],
        sampling: SamplingParams,
        salt: str | None,
        seed: int = 0,
        priority: int = 0,
        leader_id: str | None = None,
    ) -> Request | None:
        request = Request(
            f"r{len(self.tracked)}",
            prompt,
            sampling,
            seed,
            eos_token_ids=frozenset({EOS}),
            cache_salt=salt,
            priority=priority,
        )
        limits = [MAX_MODEL_LEN - 1, self.kv_cache.capacity_tokens]
        if not self.config.enable_chunked_prefill:
            limits.append(self.config.max_num_batched_tokens)
        try:
            self.scheduler.add_request(request, leader_id)
        except InvalidRequestError:
            assert not 1 <= len(prompt) <= min(limits)
            return None
        assert 1 <= len(prompt) <= min(limits)
        order, follows = len(self.tracked), leader_id is not None
        self.tracked[request.request_id] = Tracked(request, order, follows)
        return request

    def _abort(self, request_id: str) -> None:
        tracked = self.tracked[request_id]
        assert self.scheduler.abort(request_id) == (tracked.finish_reason is None)
        tracked.finish_reason = tracked.finish_reason or "abort"

    def _step(self, aborted_in_flight: str | None = None) -> None:
        step = self.scheduler.schedule()
        self.scheduler.check_integrity()
        self._check_step(step)
        output = self.model.execute(step)
        if aborted_in_flight is not None:
            self._abort(aborted_in_flight)
        for update in self.scheduler.update_from_output(step, output):
            self._take_in(update)

    def _check_step(self, step: SchedulerOutput) -> None:
        config = self.config
        assert step.total_num_scheduled_tokens <= config.max_num_batched_tokens
        assert len(step.scheduled) <= len(self.scheduler.running) <= config.max_num_seqs
        if self.scheduler.has_unfinished_requests:
            assert step.scheduled, "a step with work to do does none"
        if config.enable_chunked_prefill and config.long_prefill_token_threshold:
            longest = max(step.num_scheduled_tokens.values(), default=0)
            assert longest <= config.long_prefill_token_threshold
        introduced = {new.request_id for new in step.new_requests}
        if not config.enable_chunked_prefill:
            for item in step.scheduled:
                assert item.samples or item.request_id not in introduced
        self._check_preempted(step)

    def _check_preempted(self, step: SchedulerOutput) -> None:
        """Nobody is let in while one ahead was just turned out, and nobody at all unless the
        policy preempts for those that wait. Forks join their leader all the same."""
        ranks = {name: self.tracked[name].request.rank for name in step.preempted_request_ids}
        assert not ranks.keys() & step.num_scheduled_tokens.keys()
        let_in = {new.request_id for new in step.new_requests} & step.num_scheduled_tokens.keys()
        if ranks and not self.policy.preempts_for_waiting:
            assert not let_in
        for name in let_in:
            assert all(self.tracked[name].request.rank < rank for rank in ranks.values())

    def _take_in(self, update: RequestUpdate) -> None:
        tracked = self.tracked[update.request.request_id]
        assert tracked.finish_reason is None, "an ended request was heard of again"
        tracked.token_ids += update.new_token_ids
        tracked.prompt_logprobs += update.prompt_logprobs
        tracked.finish_reason = update.finish_reason

    def _check_output(self, tracked: Tracked) -> None:
        request = tracked.request
        expected, reason = generate_alone(
            request.prompt_token_ids,
            request.sampling_params,
            request.eos_token_ids,
            MAX_MODEL_LEN,
            self.kv_cache.capacity_tokens,
            request.seed,
        )
        assert request.output_token_ids == tracked.token_ids
        assert request.status.finish_reason == tracked.finish_reason
        if request.status is RequestStatus.FINISHED_ABORTED:
            assert tracked.token_ids == expected[: len(tracked.token_ids)]
            return
        assert (tracked.token_ids, tracked.finish_reason) == (expected, reason)
        if request.sampling_params.prompt_logprobs is not None:
            prompt = request.prompt_token_ids
            entries = [prompt_logprob(prompt[: n + 1]) for n in range(1, len(prompt))]
            assert tracked.prompt_logprobs == entries


SchedulerMachine.TestCase.settings = settings(
    max_examples=80, stateful_step_count=15, deadline=None
)
TestSchedulerAndPool = SchedulerMachine.TestCase
