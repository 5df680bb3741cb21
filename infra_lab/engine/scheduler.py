"""Decides what each step computes: which requests, how many tokens of each, in which blocks.

Answers "how does continuous batching work?". There are no prefill and decode phases. A
request has known tokens and computed ones, and each step lets the computed ones catch up
within a token budget. Chunked prefill, prefix-cache hits, preemption and resume all follow.
"""

from __future__ import annotations

from collections.abc import Sequence

from infra_lab.cache.block_hash import PrefixChain
from infra_lab.cache.free_block_queue import CacheIntegrityError
from infra_lab.cache.kv_cache_manager import NO_PREFIX, CachedPrefix, KVCacheManager
from infra_lab.cache.swap_space import SwapSpace
from infra_lab.config import EngineConfig
from infra_lab.engine.admission import check_admissible
from infra_lab.engine.beam_branches import BeamBranches
from infra_lab.engine.beam_search import BeamGroup
from infra_lab.engine.chunks import chunk_size, must_stay_whole, share_of
from infra_lab.engine.draft_share import add_drafts
from infra_lab.engine.policies import SchedulingPolicy, make_policy
from infra_lab.engine.preemption import Preemption
from infra_lab.engine.queues import Queues
from infra_lab.engine.request import Request, RequestStatus
from infra_lab.engine.step_builder import StepBuilder
from infra_lab.engine.swap_cost import SwapCost
from infra_lab.engine.updates import PrefixCacheStats, RequestUpdate, SchedulerStats
from infra_lab.errors import InvalidRequestError
from infra_lab.step import ModelOutput, ScheduledRequest, SchedulerOutput


