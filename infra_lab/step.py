"""What passes between the scheduler and the worker in one step.

Torch-free on purpose: the scheduler is tested without weights, and these records could
cross a process boundary as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from infra_lab.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class NewRequest:
    """What a worker must know once about a request, sent with its first scheduled tokens.

    `seed` is always set: the request's own, or one drawn by the engine at admission.
    `num_candidates` likeliest tokens are reported of every position that is sampled, for a beam
    search to choose from; 0 where the sampling parameters alone decide what is reported.
    `lora` is the digest of the adapter that all its tokens are computed with, if any.
    """

    request_id: str
    prompt_token_ids: Sequence[int]
    sampling_params: SamplingParams
    seed: int
    eos_token_ids: frozenset[int] = frozenset()
    num_candidates: int = 0
    lora: str | None = None


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Ids of a KV block and of the one that gets its content, in every layer."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may follow a request's known ones, to be verified by the model.

    Attributes:
        token_ids: the guess, in order; empty for none.
        probabilities: the distributions that they were drawn from, a tensor of
            [len(token_ids), vocabulary]; None where nothing was drawn and each was certain.
    """

    token_ids: Sequence[int] = ()
    probabilities: Any = None

    def __len__(self) -> int:
        return len(self.token_ids)

    def first(self, count: int) -> Draft:
        """The draft without what follows its first `count` tokens."""
        if count >= len(self):
            return self
        rows = None if self.probabilities is None else self.probabilities[:count]
        return Draft(self.token_ids[:count], rows)


NO_DRAFT = Draft()


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """One request's share of a step: compute `token_ids` at positions
    `num_computed_tokens`, `num_computed_tokens + 1`, ...

    Attributes:
        block_ids: the request's whole block table, long enough for all positions computed.
        samples: whether `token_ids` go up to the last known token, so that the worker must
            sample the next one. A prefill chunk that is not the last one samples nothing.
        prompt_logprobs_from: first position of this chunk whose successor is a prompt token
            with log-probabilities still owed to the caller; None if none are owed.
        forks: requests with the same tokens that sample from the same logits, and go on from there.
        kv_budget: most tokens that stay in `block_ids`, which are then too few for all positions;
            None if all stay.
        draft: what stands in `token_ids` behind the last known token, to be verified.
    """

    request_id: str
    token_ids: Sequence[int]
    num_computed_tokens: int
    block_ids: Sequence[int]
    samples: bool
    prompt_logprobs_from: int | None = None
    is_prompt_chunk: bool = False
    forks: tuple[str, ...] = ()
    kv_budget: int | None = None
    draft: Draft = NO_DRAFT

    @property
    def end(self) -> int:
        """The position behind the last one computed."""
        return self.num_computed_tokens + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """Everything a worker needs to carry out one step.

    `finished_request_ids` names requests that ended since the last step, so that the worker
    may drop their state. A preempted request keeps its worker state: it will come back.
    Copies come before all else, in this order: `swap_outs`, from the primary pool to the swap
    space; `block_copies`, within the primary pool; `swap_ins`, from the swap space to the primary
    pool. In each, every source is read before any block is written.
    """

    scheduled: list[ScheduledRequest] = field(default_factory=list)
    new_requests: list[NewRequest] = field(default_factory=list)
    finished_request_ids: list[str] = field(default_factory=list)
    preempted_request_ids: list[str] = field(default_factory=list)
    block_copies: list[BlockCopy] = field(default_factory=list)
    swap_outs: list[BlockCopy] = field(default_factory=list)
    swap_ins: list[BlockCopy] = field(default_factory=list)

    @property
    def has_prompt_chunks(self) -> bool:
        return any(item.is_prompt_chunk for item in self.scheduled)

    @property
    def num_scheduled_tokens(self) -> dict[str, int]:
        return {item.request_id: len(item.token_ids) for item in self.scheduled}

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(len(item.token_ids) for item in self.scheduled)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position: the chosen token's, its rank (1 is the likeliest),
    and the `top` likeliest as (token id, log-probability), likeliest first."""

    token_id: int
    logprob: float
    rank: int
    top: list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """What a step produced, by request id.

    `sampled_token_ids` has a list for every request that sampled (one id each, more with
    speculation). `logprobs` holds one entry per sampled id where asked for;
    `prompt_logprobs` one entry per position from `prompt_logprobs_from` on, in order.
    `errors` has the reason for each request that could not sample and must be given up.
    """

    sampled_token_ids: dict[str, list[int]] = field(default_factory=dict)
    logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    prompt_logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepTimings:
    """Milliseconds of a step's execution, by part."""

    prepare_ms: float = 0.0
    model_ms: float = 0.0
    sample_ms: float = 0.0
