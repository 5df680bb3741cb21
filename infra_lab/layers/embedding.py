"""Token embedding: a row of a table for each token id."""

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
    """Small models share the table with their output head. It is kept once, in the head's
    layout: the head reads all of it for every step, a look-up one row for every token."""

    def __init__(self, head: Linear) -> None:
        self.head = head

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """token_ids: int64 [num_tokens] -> [num_tokens, hidden]."""
        return self.head.rows(token_ids)
