"""Decides what each step computes: which requests, how many tokens of each, in which blocks.

Answers "how does continuous batching work?". There are no prefill and decode phases. A
request has known tokens and computed ones, and each step lets the computed ones catch up
within a token budget. Chunked prefill, prefix-cache hits, preemption and resume all follow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from infra_lab.cache.block_hash import PrefixChain
from infra_lab.cache.free_block_queue import CacheIntegrityError
from infra_lab.cache.kv_cache_manager import NO_PREFIX, CachedPrefix, KVCacheManager
from infra_lab.config import EngineConfig
from infra_lab.engine.admission import check_admissible
from infra_lab.engine.beam_branches import BeamBranches, Queues
from infra_lab.engine.beam_search import BeamGroup
from infra_lab.engine.forks import Followers
from infra_lab.engine.request import Request, RequestStatus
from infra_lab.engine.step_builder import StepBuilder
from infra_lab.engine.updates import PrefixCacheStats, RequestUpdate, SchedulerStats
from infra_lab.errors import InvalidRequestError
from infra_lab.step import ModelOutput, ScheduledRequest, SchedulerOutput

VictimPolicy = Callable[[Sequence[Request]], int]


def last_admitted(running: Sequence[Request]) -> int:
    """First come, first served: the request that was admitted last gives way."""
    return len(running) - 1


class Scheduler:
    """Continuous batching over one KV cache, first come, first served.

    One step is `schedule()`, the worker's run, `update_from_output()`, in this order;
    requests may be added and aborted at any moment between these calls. `running` and then
    `waiting` always hold the unfinished requests in order of arrival: a preempted request
    goes back to the front of `waiting`. Only followers (see `forks`) stand beside them.

    Args:
        choose_victim: index of the running request that gives up its blocks when there are
            too few; the default keeps arrival order.
    """

    def __init__(
        self,
        config: EngineConfig,
        kv_cache: KVCacheManager,
        max_model_len: int,
        choose_victim: VictimPolicy = last_admitted,
    ) -> None:
        self.config = config
        self.kv_cache = kv_cache
        self.max_model_len = max_model_len
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._choose_victim = choose_victim
        self._requests: dict[str, Request] = {}
        self._chains: dict[str, PrefixChain] = {}
        self._followers = Followers()
        self._queues = Queues(self.running, self.waiting, self._followers)
        self._beams = BeamBranches(self._queues, kv_cache, self._chains, config.max_num_seqs)
        self._finished_ids: list[str] = []
        self._last_step = StepBuilder(config.max_num_batched_tokens)
        self._last_evictions = 0
        self._prefix_stats = PrefixCacheStats()

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
        if leader_id is None:
            self.waiting.append(request)
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
            self.waiting.appendleft(heir)
        request.status = status
        self._release(request)
        return True

    def schedule(self) -> SchedulerOutput:
        """Choose the next step's work and take the blocks for it."""
        step = StepBuilder(self.config.max_num_batched_tokens)
        evictions_before = self.kv_cache.num_evictions
        self._schedule_running(step)
        if not step.preempted_ids:
            self._schedule_waiting(step)
        while not step.items and (index := self._beams.idle_index()) is not None:
            # Nothing can be computed while beams that wait for their siblings hold the blocks.
            self._preempt(self.running.pop(index), step)
            self._schedule_waiting(step)
        self._attach_forks(step)
        self._last_step = step
        self._last_evictions = self.kv_cache.num_evictions - evictions_before
        finished_ids, self._finished_ids = self._finished_ids, []
        return step.build(finished_ids, self.kv_cache.take_block_copies())

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
                self._release_if_finished(request)
            for fork in reversed(forks):
                updates.append(self._update_request(fork, item, model_output))
                self._release_if_finished(fork)
                if fork.status is RequestStatus.WAITING:  # its leader was aborted meanwhile
                    self.waiting.appendleft(fork)
        updates = [update for update in updates if update.new_token_ids or update.prompt_logprobs]
        if any(update.finish_reason for update in updates):
            self.running[:] = [request for request in self.running if not request.is_finished]
        return updates

    @property
    def prefix_cache_stats(self) -> PrefixCacheStats:
        """What admissions asked of the prefix cache and got, since the last reset."""
        return self._prefix_stats

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes and their statistics; False, and nothing done, while a
        request holds blocks."""
        is_reset = self.kv_cache.reset_prefix_cache()
        if is_reset:
            self._prefix_stats = PrefixCacheStats()
        return is_reset

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
        """Raise CacheIntegrityError unless exactly the running requests hold blocks, and the
        pool's accounts are in order."""
        self.kv_cache.check_integrity()
        running = {request.request_id for request in self.running}
        if self.kv_cache.holders() != running:
            raise CacheIntegrityError(
                f"blocks are held by {sorted(self.kv_cache.holders())} but running are "
                f"{sorted(running)}"
            )
        queued = running | {request.request_id for request in self.waiting} | self._followers.ids
        places = len(self.running) + len(self.waiting) + len(self._followers)
        if queued != set(self._requests) or len(queued) != places:
            raise CacheIntegrityError("a request is lost or stands in two queues")

    def _schedule_running(self, step: StepBuilder) -> None:
        index = 0
        while index < len(self.running) and step.budget > 0:
            request = self.running[index]
            if request.awaits_others:
                index += 1
                continue
            num_new = self._chunk_size(request.num_tokens - request.num_computed_tokens, step)
            while self._allocate(request, num_new) is None:
                victim_index = self._beams.idle_index()
                if victim_index is None:
                    victim_index = self._choose_victim(self.running)
                victim = self.running.pop(victim_index)
                self._preempt(victim, step)
                if victim is request:
                    break
                if victim_index < index:
                    index -= 1
            else:
                self._introduce(request, step)
                step.add(self._share(request, num_new))
                index += 1

    def _schedule_waiting(self, step: StepBuilder) -> None:
        while self.waiting and step.budget > 0 and len(self.running) < self.config.max_num_seqs:
            request = self.waiting[0]
            prefix = self._find_prefix(request)
            num_remaining = request.num_tokens - prefix.num_tokens
            num_new = self._chunk_size(num_remaining, step)
            if num_new < num_remaining and self._must_stay_whole(num_remaining):
                return
            # Room for all its known tokens, not for the first chunk alone: a request that
            # was let in too early is soon preempted, and its work lost.
            if not self.kv_cache.can_fit(request.num_kept_tokens(request.num_tokens), prefix):
                return
            self._allocate(request, num_new, prefix)
            self.waiting.popleft()
            self._admit(request, prefix, step)
            step.add(self._share(request, num_new))

    def _admit(self, request: Request, prefix: CachedPrefix, step: StepBuilder) -> None:
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = prefix.num_tokens
        self._prefix_stats = self._prefix_stats.after(request.num_tokens, prefix.num_tokens)
        step.prefix_hit_tokens += prefix.num_tokens
        self.running.append(request)
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
                self.waiting.extendleft(reversed(others))

    def _fork(self, leader: Request, forks: Sequence[Request]) -> None:
        """Let them hold the leader's blocks and run beside it, in order of arrival."""
        place = self.running.index(leader) + 1 if forks else 0
        self.running[place:place] = forks
        for fork in forks:
            self.kv_cache.fork(leader.request_id, fork.request_id)
            fork.status = RequestStatus.RUNNING

    def _chunk_size(self, num_remaining: int, step: StepBuilder) -> int:
        cap = self.config.long_prefill_token_threshold
        if cap and self.config.enable_chunked_prefill:
            num_remaining = min(num_remaining, cap)
        return min(num_remaining, step.budget)

    def _must_stay_whole(self, num_remaining: int) -> bool:
        # A resumed request may have outgrown a whole step; it is split all the same, for it
        # would never run otherwise.
        fits_a_step = num_remaining <= self.config.max_num_batched_tokens
        return fits_a_step and not self.config.enable_chunked_prefill

    def _find_prefix(self, request: Request) -> CachedPrefix:
        # Log-probabilities of prompt positions exist only where the prompt is computed, and so
        # does what its tokens give each other of their attention.
        if request.owes_prompt_logprobs or request.sampling_params.kv_budget is not None:
            return NO_PREFIX
        chain = self._chains[request.request_id]
        return self.kv_cache.find_cached_prefix(chain, request.all_token_ids)

    def _allocate(
        self, request: Request, num_new: int, prefix: CachedPrefix = NO_PREFIX
    ) -> list[int] | None:
        begin = request.num_computed_tokens or prefix.num_tokens
        kept, after = (request.num_kept_tokens(count) for count in (begin, begin + num_new))
        rewrites_slots = request.sampling_params.kv_budget is not None
        return self.kv_cache.allocate_slots(
            request.request_id, kept, after - kept, prefix, rewrites_slots=rewrites_slots
        )

    def _share(self, request: Request, num_new: int) -> ScheduledRequest:
        start = request.num_computed_tokens
        end = start + num_new
        return ScheduledRequest(
            request_id=request.request_id,
            token_ids=request.all_token_ids[start:end],
            num_computed_tokens=start,
            block_ids=self.kv_cache.block_ids(request.request_id),
            samples=end == request.num_tokens,
            prompt_logprobs_from=request.prompt_logprobs_from(start, end),
            is_prompt_chunk=start < request.num_prompt_tokens,
            kv_budget=request.sampling_params.kv_budget,
        )

    def _preempt(self, victim: Request, step: StepBuilder) -> None:
        """Take back a victim's blocks; it will compute its tokens again when it resumes."""
        step.preempt(victim.request_id)
        self.kv_cache.free(victim.request_id)
        victim.status = RequestStatus.PREEMPTED
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        if victim.awaits_others:
            self._beams.hold(victim)
        else:
            self.waiting.appendleft(victim)

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
            computed = item.num_computed_tokens + len(item.token_ids)
            request.num_computed_tokens = min(computed, request.num_tokens - 1)
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

    def _release_if_finished(self, request: Request) -> None:
        if request.is_finished:
            self._release(request)

    def _release(self, request: Request) -> None:
        """Forget an ended request; the worker hears of it with the next step."""
        self.kv_cache.free(request.request_id)
        del self._requests[request.request_id], self._chains[request.request_id]
        if request.sent_to_worker:
            self._finished_ids.append(request.request_id)