class Scheduler:
    """Continuous batching over one KV cache, in the order of a policy.

    One step is `schedule()`, the worker's run, `update_from_output()`, in this order;
    requests may be added and aborted at any moment between these calls. `running` is in order of
    rank and `waiting` in the policy's waiting order; first come, first served, `running` and then
    `waiting` hold the unfinished requests in order of arrival. Only followers (see `forks`) stand
    beside them.

    Args:
        policy: who runs first and who gives way; None is the one that the config names.
        swap_space: where preempted requests may keep their blocks; None lets them recompute.
        swap_cost: which of both is chosen; None swaps whenever there is room.
    """

    def __init__(
        self,
        config: EngineConfig,
        kv_cache: KVCacheManager,
        max_model_len: int,
        policy: SchedulingPolicy | None = None,
        swap_space: SwapSpace | None = None,
        swap_cost: SwapCost | None = None,
    ) -> None:
        self.config = config
        self.kv_cache = kv_cache
        self.max_model_len = max_model_len
        self.policy = make_policy(config, max_model_len) if policy is None else policy
        self._queues = Queues(self.policy)
        self.running, self.waiting = self._queues.running, self._queues.waiting
        self._followers = self._queues.followers
        self._num_steps = 0
        self._requests: dict[str, Request] = {}
        self._chains: dict[str, PrefixChain] = {}
        self._beams = BeamBranches(self._queues, kv_cache, self._chains, config.max_num_seqs)
        self.swap_space, self.swap_cost = swap_space, swap_cost
        self._preemption = Preemption(
            config, kv_cache, self._queues, self._beams, swap_space, swap_cost
        )
        self._finished_ids: list[str] = []
        self._last_step = StepBuilder(config.max_num_batched_tokens)
        self._last_evictions = 0
        self._prefix_stats = PrefixCacheStats()

    @property
    def longest_sequence(self) -> int:
        """Tokens that a sequence may grow to; the last needs no slot, it is never computed."""
        return min(self.max_model_len, self.kv_cache.capacity_tokens + 1)

    @property
    def has_unfinished_requests(self) -> bool:
        return bool(self._requests)

    def add_request(self, request: Request, leader_id: str | None = None) -> None:
        """Queue a request.

        Args:
            leader_id: an unfinished request of the same prompt, nothing of which is computed yet:
                this one shall not compute the prompt but fork that one.

        Raises:
            InvalidRequestError: it could never run; the others are not touched.
        """
        request_id = request.request_id
        if request_id in self._requests:
            raise InvalidRequestError(
                f"request {request_id!r} is running already: give each request its own id"
            )
        check_admissible(request, self.config, self.kv_cache, self.max_model_len)
        self._requests[request_id] = request
        self._chains[request_id] = self.kv_cache.new_chain(request.extra_keys)
        self._queues.rank(request, self._num_steps)
        if leader_id is None:
            self._queues.wait(request)
        else:
            self._followers.add(request, leader_id)

    def add_beam_group(self, group: BeamGroup) -> None:
        """Queue a beam search; its end is told by `take_finished_beams`.

        Raises InvalidRequestError as `add_request` does.
        """
        first, *others = group.branches
        self.add_request(first)
        for branch in others:
            self.add_request(branch, leader_id=group.request_id)

    def take_finished_beams(self) -> list[BeamGroup]:
        """The beam searches that ended since the last call."""
        return self._beams.take_finished()

    def abort(self, request_id: str) -> bool:
        """End a request whose answer nobody wants; False if it is unknown or has ended."""
        return self.finish(request_id, RequestStatus.FINISHED_ABORTED)

    def finish(self, request_id: str, status: RequestStatus) -> bool:
        """End a request from outside, as for a stop string found in its text.

        False if it is unknown or has ended already. A beam search ends as a whole.
        """
        request = self._requests.get(request_id)
        if request is None:
            return False
        if request.beam_group is not None:
            for branch in request.beam_group.branches:
                self._queues.leave(branch)
                branch.status = status
                self._release(branch)
            return True
        self._queues.leave(request)
        if (heir := self._followers.lead_on(request_id)) is not None:
            self._queues.wait(heir)
        request.status = status
        self._release(request)
        return True

    def schedule(self) -> SchedulerOutput:
        """Choose the next step's work and take the blocks for it."""
        step = StepBuilder(self.config.max_num_batched_tokens)
        self._num_steps += 1
        if self.swap_space is not None:
            self.swap_space.begin_step()
        evictions_before = self.kv_cache.num_evictions
        self._schedule_running(step)
        self._schedule_waiting(step)
        add_drafts(step, self.running, self.kv_cache, self.config)
        while not step.items and (index := self._beams.idle_index()) is not None:
            # Nothing can be computed while beams that wait for their siblings hold the blocks.
            self._preemption.preempt(self.running[index], step)
            self._schedule_waiting(step)
        self._attach_forks(step)
        self._last_step = step
        self._last_evictions = self.kv_cache.num_evictions - evictions_before
        finished_ids, self._finished_ids = self._finished_ids, []
        swaps = self.swap_space.take_copies() if self.swap_space is not None else ()
        return step.build(finished_ids, self.kv_cache.take_block_copies(), *swaps)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_output: ModelOutput
    ) -> list[RequestUpdate]:
        """Take in what the step produced; returns an update for each request it has news of.

        Requests aborted since `schedule()` are passed over.
        """
        updates = []
        for item in scheduler_output.scheduled:
            forks = self._followers.take_joined(item.forks)
            request = self._requests.get(item.request_id)
            if request is not None and request.beam_group is not None:
                if self._beams.update(request, item, model_output):
                    self.finish(item.request_id, RequestStatus.FINISHED_STOPPED)
            elif request is not None and request.status is RequestStatus.RUNNING:
                updates.append(self._update_request(request, item, model_output))
                self._fork(request, forks)
                if request.is_finished:
                    self._release(request)
            for fork in reversed(forks):
                updates.append(self._update_request(fork, item, model_output))
                if fork.is_finished:
                    self._release(fork)
                if fork.status is RequestStatus.WAITING:  # its leader was aborted meanwhile
                    self._queues.wait(fork)
        updates = [update for update in updates if update.new_token_ids or update.prompt_logprobs]
        if any(update.finish_reason for update in updates):
            self.running[:] = [request for request in self.running if not request.is_finished]
        return updates

    @property
    def prefix_cache_stats(self) -> PrefixCacheStats:
        """What admissions asked of the prefix cache and got, since the last reset."""
        return self._prefix_stats

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes, offloaded ones too, and their statistics; False, and nothing
        done, while a request holds blocks."""
        if self.kv_cache.usage.used or not (self.swap_space is None or self.swap_space.reset()):
            return False
        self._prefix_stats = PrefixCacheStats()
        return self.kv_cache.reset_prefix_cache()

    def abandon(self, step: SchedulerOutput) -> None:
        """Of a step that failed, after its requests ended: forget what its copies were to bring."""
        self._preemption.lose_copies(step, self._requests)

    def stats(self) -> SchedulerStats:
        usage = self.kv_cache.usage
        return SchedulerStats(
            running=len(self.running),
            waiting=len(self.waiting) + len(self._followers),
            blocks_used=usage.used,
            blocks_cached=usage.cached,
            blocks_free=usage.free,
            prefix_hit_tokens=self._last_step.prefix_hit_tokens,
            evictions=self._last_evictions,
            preempted_request_ids=tuple(self._last_step.preempted_ids),
        )

    def check_integrity(self) -> None:
        """Raise CacheIntegrityError unless exactly the running requests hold blocks, the queues
        are in the policy's order, and the pool's accounts are right."""
        self.kv_cache.check_integrity()
        running = {request.request_id for request in self.running}
        if self.kv_cache.holders() != running:
            raise CacheIntegrityError(
                f"blocks are held by {sorted(self.kv_cache.holders())} but running are "
                f"{sorted(running)}"
            )
        if self._queues.ids != set(self._requests) or len(self._queues) != len(self._requests):
            raise CacheIntegrityError("a request is lost or stands in two queues")
        self._queues.check_order()
        if self.swap_space is not None:
            swapped = [one for one in self.waiting if one.status is RequestStatus.SWAPPED]
            self.swap_space.check_integrity({request.request_id for request in swapped})

    def _schedule_running(self, step: StepBuilder) -> None:
        index = 0
        while index < len(self.running) and step.budget > 0:
            request = self.running[index]
            if request.awaits_others:
                index += 1
                continue
            num_new = chunk_size(
                request.num_tokens - request.num_computed_tokens, step.budget, self.config
            )
            while self._allocate(request, num_new) is None:
                victim, victim_index = self._preemption.give_way(step)
                if victim is request:
                    break
                if victim_index < index:
                    index -= 1
            else:
                self._introduce(request, step)
                step.add(share_of(request, num_new, self.kv_cache.block_ids(request.request_id)))
                index += 1

    def _schedule_waiting(self, step: StepBuilder) -> None:
        while self.waiting and self.policy.may_admit(self.waiting[0], self.running):
            request = self.waiting[0]
            if request.request_id in step.preempted_ids:
                break  # what it gave up was needed by those ahead: it does not come back at once
            is_ahead = bool(self.running) and self.running[-1].rank > request.rank
            may_preempt = is_ahead and self.policy.preempts_for_waiting
            if step.budget == 0 and not may_preempt:
                return
            if len(self.running) >= self.config.max_num_seqs and not may_preempt:
                break
            prefix = self._find_prefix(request)
            if may_preempt:
                num_remaining = request.num_tokens - prefix.num_tokens
                needed = num_remaining if must_stay_whole(num_remaining, self.config) else 1
                self._preemption.make_way(request, prefix, needed, step)
                prefix = self._find_prefix(request)  # what was swapped out may have evicted some
            if step.budget == 0:
                return
            num_remaining = request.num_tokens - prefix.num_tokens
            num_new = chunk_size(num_remaining, step.budget, self.config)
            if num_new < num_remaining and must_stay_whole(num_remaining, self.config):
                return
            # Room for all its known tokens, not for the first chunk alone: a request that
            # was let in too early is soon preempted, and its work lost.
            if not self._preemption.has_room(request, prefix):
                break
            self._allocate(request, num_new, prefix)
            if self.swap_space is not None:
                self.swap_space.bring_in(request.request_id, prefix)
            self.waiting.pop(0)
            self._admit(request, prefix, step)
            step.add(share_of(request, num_new, self.kv_cache.block_ids(request.request_id)))
        self.policy.end_admission()

    def _admit(self, request: Request, prefix: CachedPrefix, step: StepBuilder) -> None:
        if request.status is not RequestStatus.SWAPPED:
            self._prefix_stats = self._prefix_stats.after(request.num_tokens, prefix.num_tokens)
            step.prefix_hit_tokens += prefix.num_tokens
        self._queues.run(request)
        request.num_computed_tokens = prefix.num_tokens
        if not request.sent_to_worker:
            request.num_cached_tokens = prefix.num_tokens
        self._introduce(request, step)

    def _introduce(self, request: Request, step: StepBuilder) -> None:
        if not request.sent_to_worker:
            request.sent_to_worker = True
            step.introduce(request)

    def _attach_forks(self, step: StepBuilder) -> None:
        """Followers of the requests whose prompts this step completes take part, or, where
        max_num_seqs leaves them no room, are queued as requests of their own."""
        if not self._followers:
            return
        room = self.config.max_num_seqs - len(self.running)
        for item in step.items:
            if item.samples:
                followers = self._followers.take(item.request_id)
                joining, others = followers[:room], followers[room:]
                for follower in joining:
                    self._introduce(follower, step)
                room -= len(joining)
                step.fork(item.request_id, self._followers.join(joining))
                for follower in others:
                    self._queues.wait(follower)

    def _fork(self, leader: Request, forks: Sequence[Request]) -> None:
        """Let them hold the leader's blocks and run beside it."""
        for fork in forks:
            self.kv_cache.fork(leader.request_id, fork.request_id)
            self._queues.run(fork)

    def _find_prefix(self, request: Request) -> CachedPrefix:
        if self.swap_space is not None and request.status is RequestStatus.SWAPPED:
            return self.swap_space.prefix_of(request.request_id, request.num_computed_tokens)
        # Log-probabilities of prompt positions exist only where the prompt is computed, and so
        # does what its tokens give each other of their attention.
        if request.owes_prompt_logprobs or request.sampling_params.kv_budget is not None:
            return NO_PREFIX
        chain = self._chains[request.request_id]
        prefix = self.kv_cache.find_cached_prefix(chain, request.all_token_ids)
        if self.swap_space is not None:
            return self.swap_space.extend_prefix(prefix, chain, request.all_token_ids)
        return prefix

    def _allocate(
        self, request: Request, num_new: int, prefix: CachedPrefix = NO_PREFIX
    ) -> list[int] | None:
        begin = request.num_computed_tokens or prefix.num_tokens
        kept, after = (request.num_kept_tokens(count) for count in (begin, begin + num_new))
        rewrites_slots = request.sampling_params.kv_budget is not None
        return self.kv_cache.allocate_slots(
            request.request_id, kept, after - kept, prefix, rewrites_slots=rewrites_slots
        )

    def _update_request(
        self, request: Request, item: ScheduledRequest, model_output: ModelOutput
    ) -> RequestUpdate:
        request_id = request.request_id
        is_running = request.status is RequestStatus.RUNNING
        sampled = model_output.sampled_token_ids.get(request_id, [])
        prompt_logprobs = model_output.prompt_logprobs.get(request_id, [])
        request.num_prompt_logprobs += len(prompt_logprobs)
        kept = request.append(sampled, self.max_model_len, self.kv_cache.capacity_tokens)
        # The newest token is never computed. Of drafted tokens in the step, those beyond it
        # were rejected: what the cache holds for them is not what the request says.
        if is_running:
            request.num_computed_tokens = min(item.end, request.num_tokens - 1)
        if is_running and request.sampling_params.kv_budget is None:  # else slots change tokens
            self.kv_cache.cache_full_blocks(
                request_id,
                self._chains[request_id],
                request.all_token_ids,
                request.num_computed_tokens,
            )
        return RequestUpdate(
            request=request,
            new_token_ids=kept,
            logprobs=model_output.logprobs.get(request_id, [])[: len(kept)],
            prompt_logprobs=prompt_logprobs,
            finish_reason=request.status.finish_reason,
            stop_reason=request.stop_reason,
        )

    def _release(self, request: Request) -> None:
        """Forget an ended request; the worker hears of it with the next step."""
        self.kv_cache.free(request.request_id)
        if self.swap_space is not None:
            self.swap_space.drop(request.request_id)
        del self._requests[request.request_id], self._chains[request.request_id]
        if request.sent_to_worker:
            self._finished_ids.append(request.request_id)
