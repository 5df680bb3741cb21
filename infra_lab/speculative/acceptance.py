"""How many draft tokens were accepted, by their place in the draft.

Answers "what do you watch to know whether speculation pays?": tokens per step, and where in the
draft the first wrong token falls; the names are those of vLLM's metrics. Torch-free.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class SpeculativeStats:
    """Sums over all drafts that were verified.

    Attributes:
        num_drafts: verifications of at least one draft token.
        num_accepted_tokens_per_pos: at i, drafts whose tokens 0..i were all accepted.
        num_draft_tokens_per_pos: at i, drafts of more than i tokens.
    """

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)
    num_draft_tokens_per_pos: list[int] = field(default_factory=list)

    def observe(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Takes one verified draft in."""
        if num_draft_tokens == 0:
            return
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted_tokens
        missing = num_draft_tokens - len(self.num_draft_tokens_per_pos)
        self.num_draft_tokens_per_pos += [0] * missing
        self.num_accepted_tokens_per_pos += [0] * missing
        for position in range(num_draft_tokens):
            self.num_draft_tokens_per_pos[position] += 1
            self.num_accepted_tokens_per_pos[position] += position < num_accepted_tokens

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted of all drafted tokens; None before the first."""
        if self.num_draft_tokens == 0:
            return None
        return self.num_accepted_tokens / self.num_draft_tokens

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens per verified draft, the one that the target adds counted in."""
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else None

    @property
    def acceptance_rate_per_pos(self) -> list[float]:
        """Of the drafts that reached a place, the share accepted up to and with it."""
        both = zip(self.num_accepted_tokens_per_pos, self.num_draft_tokens_per_pos, strict=True)
        return [accepted / drafted for accepted, drafted in both]
