"""How likely a model finds a text: the measure behind every comparison of qualities. Torch-free.

Answers "what is perplexity, and when are two comparable?": exp of the mean negative
log-likelihood, per token, so only models of one tokenizer compare, on one text, cut alike. Windows
stand end to end (stride = window): every token is predicted once, from the tokens before it in its
window, and a window's first token from none, so not at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from infra_lab.errors import UsageError


@dataclass(frozen=True, slots=True)
class TextLikelihood:
    """logprobs: of each predicted token, in nats, in the order of the text."""

    logprobs: tuple[float, ...]

    @property
    def perplexity(self) -> float:
        return math.exp(-sum(self.logprobs) / len(self.logprobs))

    def mean_change(self, base: TextLikelihood) -> float:
        """By how many nats a token's log-probability differs from another measurement's, on
        average, up or down. Perplexity can fall by chance; this cannot."""
        pairs = zip(self.logprobs, base.logprobs, strict=True)
        return sum(abs(ours - theirs) for ours, theirs in pairs) / len(self.logprobs)


def text_windows(token_ids: Sequence[int], window: int) -> list[list[int]]:
    """The text in pieces of `window` tokens, the last one shorter, none of a single token.

    Raises UsageError for a text or a window of less than two tokens.
    """
    if window < 2 or len(token_ids) < 2:
        raise UsageError(
            f"a text of {len(token_ids)} tokens in windows of {window} predicts nothing: "
            f"give at least 2 of each"
        )
    starts = range(0, len(token_ids) - 1, window)
    return [list(token_ids[start : start + window]) for start in starts]
