"""Causal attention over whole sequences that nobody will continue: no cache at all.

Evaluating a text and calibrating a quantizer see each sequence once, from its first token to its
last; keys and values are wanted in this call and never again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F

from infra_lab.attention.backend import (
    AttentionBackend,
    AttentionMetadata,
    AttentionShape,
    LayerKVCache,
)

Bounds = list[tuple[int, int]]
NO_CACHE = LayerKVCache(torch.empty(0))


def whole_sequences(lengths: Sequence[int]) -> AttentionMetadata:
    """The ragged batch of sequences of these lengths, each from its first token on."""
    starts = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    nothing = np.empty(0, dtype=np.int64)
    return AttentionMetadata(starts, np.diff(starts), nothing.reshape(len(lengths), 0), nothing)


class WholeSequenceBackend(AttentionBackend[Bounds]):
    """torch's scaled_dot_product_attention on the keys and values of the step itself."""

    def __init__(self, shape: AttentionShape) -> None:
        self.shape = shape

    def plan(self, metadata: AttentionMetadata) -> Bounds:
        """Where each sequence begins and ends. Raises ValueError if one has a past."""
        if not np.array_equal(metadata.query_lens, metadata.seq_lens):
            raise ValueError("whole sequences have no tokens from earlier steps")
        starts = metadata.query_start_loc.tolist()
        return list(pairwise(starts))

    def forward(
        self,
        query: torch.Tensor,
        key_value: torch.Tensor,
        cache: LayerKVCache,
        plan: Bounds,
        out: torch.Tensor,
    ) -> None:
        """As in AttentionBackend, but that `cache` is neither read nor written."""
        shape = self.shape
        grouped = (-1, shape.num_kv_heads, shape.group_size, shape.head_dim)
        for start, end in plan:
            keys, values = (
                part.transpose(0, 1).unsqueeze(1).expand(-1, shape.group_size, -1, -1)
                for part in key_value[start:end].unbind(1)
            )
            mask = self._mask(end - start, query.device)
            attended = F.scaled_dot_product_attention(
                query[start:end].view(grouped).permute(1, 2, 0, 3),
                keys,
                values,
                attn_mask=mask,
                is_causal=mask is None,
                scale=shape.scale,
            )
            out[start:end].view(grouped).copy_(attended.permute(2, 0, 1, 3))

    def _mask(self, length: int, device: torch.device) -> torch.Tensor | None:
        """True where visible, bool [length, length]; None where plain causal masking is right."""
        window = self.shape.sliding_window
        if window is None or window >= length:
            return None
        positions = torch.arange(length, device=device)
        distance = positions[:, None] - positions
        return (distance >= 0) & (distance < window)
