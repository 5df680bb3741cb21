"""How many tokens are worth drafting for one request, from how its drafts have fared.

Answers "which k is best, and when does speculation hurt?". With each draft token accepted with
probability a, independently, a draft of k tokens yields (1 - a^(k+1)) / (1 - a) tokens a step
(Leviathan et al. 2023, equation 1). A step is not free of its width: with R requests of 1 + k
rows each it costs 1 + r R (1 + k) in units of its fixed part, and drafting adds k times d. The
best k maximises the ratio (their theorem 3.8, with the width of the step counted). It falls as
the batch grows, to 0 where the machine is busy without drafts. Torch-free, and no clock is read:
the same history gives the same length.
"""

from __future__ import annotations

from dataclasses import dataclass

# What is known before the first draft: as if so many of so many tokens had been accepted.
PRIOR_ACCEPTED, PRIOR_TESTED = 1.5, 2.0
# A draft's weight falls by this with each later one: about the last ten count.
DECAY = 0.9
# While nothing is drafted nothing is learnt: one in so many steps drafts a token to find out.
PROBE_INTERVAL = 16


@dataclass(frozen=True, slots=True)
class StepCost:
    """What a step costs, in units of the fixed part of a target step.

    row: one more token computed in it. draft: drafting one token for the whole batch, in target
    steps.
    """

    row: float
    draft: float

    def of(self, batch_size: int, num_draft_tokens: int) -> float:
        """A step of `batch_size` requests with so many draft tokens each, drafting included."""
        verify = 1 + self.row * batch_size * (1 + num_draft_tokens)
        return verify + self.draft * num_draft_tokens * (1 + self.row * batch_size)


def expected_tokens(acceptance: float, num_draft_tokens: int) -> float:
    """Tokens that a step yields on average: accepted ones, and the one of the target."""
    return sum(acceptance**place for place in range(num_draft_tokens + 1))


def best_length(acceptance: float, longest: int, batch_size: int, cost: StepCost) -> int:
    """The k in 0..longest of the most tokens per cost; the smallest of equals."""
    return max(
        range(longest + 1),
        key=lambda k: (expected_tokens(acceptance, k) / cost.of(batch_size, k), -k),
    )


class DraftLength:
    """One request's draft length, kept up to date with what became of its drafts."""

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost
        self._accepted = PRIOR_ACCEPTED
        self._tested = PRIOR_TESTED
        self._steps_without = 0

    @property
    def acceptance(self) -> float:
        """The estimated probability that a draft token stands where those before it do."""
        return self._accepted / self._tested

    def observe(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Takes in a verified draft: tokens behind the first rejected one were not tested."""
        if num_draft_tokens == 0:
            return
        tested = min(num_accepted_tokens + 1, num_draft_tokens)
        self._accepted = DECAY * self._accepted + num_accepted_tokens
        self._tested = DECAY * self._tested + tested

    def choose(self, longest: int, batch_size: int) -> int:
        """How many tokens to draft now, 0 to `longest`."""
        length = best_length(self.acceptance, longest, batch_size, self._cost)
        if length > 0:
            self._steps_without = 0
            return length
        self._steps_without += 1
        if self._steps_without % PROBE_INTERVAL == 0:
            return min(1, longest)
        return 0
