"""The branches of beam searches among the scheduler's other requests.

A branch is computed like any request, but what it goes on with is decided for all branches of its
group at once: until then it has nothing to compute, and after it its tokens and its blocks may be
another branch's. Answers "what does beam search need of a paged cache?": blocks shared between
branches and copied when written, so that moving a beam costs no copy of its keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence

from infra_lab.cache.block_hash import PrefixChain
from infra_lab.cache.kv_cache_manager import KVCacheManager
from infra_lab.engine.beam_search import BeamGroup, Move
from infra_lab.engine.queues import Queues
from infra_lab.engine.request import Request, RequestStatus
from infra_lab.step import ModelOutput, ScheduledRequest


class BeamBranches:
    """Moves branches between the queues as their groups decide.

    chains: of all requests, by id; a moved branch gets a copy of the one it goes on as.
    """

    def __init__(
        self,
        queues: Queues,
        kv_cache: KVCacheManager,
        chains: dict[str, PrefixChain],
        max_num_seqs: int,
    ) -> None:
        self._queues = queues
        self._kv_cache = kv_cache
        self._chains = chains
        self._max_num_seqs = max_num_seqs
        self._finished: list[BeamGroup] = []

    def take_finished(self) -> list[BeamGroup]:
        """The groups that ended since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def idle_index(self) -> int | None:
        """Index of the last running branch that only waits for its siblings. It gives up its
        blocks before anybody else: they may be what the siblings lack."""
        running = self._queues.running
        for index in range(len(running) - 1, -1, -1):
            if running[index].awaits_others:
                return index
        return None

    def hold(self, branch: Request) -> None:
        """Keep a branch that has no blocks and nothing to compute."""
        assert branch.beam_group is not None
        branch.status = RequestStatus.PREEMPTED
        branch.num_computed_tokens = 0
        self._queues.followers.add(branch, branch.beam_group.request_id)

    def update(self, branch: Request, item: ScheduledRequest, model_output: ModelOutput) -> bool:
        """Take in what a step computed for a branch; True if that ended its search."""
        group, name = branch.beam_group, branch.request_id
        assert group is not None
        branch.num_computed_tokens = item.num_computed_tokens + len(item.token_ids)
        self._kv_cache.cache_full_blocks(
            name, self._chains[name], branch.all_token_ids, branch.num_computed_tokens
        )
        if item.samples:
            group.offer(branch, model_output.logprobs[name][0])
            if group.is_round_over:
                moves = group.advance()
                if group.is_finished:
                    self._finished.append(group)
                else:
                    self._move(group, moves)
        return group.is_finished

    def _move(self, group: BeamGroup, moves: Sequence[Move]) -> None:
        changed = [move for move in moves if move.branch is not move.parent]
        live = {move.branch.request_id for move in moves}
        dropped = [branch for branch in group.branches if branch.request_id not in live]
        for branch in [*(move.branch for move in changed), *dropped]:
            self._queues.leave(branch)
        self._kv_cache.reassign({one.branch.request_id: one.parent.request_id for one in changed})
        for move in changed:
            move.branch.become(move.parent)
            self._chains[move.branch.request_id] = self._chains[move.parent.request_id].copy()
            self._place_beside(move.branch, move.parent)
        for branch in dropped:
            self._kv_cache.free(branch.request_id)
            self.hold(branch)
        for move in moves:
            if move.branch is move.parent and move.branch.request_id in self._queues.followers:
                self._queues.leave(move.branch)  # it was held, without blocks
                self._queues.wait(move.branch)
            move.branch.all_token_ids.append(move.token_id)
            move.branch.output_token_ids.append(move.token_id)

    def _place_beside(self, branch: Request, parent: Request) -> None:
        """Running, if its new parent runs and there is room; else it waits, and will
        compute its tokens again."""
        running = self._queues.running
        if parent.status is RequestStatus.RUNNING and len(running) < self._max_num_seqs:
            branch.num_computed_tokens = parent.num_computed_tokens
            self._queues.run(branch)
        else:
            self._kv_cache.free(branch.request_id)
            branch.status = RequestStatus.PREEMPTED
            branch.num_computed_tokens = 0
            self._queues.wait(branch)
