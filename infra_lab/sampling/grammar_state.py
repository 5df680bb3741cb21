"""Where one request stands in its document: which tokens may come next.

A function of the output tokens alone. It outlives a preemption with the sampler's state, and
for speculation it can run ahead along drafted tokens and go back. Answers "how does structured
output work with speculative decoding and preemption?".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Self

import numpy as np

from infra_lab.errors import StructuredOutputError


class GrammarState:
    """One document in the making.

    An end token is allowed where the document is whole. Before min_tokens it is withheld as
    long as the document can go on; where it cannot, the document ends early.

    Args:
        matcher: an llguidance LLMatcher of this state's own.
        end_token_ids: what ends the document; special tokens, never part of it.
        min_tokens: output tokens before which the document is to go on if it can.
    """

    def __init__(
        self, matcher: Any, end_token_ids: Collection[int], vocab_size: int, min_tokens: int = 0
    ) -> None:
        self._matcher = matcher
        self._ends = frozenset(end_token_ids)
        self._vocab_size = vocab_size
        self._min_tokens = min_tokens
        self._allowed: np.ndarray | None = None
        self.token_ids: list[int] = []

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def has_ended(self) -> bool:
        return bool(self.token_ids) and self.token_ids[-1] in self._ends

    @property
    def is_complete(self) -> bool:
        """Whether what is out so far is a whole document, even if it may go on."""
        return self.has_ended or bool(self._matcher.is_accepting())

    @property
    def error(self) -> str | None:
        """Why the document cannot be continued, such as a limit of the parser; else None."""
        if self.has_ended:
            return "the document has ended"
        try:
            self.allowed()
        except StructuredOutputError as error:
            return str(error)
        return None

    def allowed(self) -> np.ndarray:
        """bool [vocab_size]: the tokens that may come next, at least one.

        The array is the state's own: do not write to it.

        Raises:
            StructuredOutputError: nothing may come next, for the reason it gives.
        """
        if self._allowed is None:
            self._allowed = self._compute_allowed()
        return self._allowed

    def advance(self, token_id: int) -> None:
        """Takes one token. One that is not allowed raises StructuredOutputError and changes
        nothing."""
        if self.has_ended:
            raise StructuredOutputError("the document has ended: nothing may follow")
        if token_id in self._ends:
            accepted = self.is_complete
        else:
            accepted = self._matcher.try_consume_tokens([token_id]) == 1
        if not accepted:
            raise StructuredOutputError(f"token {token_id} does not continue the document")
        self.token_ids.append(token_id)
        self._allowed = None

    def roll_back(self, num_tokens: int) -> None:
        """Back to where the first `num_tokens` tokens were out."""
        if not 0 <= num_tokens <= self.num_tokens:
            raise ValueError(f"cannot go back to {num_tokens} tokens of {self.num_tokens}")
        # The matcher never saw the end token.
        surplus = self.num_tokens - num_tokens - (self.has_ended and num_tokens < self.num_tokens)
        if surplus:
            self._matcher.rollback(surplus)
        if num_tokens < self.num_tokens:
            self._allowed = None
        del self.token_ids[num_tokens:]

    def masks(self, drafted: Sequence[int]) -> list[np.ndarray]:
        """What may come after each of drafted[:0], drafted[:1], ..., as `allowed` gives it.

        The list ends after the first drafted token that is not allowed or ends the document:
        `len(masks) - 1` of them may be accepted, and one more if that one ends it. The state
        itself stays where it is.
        """
        start = self.num_tokens
        masks = [self.allowed()]
        for token_id in drafted:
            if not masks[-1][token_id] or token_id in self._ends:
                break
            self.advance(token_id)
            masks.append(self.allowed())
        first = masks[0]
        self.roll_back(start)
        self._allowed = first
        return masks

    def fork(self) -> Self:
        """A second state at the same place, for a beam or a sample that goes its own way."""
        other = type(self)(
            self._matcher.deep_copy(), self._ends, self._vocab_size, self._min_tokens
        )
        other.token_ids = list(self.token_ids)
        other._allowed = self._allowed
        return other

    def _compute_allowed(self) -> np.ndarray:
        if self.has_ended:
            raise StructuredOutputError("the document has ended: nothing may follow")
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            reason = self._matcher.get_error().split("\n", 1)[0]
            raise StructuredOutputError(f"the document cannot be continued: {reason}")
        allowed = np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)
        ends = list(self._ends)
        allowed[ends] = False
        if self._matcher.is_accepting():
            may_end = self.num_tokens >= self._min_tokens or not allowed.any()
            allowed[ends] = may_end
        elif not allowed.any():
            raise StructuredOutputError(
                "the document cannot be continued: no token of the vocabulary fits"
            )
        return allowed
