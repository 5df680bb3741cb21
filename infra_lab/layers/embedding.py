"""Token embedding and output head, which share one matrix in small models.

A tied matrix is kept once, as [hidden, vocab] for the head's sake: the head reads all of it
for every sampled token, a look-up reads one column for every input token.
"""

from __future__ import annotations

import torch

from infra_lab.layers.linear import Linear


class Embedding:
    """Rows of a [vocab, hidden] table."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """token_ids: int64 [num_tokens] -> [num_tokens, hidden]."""
        return self.weight.index_select(0, token_ids)


class TiedEmbedding:
    """Looks tokens up as columns of the output head."""

    def __init__(self, head: Linear) -> None:
        self.head = head

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """token_ids: int64 [num_tokens] -> [num_tokens, hidden]."""
        return self.head.weight.index_select(1, token_ids).T.contiguous()
