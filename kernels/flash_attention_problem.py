"""One call of flash attention as the kernels are told of it: sequences, mask, scale."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton


@dataclass(frozen=True)
class Problem:
    """Beside the tensors q, k, v [batch, tokens, heads, head_dim], everything that counts.

    batch: sequences. query_len, key_len: of each, or of the longest where they are packed one
    after the other into a batch of one; then query_starts and key_starts, int32 [batch + 1],
    say where each begins and the last one ends. window: keys that a query sees, None for all;
    only with causal. softcap: 0 for none.
    """

    batch: int
    query_len: int
    key_len: int
    causal: bool
    scale: float
    window: int | None = None
    softcap: float = 0.0
    query_starts: torch.Tensor | None = None
    key_starts: torch.Tensor | None = None

    @property
    def is_packed(self) -> bool:
        return self.query_starts is not None

    def strides(self, *tensors: torch.Tensor) -> list[int]:
        """Of batch, token and head for each [batch, tokens, heads, head_dim]."""
        return [stride for tensor in tensors for stride in self._strides(tensor, 3)]

    def row_strides(self, per_row: torch.Tensor) -> list[int]:
        """Of batch and head for an LSE or the like, [batch, heads, tokens]."""
        return self._strides(per_row, 2)

    def _strides(self, tensor: torch.Tensor, count: int) -> list[int]:
        batch, *rest = tensor.stride()[:count]
        # A packed sequence is found by its start alone.
        return [0 if self.is_packed else batch, *rest]


def padded_head_dim(head_dim: int) -> int:
    """What a matrix instruction can take: a power of two, 16 or more."""
    return max(16, int(triton.next_power_of_2(head_dim)))


def dtype_name(dtype: torch.dtype) -> str:
    """As Triton writes it."""
    return {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}[dtype]
