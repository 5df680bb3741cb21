"""Drafts with a cheaper model over the same vocabulary: another checkpoint, or the first layers of
the target itself with its final norm and head (early exit; LayerSkip, Elhoushi et al. 2024).

The draft model has keys and values of its own, in blocks of the same ids as the request's; see
`draft_blocks` for how they follow it. Before it drafts it computes what it has not seen (a
prompt, a cached prefix, the token that replaced a rejected one) in one ragged batch, which also
gives the first draft token; each further one is a step of one token a request. Tokens that lie
beyond the request's blocks go to scratch blocks and are computed again when they have stood: the
scheduler need not hold a block for a guess.

Answers "what does a draft model cost besides its weights?": its cache, and one small step after
another for tokens that may be thrown away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from infra_lab.sampling.rejection_sampler import draw_draft_tokens
from infra_lab.sampling.request_state import SamplingState
from infra_lab.speculative.draft_blocks import DraftBlocks
from infra_lab.speculative.proposer import DraftRequest
from infra_lab.step import NO_DRAFT, Draft, ScheduledRequest, SchedulerOutput
from infra_lab.worker.decoder_runner import DecoderRunner
from infra_lab.worker.input_batch import build_input_batch


@dataclass(slots=True)
class _Line:
    """One request while it is drafted for.

    tokens: known ones, then drafted ones. num_computed: leading ones in the draft's cache.
    block_ids: the request's, then scratch. limit: how many tokens to draft.
    """

    request: DraftRequest
    tokens: list[int]
    num_computed: int
    block_ids: list[int]
    limit: int
    state: SamplingState
    rows: list[torch.Tensor] = field(default_factory=list)

    @property
    def num_known(self) -> int:
        return len(self.request.token_ids)

    @property
    def wants_more(self) -> bool:
        return len(self.tokens) - self.num_known < self.limit

    def draft(self) -> Draft:
        drafted = self.tokens[self.num_known :]
        if not drafted:
            return NO_DRAFT
        return Draft(drafted, torch.stack(self.rows) if self.rows else None)


class DraftModelProposer:
    """Args:
    decoder: the draft model, its cache allocated with `num_blocks` blocks that share their ids
        with the target's and `num_scratch_blocks` behind them.
    max_model_len: longest sequence that the draft model can go on from.
    max_num_batched_tokens: tokens that one of its steps may compute.
    relative_cost: time of one of its steps in steps of the target.
    """

    def __init__(
        self,
        decoder: DecoderRunner,
        num_blocks: int,
        num_scratch_blocks: int,
        max_model_len: int,
        max_num_batched_tokens: int,
        relative_cost: float,
    ) -> None:
        self.relative_cost = relative_cost
        self._decoder = decoder
        self._scratch = range(num_blocks, num_blocks + num_scratch_blocks)
        self._max_model_len = max_model_len
        self._max_num_batched_tokens = max_num_batched_tokens
        self._blocks = DraftBlocks(decoder.block_size)
        self._states: dict[str, SamplingState] = {}

    def forget(self, request_id: str) -> None:
        self._states.pop(request_id, None)

    @torch.inference_mode()
    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        lines = self._lines(requests)
        active = list(lines.values())
        budget = self._max_num_batched_tokens
        while active:
            items = []
            for line in active:
                # The whole rest, but for a prompt so long that it has to wait for the next time.
                count = min(len(line.tokens) - line.num_computed, budget)
                budget -= count
                items.append(_share(line, count))
            items = [item for item in items if item.token_ids]
            self._step(items, lines)
            reached = {item.request_id for item in items if item.samples}
            active = [x for x in active if x.request.request_id in reached and x.wants_more]
            budget = self._max_num_batched_tokens
        for line in lines.values():
            # Scratch is forgotten: what stood of it is computed again in the request's blocks.
            self._blocks.note(line.tokens[: line.num_computed], line.request.block_ids)
        drafts = {request_id: line.draft() for request_id, line in lines.items()}
        return [drafts.get(request.request_id, NO_DRAFT) for request in requests]

    def _lines(self, requests: Sequence[DraftRequest]) -> dict[str, _Line]:
        """Those that can be drafted for now: no two write into the same block, which two forks
        would until the first of them has its copy."""
        lines: dict[str, _Line] = {}
        free_scratch = iter(self._scratch)
        size = self._decoder.block_size
        claimed: set[int] = set()
        for request in requests:
            known = request.token_ids
            limit = min(request.num_draft_tokens, self._max_model_len - len(known) + 1)
            if limit < 1:
                continue
            own = request.block_ids
            # The newest token has no keys and values yet, so that at least its row is computed.
            valid = min(self._blocks.num_valid(known, own), len(known) - 1)
            writes = set(own[valid // size :])
            if writes & claimed:
                continue
            claimed |= writes
            num_blocks = -(-(len(known) + limit - 1) // size)
            scratch = [next(free_scratch) for _ in range(num_blocks - len(own))]
            block_ids = [*own, *scratch]
            state = self._state(request).after(())
            lines[request.request_id] = _Line(request, list(known), valid, block_ids, limit, state)
        return lines

    def _state(self, request: DraftRequest) -> SamplingState:
        """The request's sampling state as after all its known tokens."""
        state = self._states.get(request.request_id)
        if state is None:
            state = self._states[request.request_id] = SamplingState(request.request)
        for token_id in request.token_ids[state.num_prompt_tokens + state.num_output_tokens :]:
            state.append(token_id)
        return state

    def _step(self, items: list[ScheduledRequest], lines: dict[str, _Line]) -> None:
        """Computes `items` and draws a token for each that samples."""
        batch = build_input_batch(SchedulerOutput(items), self._decoder.block_size)
        hidden = self._decoder.forward(batch, self._decoder.backend.plan(batch.metadata))
        for item in items:
            lines[item.request_id].num_computed += len(item.token_ids)
        sampling = [lines[item.request_id] for item in items if item.samples]
        if not sampling:
            return
        logits = self._decoder.sampled_logits(batch, hidden)
        drawn = draw_draft_tokens(logits, [line.state for line in sampling])
        for line, (token_id, probabilities) in zip(sampling, drawn, strict=True):
            line.tokens.append(token_id)
            line.state.append(token_id)
            if probabilities is not None:
                line.rows.append(probabilities)


def _share(line: _Line, count: int) -> ScheduledRequest:
    end = line.num_computed + count
    return ScheduledRequest(
        request_id=line.request.request_id,
        token_ids=line.tokens[line.num_computed : end],
        num_computed_tokens=line.num_computed,
        block_ids=line.block_ids,
        samples=count > 0 and end == len(line.tokens),
    )
