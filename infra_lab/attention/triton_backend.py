"""The GPU backend: two Triton kernels a layer, on the paged cache where it lies.

One turns queries and keys and writes keys and values, one attends: prompt chunks and decodes in
one launch, the query heads of a group as rows of one matrix product, long caches split over
processors (FlashDecoding). Without a GPU it runs under `kernels.testing.interpreter`, which is how
the tests prove it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from infra_lab.attention.backend import (
    AttentionBackend,
    AttentionMetadata,
    AttentionShape,
    LayerKVCache,
)
from infra_lab.errors import UsageError
from infra_lab.kernels_guard import require_own_kernels

# Of lengths and block ids, as the kernels read them; slots may pass 2^31.
INDEX_TYPE = np.int32


@dataclass(frozen=True, slots=True)
class TritonPlan:
    """A step's shape where the kernels read it.

    query_start_loc: int32 [num_requests + 1]. seq_lens: int32 [num_requests].
    block_tables: int32 [num_requests, max_blocks]. slot_mapping: int64 [num_tokens].
    max_query_len, max_seq_len: of the longest request; known on the host, so that no launch
        waits for the GPU.
    """

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    slot_mapping: torch.Tensor
    max_query_len: int
    max_seq_len: int


class TritonAttentionBackend(AttentionBackend[TritonPlan]):
    """fp32, bf16 or fp16 on a GPU; a cache of that type, or of codes with a scale for each token
    and head.

    Raises:
        ForeignKernelsError: another package called `kernels` comes first on the path.
        UsageError: Triton is not installed, or there is no GPU to run on.
    """

    fuses_rotation = True

    def __init__(
        self, shape: AttentionShape, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        require_triton(device)
        from kernels.fused_qkv import fused_qkv
        from kernels.kv_cache_write import kv_cache_write
        from kernels.paged_attention import paged_attention

        self.shape = shape
        self.block_size = block_size
        self.dtype = dtype
        self.device = device
        self._rotate_and_write = fused_qkv
        self._write = kv_cache_write
        self._attend = paged_attention

    def plan(self, metadata: AttentionMetadata) -> TritonPlan:
        return TritonPlan(
            self._to_device(metadata.query_start_loc, INDEX_TYPE),
            self._to_device(metadata.seq_lens, INDEX_TYPE),
            self._to_device(metadata.block_tables, INDEX_TYPE),
            self._to_device(metadata.slot_mapping, np.int64),
            int(metadata.query_lens.max()),
            int(metadata.seq_lens.max()),
        )

    def forward(
        self,
        query: torch.Tensor,
        key_value: torch.Tensor,
        cache: LayerKVCache,
        plan: TritonPlan,
        out: torch.Tensor,
    ) -> None:
        self._write(
            key_value[:, 0],
            key_value[:, 1],
            cache.key,
            cache.value,
            plan.slot_mapping,
            key_scales=cache.key_scales,
            value_scales=cache.value_scales,
        )
        self._attend_cached(query, cache, plan, out)

    def rotate_and_forward(
        self,
        heads: torch.Tensor,
        positions: torch.Tensor,
        table: torch.Tensor,
        cache: LayerKVCache,
        plan: TritonPlan,
        out: torch.Tensor,
    ) -> None:
        query = self._rotate_and_write(
            heads.flatten(1),
            positions,
            table,
            cache.key,
            cache.value,
            plan.slot_mapping,
            key_scales=cache.key_scales,
            value_scales=cache.value_scales,
        )
        self._attend_cached(query, cache, plan, out)

    def _attend_cached(
        self, query: torch.Tensor, cache: LayerKVCache, plan: TritonPlan, out: torch.Tensor
    ) -> None:
        self._attend(
            query,
            cache.key,
            cache.value,
            plan.block_tables,
            plan.seq_lens,
            plan.query_start_loc,
            plan.max_query_len,
            scale=self.shape.scale,
            window=self.shape.sliding_window,
            key_scales=cache.key_scales,
            value_scales=cache.value_scales,
            out=out,
            max_seq_len=plan.max_seq_len,
        )

    def _to_device(self, array: np.ndarray, dtype: type[np.integer]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=dtype)).to(self.device)


def require_triton(device: torch.device) -> None:
    """Raises unless a Triton kernel can run on `device` now; see TritonAttentionBackend."""
    require_own_kernels()
    try:
        from kernels.checks import is_interpreting
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise UsageError(
            "attention 'triton' needs the package triton, which exists for Linux: use "
            "attention 'torch', or 'auto'"
        ) from None
    if device.type != "cuda" and not is_interpreting():
        raise UsageError(
            "attention 'triton' runs on a GPU, and this engine is on the CPU: use device 'cuda' "
            "if there is one, else attention 'auto'"
        )
