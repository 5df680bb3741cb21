"""What every source of draft tokens is to the engine: known tokens in, a guess at the next out.

Answers "what is speculative decoding?": something cheap guesses the next k tokens, the model
computes them and the known one in a single step, and keeps those that it would have said. A
guess costs time when it is wrong and nothing else: whether it stands is decided by
`sampling.rejection_sampler`. Torch-free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from infra_lab.step import Draft, NewRequest


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """A request that wants a draft.

    Attributes:
        token_ids: prompt and output, all that is known; the newest is not computed yet.
        block_ids: its block table, with room for all known tokens but perhaps the newest.
        num_draft_tokens: most tokens to draft, at least 1.
    """

    request: NewRequest
    token_ids: Sequence[int]
    block_ids: Sequence[int]
    num_draft_tokens: int

    @property
    def request_id(self) -> str:
        return self.request.request_id


class Proposer(Protocol):
    """Drafts for a batch of requests.

    relative_cost: time of drafting one token, for the whole batch, in steps of the target.
    """

    relative_cost: float

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """A draft for each request, in order; as long as wanted, shorter, or empty."""

    def forget(self, request_id: str) -> None:
        """Drop what is kept of a request that has ended; nothing if it is unknown."""
