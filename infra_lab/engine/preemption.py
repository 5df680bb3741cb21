"""How a running request makes room for another, and what becomes of what it had computed.

Answers "what happens when the KV cache is full?". The last in the policy's order gives up its
blocks; they are dropped and computed again when it resumes, or swapped out and brought back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from infra_lab.cache.kv_cache_manager import CachedPrefix, KVCacheManager
from infra_lab.cache.swap_space import SwapSpace
from infra_lab.config import EngineConfig
from infra_lab.engine.beam_branches import BeamBranches
from infra_lab.engine.queues import Queues
from infra_lab.engine.request import Request, RequestStatus
from infra_lab.engine.step_builder import StepBuilder
from infra_lab.engine.swap_cost import SwapCost
from infra_lab.step import NO_DRAFT, SchedulerOutput


class Preemption:
    """Takes requests out of `queues.running`.

    Args:
        swap_space: None always recomputes; so does a `swap_space` without room.
        swap_cost: chooses where there is a `swap_space`; None swaps whenever it can.
    """

    def __init__(
        self,
        config: EngineConfig,
        kv_cache: KVCacheManager,
        queues: Queues,
        beams: BeamBranches,
        swap_space: SwapSpace | None,
        swap_cost: SwapCost | None,
    ) -> None:
        self._config = config
        self._kv_cache = kv_cache
        self._queues = queues
        self._beams = beams
        self._swap_space = swap_space
        self._swap_cost = swap_cost

    def has_room(
        self, request: Request, prefix: CachedPrefix, after: Sequence[Request] = ()
    ) -> bool:
        """Whether there is a seat and memory for a waiting request, once those in `after` left."""
        num_others = len(self._queues.running) - len(after)
        return num_others < self._config.max_num_seqs and self._kv_cache.can_fit(
            request.num_kept_tokens(request.num_tokens),
            prefix,
            [victim.request_id for victim in after],
        )

    def give_way(self, step: StepBuilder) -> tuple[Request, int]:
        """Preempt the running request whose turn it is; returns it and the index it had."""
        index = self._beams.idle_index()
        if index is None:
            index = self._queues.policy.choose_victim(self._queues.running)
        victim = self._queues.running[index]
        self.preempt(victim, step)
        return victim, index

    def make_way(
        self, request: Request, prefix: CachedPrefix, num_tokens: int, step: StepBuilder
    ) -> None:
        """Preempt as few of the requests behind a waiting one as let it in; none if all were not
        enough. Where the budget alone is lacking, they wait for a step and keep their blocks.

        Args:
            num_tokens: the budget that the request needs at least.
        """
        behind = [one for one in self._queues.running if one.rank > request.rank]
        first_victim = len(behind) - bisect_left(
            range(len(behind) + 1),
            True,
            key=lambda count: self.has_room(request, prefix, behind[len(behind) - count :]),
        )
        budget = step.budget + sum(step.num_tokens(one.request_id) for one in behind)
        if first_victim < 0 or budget < num_tokens:
            return
        for victim in reversed(behind[first_victim:]):
            self.preempt(victim, step)
        for other in reversed(behind[:first_victim]):
            if step.budget >= num_tokens:
                return
            step.withdraw(other.request_id)

    def preempt(self, victim: Request, step: StepBuilder) -> None:
        """Take back a victim's blocks, swapped out where that is chosen and there is room."""
        self._queues.leave(victim)
        step.preempt(victim.request_id)
        is_swapped = self._swap_out(victim)
        self._kv_cache.free(victim.request_id)
        victim.num_preemptions += 1
        victim.draft = NO_DRAFT
        if is_swapped:
            victim.status = RequestStatus.SWAPPED
            self._queues.wait(victim)
        else:
            self._recompute(victim)

    def lose_copies(self, step: SchedulerOutput, requests: Mapping[str, Request]) -> None:
        """Have those compute their tokens again whose blocks this step did not copy."""
        targets = {copy.target for copy in (*step.swap_ins, *step.block_copies)}
        for block_id in targets:
            self._kv_cache.pool.forget(self._kv_cache.pool.blocks[block_id])
        lost = [
            request
            for request in self._queues.running
            if not targets.isdisjoint(self._kv_cache.block_ids(request.request_id))
        ]
        if self._swap_space is not None:
            names = self._swap_space.lose({copy.target for copy in step.swap_outs})
            lost += [requests[name] for name in names]
        for request in lost:
            self._queues.leave(request)
            self._kv_cache.free(request.request_id)
            self._recompute(request)

    def _recompute(self, victim: Request) -> None:
        victim.status = RequestStatus.PREEMPTED
        victim.num_computed_tokens = 0
        if victim.awaits_others:
            self._beams.hold(victim)
        else:
            self._queues.wait(victim)

    def _swap_out(self, victim: Request) -> bool:
        """Branches of a beam search are recomputed: their blocks pass from one to another. So are
        requests with a budget, whose slots are not in the order of their tokens."""
        space, num_computed = self._swap_space, victim.num_computed_tokens
        if space is None or victim.beam_group is not None or num_computed == 0:
            return False
        if victim.sampling_params.kv_budget is not None:
            return False
        work = space.work_of(victim.request_id, num_computed)
        if self._swap_cost is not None and not self._swap_cost.prefers_swap(work):
            return False
        return space.swap_out(victim.request_id, num_computed)
