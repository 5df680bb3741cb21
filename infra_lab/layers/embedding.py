"""Token embedding: a row of a table for each token id."""

from __future__ import annotations

import torch


class Embedding:
    """Rows of a [vocab, hidden] table. Small models share it with their output head."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """token_ids: int64 [num_tokens] -> [num_tokens, hidden]."""
        return self.weight.index_select(0, token_ids)
