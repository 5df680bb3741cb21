"""One model over a paged cache of its own: what a ragged batch of tokens becomes.

It knows tokens, blocks and rows. Requests, sampling and drafts are its callers' affair: the
ModelRunner's, and of the draft model, which is run in just the same way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from infra_lab.attention.backend import AttentionBackend
from infra_lab.attention.native_backend import NativeAttentionBackend
from infra_lab.models.decoder import DecoderForCausalLM
from infra_lab.worker.input_batch import InputBatch
from infra_lab.worker.kv_cache import allocate_kv_cache
from infra_lab.worker.replayed_layers import ReplayedLayers


class DecoderRunner:
    """Owns the weights, the cache tensors, and small steps as recorded calls."""

    def __init__(
        self,
        model: DecoderForCausalLM,
        backend: AttentionBackend[Any],
        num_blocks: int,
        block_size: int,
        pretouch_kv_cache: bool = False,
        kv_cache_dtype: str = "auto",
        sparse_kv: bool = False,
    ) -> None:
        self.model = model
        self.backend = backend
        self.block_size = block_size
        self.caches = allocate_kv_cache(
            model.config,
            num_blocks,
            block_size,
            model.dtype,
            model.device,
            pretouch_kv_cache,
            kv_cache_dtype,
            sparse_kv,
        )
        self._replayed = (
            ReplayedLayers(model, backend, self.caches)
            if isinstance(backend, NativeAttentionBackend)
            else None
        )

    def forward(self, batch: InputBatch, plan: Any, may_replay: bool = True) -> torch.Tensor:
        """Writes the batch's keys and values into the cache; plan: the backend's, for its
        metadata. Returns the residual stream of the rows wanted, [len(wanted_rows), hidden].

        may_replay: False where the layers are to compute more than they did when recorded.
        """
        wanted = batch.wanted_rows
        all_wanted = len(wanted) == len(batch.token_ids)
        token_ids, positions = self.to_device(batch.token_ids), self.to_device(batch.positions)
        may_replay = may_replay and all_wanted
        if may_replay and self._replayed and self._replayed.can_serve(len(token_ids)):
            return self._replayed.forward(token_ids, positions, plan)
        rows = None if all_wanted else self.to_device(wanted)
        return self.model.forward(token_ids, positions, self.backend, self.caches, plan, rows)

    def sampled_logits(self, batch: InputBatch, hidden: torch.Tensor) -> torch.Tensor:
        """fp32 [len(sample_rows), vocab] from the rows wanted."""
        return self.logits(hidden, np.searchsorted(batch.wanted_rows, batch.sample_rows))

    def logits(self, hidden: torch.Tensor, rows: object) -> torch.Tensor:
        """Logits of the named rows only: the head is a fifth of a small model's work."""
        return self.model.logits(hidden.index_select(0, self.to_device(rows)))

    def to_device(self, values: object) -> torch.Tensor:
        return torch.as_tensor(values, dtype=torch.int64).to(self.model.device)
