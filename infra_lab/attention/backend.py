"""One interface for attention over a paged KV cache, whatever computes it.

A step is a *ragged batch*: the query tokens of all requests laid end to end, each request
with its own length and its own block table. Prefill chunks (many query tokens) and decodes
(one) differ in nothing but that length. Answers "how does PagedAttention find its keys?".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import numpy as np
import torch

from infra_lab.attention.kv_cache import LayerKVCache

__all__ = ["AttentionBackend", "AttentionMetadata", "AttentionShape", "LayerKVCache"]


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """The shape of one step's ragged batch; built once, used by every layer.

    Attributes:
        query_start_loc: int64 [num_requests + 1], where each request's query tokens start.
        seq_lens: int64 [num_requests], tokens whose keys each request sees, this step's included.
        block_tables: int64 [num_requests, max_blocks], padded with the null block 0.
        slot_mapping: int64 [num_tokens], block_id * block_size + offset of each new token. Of a
            request with a budget it says nothing: the backend finds the slots.
        kv_budgets: int64 [num_requests], the most tokens that each keeps, 0 where it keeps all;
            None where all keep all.
    """

    query_start_loc: np.ndarray
    seq_lens: np.ndarray
    block_tables: np.ndarray
    slot_mapping: np.ndarray
    kv_budgets: np.ndarray | None = None

    @property
    def num_tokens(self) -> int:
        return int(self.query_start_loc[-1])

    @property
    def query_lens(self) -> np.ndarray:
        return np.diff(self.query_start_loc)


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What a backend must know about a model's attention, the same for all its layers."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    sliding_window: int | None = None

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head (1 is MHA, num_heads is MQA)."""
        return self.num_heads // self.num_kv_heads


PlanT = TypeVar("PlanT")


class AttentionBackend(ABC, Generic[PlanT]):
    """Writes a step's keys and values into the cache and attends over it.

    fuses_rotation: whether it has `rotate_and_forward`.
    """

    fuses_rotation: ClassVar[bool] = False

    @abstractmethod
    def plan(self, metadata: AttentionMetadata) -> PlanT:
        """Does once per step what does not depend on the layer: masks, index tensors."""

    @abstractmethod
    def forward(
        self,
        query: torch.Tensor,
        key_value: torch.Tensor,
        cache: LayerKVCache,
        plan: PlanT,
        out: torch.Tensor,
    ) -> None:
        """Attends each query token to the cached tokens at or before its position.

        Args:
            query: [num_tokens, num_heads, head_dim].
            key_value: [num_tokens, 2, num_kv_heads, head_dim], keys first; written to the
                cache before anything is attended to.
            cache: this layer's cache.
            plan: what `plan` returned for this step.
            out: [num_tokens, num_heads, head_dim], overwritten.
        """

    def rotate_and_forward(
        self,
        heads: torch.Tensor,
        positions: torch.Tensor,
        table: torch.Tensor,
        cache: LayerKVCache,
        plan: PlanT,
        out: torch.Tensor,
    ) -> None:
        """`forward` of queries and keys that it turns by their positions on the way.

        Args:
            heads: [num_tokens, num_heads + 2 * num_kv_heads, head_dim], contiguous: queries,
                keys and values of each token.
            positions: int64 [num_tokens].
            table: fp32 [max_positions, head_dim], cos and then sin.
        """
        raise NotImplementedError(f"{type(self).__name__} does not fuse rotation")
