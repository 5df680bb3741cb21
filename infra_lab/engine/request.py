"""One request inside the engine: the tokens it knows, how many of them are computed, its state.

Answers "what state does a serving engine keep per request?". There is no prefill flag: a
request whose `num_computed_tokens` is behind `num_tokens` has work, whatever kind it is.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from infra_lab.cache.block_hash import ExtraKeys
from infra_lab.sampling_params import SamplingParams
from infra_lab.step import NO_DRAFT, Draft, NewRequest

if TYPE_CHECKING:
    from infra_lab.engine.beam_search import BeamGroup

KV_CACHE_FULL = "kv_cache_full"


def cache_keys(cache_salt: str | None, lora: str | None = None) -> ExtraKeys:
    """What besides its tokens is a block's identity: a tenant's salt, an adapter's digest."""
    named = (("salt", cache_salt), ("lora", lora))
    return tuple((domain, key) for domain, key in named if key is not None)


class RequestStatus(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    SWAPPED = "swapped"
    FINISHED_STOPPED = "stop"
    FINISHED_LENGTH = "length"
    FINISHED_ABORTED = "abort"

    @property
    def finish_reason(self) -> str | None:
        """What an API calls this end; None while the request is unfinished."""
        return self.value if self.name.startswith("FINISHED_") else None


@dataclass(slots=True, eq=False)
class Request:
    """A prompt and what has been generated from it.

    Attributes:
        all_token_ids: prompt and output, in order; only ever appended to, but for a beam's.
        lora: digest of the adapter that its tokens are computed with.
        beam_group: the beam search that it is a branch of.
        num_computed_tokens: leading tokens whose keys and values are in the KV cache.
        num_cached_tokens: tokens of its first scheduling that the prefix cache supplied.
        num_prompt_logprobs: prompt log-probabilities delivered so far, of
            `num_prompt_tokens - 1` (the first token has none).
        sent_to_worker: whether a NewRequest has gone out for it.
        priority: the lower goes first, under the policy "priority".
        rank: its place among all requests, set by the scheduling policy when it arrives.
        draft: what may follow `all_token_ids`; no part of the request until it is verified.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    seed: int = 0
    eos_token_ids: frozenset[int] = frozenset()
    arrival_time: float = 0.0
    cache_salt: str | None = None
    lora: str | None = None
    status: RequestStatus = RequestStatus.WAITING
    stop_reason: str | int | None = None
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_prompt_logprobs: int = 0
    sent_to_worker: bool = False
    priority: int = 0
    rank: tuple[float, ...] = ()
    beam_group: BeamGroup | None = None
    draft: Draft = NO_DRAFT
    output_token_ids: list[int] = field(default_factory=list)
    all_token_ids: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.all_token_ids = [*self.prompt_token_ids, *self.output_token_ids]

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)

    def num_kept_tokens(self, num_tokens: int) -> int:
        """Of its first `num_tokens`, those that stay in the KV cache once they are computed."""
        budget = self.sampling_params.kv_budget
        return num_tokens if budget is None else min(num_tokens, budget)

    @property
    def is_finished(self) -> bool:
        return self.status.finish_reason is not None

    @property
    def extra_keys(self) -> ExtraKeys:
        """What besides its tokens separates its cached blocks from those of other requests."""
        return cache_keys(self.cache_salt, self.lora)

    @property
    def owes_prompt_logprobs(self) -> bool:
        """Whether prompt log-probabilities were asked for and are not all delivered."""
        wanted = self.sampling_params.prompt_logprobs is not None
        return wanted and self.num_prompt_logprobs < self.num_prompt_tokens - 1

    def prompt_logprobs_from(self, start: int, end: int) -> int | None:
        """First position in start..end-1 that still owes a prompt log-probability.

        Position p gives the log-probability of token p + 1. Positions computed again after a
        preemption owe nothing twice.
        """
        if not self.owes_prompt_logprobs:
            return None
        first = max(start, self.num_prompt_logprobs)
        return first if first < min(end, self.num_prompt_tokens - 1) else None

    def append(
        self, token_ids: Iterable[int], max_model_len: int, kv_capacity_tokens: int
    ) -> list[int]:
        """Add sampled tokens up to and including the one that ends the request.

        Returns the tokens kept; sets `status` and `stop_reason` at the end.
        """
        self.draft = NO_DRAFT  # it followed what was known until now
        kept: list[int] = []
        for token_id in token_ids:
            self.all_token_ids.append(token_id)
            self.output_token_ids.append(token_id)
            kept.append(token_id)
            self._check_end(token_id, max_model_len, kv_capacity_tokens)
            if self.is_finished:
                break
        return kept

    @property
    def awaits_others(self) -> bool:
        """Whether it is a beam that has nothing to compute until its siblings have caught up."""
        return self.beam_group is not None and self.beam_group.has_offered(self)

    def become(self, other: Request) -> None:
        """Take over what another branch of the same beam search has generated."""
        self.output_token_ids = other.output_token_ids.copy()
        self.all_token_ids = other.all_token_ids.copy()

    def to_new_request(self) -> NewRequest:
        return NewRequest(
            self.request_id,
            self.prompt_token_ids,
            self.sampling_params,
            self.seed,
            self.eos_token_ids,
            self.beam_group.num_candidates if self.beam_group else 0,
            self.lora,
        )

    def _check_end(self, token_id: int, max_model_len: int, kv_capacity_tokens: int) -> None:
        params = self.sampling_params
        num_output = len(self.output_token_ids)
        # A document ends only where it may, before min_tokens if it cannot go on.
        if num_output >= params.min_tokens or params.structured_outputs is not None:
            if token_id in self.eos_token_ids and not params.ignore_eos:
                self.status = RequestStatus.FINISHED_STOPPED
                return
            if token_id in params.stop_token_ids:
                self.status, self.stop_reason = RequestStatus.FINISHED_STOPPED, token_id
                return
        has_all_tokens = params.max_tokens is not None and num_output >= params.max_tokens
        if has_all_tokens or self.num_tokens >= max_model_len:
            self.status = RequestStatus.FINISHED_LENGTH
        elif self.num_kept_tokens(self.num_tokens) > kv_capacity_tokens:
            # The newest token has no slot even with the whole pool to itself: it could never
            # be computed, and waiting for blocks would never end.
            self.status, self.stop_reason = RequestStatus.FINISHED_LENGTH, KV_CACHE_FULL
