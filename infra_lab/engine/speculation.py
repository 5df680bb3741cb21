"""Runs speculative decoding between two steps: what became of the last drafts, and new ones.

Answers "where does speculation sit in an engine?": beside the loop, not inside it. A draft hangs
on its request until the next step; the scheduler puts it behind the known tokens, the worker
verifies it in the same ragged batch as everything else, and a step that brings several tokens is
nothing special to anybody. Torch-free.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from infra_lab.cache.kv_cache_manager import KVCacheManager
from infra_lab.engine.request import Request
from infra_lab.speculative.acceptance import SpeculativeStats
from infra_lab.speculative.draft_length import DraftLength, StepCost
from infra_lab.speculative.proposer import DraftRequest, Proposer
from infra_lab.speculative_config import SpeculativeConfig
from infra_lab.step import ModelOutput, SchedulerOutput

logger = logging.getLogger(__name__)


class Speculation:
    """Asks the proposer for drafts and keeps account of them.

    Args:
        row_cost: time of one more token in a step, in units of the fixed part of a step.
        key_group_size: tokens whose keys the cache codes together, once the last of them is
            computed; 0 where each is by itself. No draft completes such a group: what a token that
            falls has left in the codes could not be taken out again.

    Attributes:
        stats: over all requests since construction.
        cost: what a step is reckoned to cost, for choosing how many tokens to draft.
    """

    def __init__(
        self,
        config: SpeculativeConfig,
        proposer: Proposer,
        kv_cache: KVCacheManager,
        max_model_len: int,
        row_cost: float,
        key_group_size: int = 0,
    ) -> None:
        self.config = config
        self.stats = SpeculativeStats()
        self._proposer = proposer
        self._kv_cache = kv_cache
        self._max_model_len = max_model_len
        self._key_group_size = key_group_size
        self.cost = StepCost(row_cost, proposer.relative_cost)
        self._lengths: dict[str, DraftLength] = {}

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop what is kept of requests that have ended, before their ids are used again."""
        for request_id in request_ids:
            self._lengths.pop(request_id, None)
            self._proposer.forget(request_id)

    def observe(
        self, scheduler_output: SchedulerOutput, model_output: ModelOutput
    ) -> dict[str, tuple[int, int]]:
        """Takes a step in; returns (drafted, accepted) of each request with a verified draft."""
        verified = {}
        for item in scheduler_output.scheduled:
            sampled = model_output.sampled_token_ids.get(item.request_id)
            if len(item.draft) == 0 or not sampled:
                continue
            counts = (len(item.draft), len(sampled) - 1)
            self.stats.observe(*counts)
            if item.request_id in self._lengths:
                self._lengths[item.request_id].observe(*counts)
            verified[item.request_id] = counts
        return verified

    def propose(self, running: Sequence[Request]) -> None:
        """Gives a draft to each of `running` that has none and whose known tokens but the newest
        are computed. A proposer that fails costs the drafts, not the requests."""
        wanting = [request for request in running if self._may_draft(request)]
        asked, drafted_for = [], []
        for request in wanting:
            count = self._draft_length(request, len(running))
            if count < 1:
                continue
            drafted_for.append(request)
            asked.append(
                DraftRequest(
                    request.to_new_request(),
                    request.all_token_ids,
                    self._kv_cache.block_ids(request.request_id),
                    count,
                )
            )
        if not asked:
            return
        try:
            drafts = self._proposer.propose(asked)
        except Exception:
            logger.exception("drafting failed; the next step goes on without")
            return
        for request, draft in zip(drafted_for, drafts, strict=True):
            request.draft = draft

    def _may_draft(self, request: Request) -> bool:
        # A beam search chooses among many tokens behind every known one: no draft would be used.
        # Under a budget a token that falls would have evicted others by then.
        if request.beam_group is not None or request.sampling_params.kv_budget is not None:
            return False
        caught_up = request.num_computed_tokens == request.num_tokens - 1
        return caught_up and bool(request.output_token_ids) and len(request.draft) == 0

    def _draft_length(self, request: Request, batch_size: int) -> int:
        """Most tokens to draft: no more than can be of use, for a step adds one behind them."""
        params = request.sampling_params
        longest = self.config.num_speculative_tokens
        if params.num_speculative_tokens is not None:
            longest = min(longest, params.num_speculative_tokens)
        if params.max_tokens is not None:
            longest = min(longest, params.max_tokens - len(request.output_token_ids) - 1)
        longest = min(
            longest,
            self._max_model_len - request.num_tokens - 1,
            self._kv_cache.capacity_tokens - request.num_tokens,
        )
        if self._key_group_size:
            longest = min(longest, -(request.num_tokens + 1) % self._key_group_size)
        if longest < 1 or not self.config.adaptive:
            return longest
        lengths = self._lengths
        length = lengths.get(request.request_id)
        if length is None:
            length = lengths[request.request_id] = DraftLength(self.cost)
        return length.choose(longest, batch_size)
