"""The fast CPU backend: one C kernel writes the step's keys and values and attends to the paged
cache where it lies, prompt chunks and decodes alike.

Torch has no product over scattered blocks, so its backend gathers them into a tile first.
"""

from __future__ import annotations

import numpy as np
import torch

from infra_lab.attention.backend import (
    AttentionBackend,
    AttentionMetadata,
    AttentionShape,
    LayerKVCache,
)
from infra_lab.native.library import is_available
from infra_lab.native.ops import (
    PagedAttentionStep,
    attention_scratch_floats,
    attention_tokens_per_task,
)


class NativeAttentionBackend(AttentionBackend[PagedAttentionStep]):
    """fp32 on a CPU.

    Raises NativeUnavailableError where the kernel cannot be compiled.
    """

    def __init__(self, shape: AttentionShape, block_size: int) -> None:
        self.shape = shape
        self.block_size = block_size
        self._sizes = (shape.num_heads, shape.num_kv_heads, shape.head_dim)
        self._tokens_per_task = attention_tokens_per_task(shape.num_heads, shape.num_kv_heads)
        self._scratch = torch.empty(0)

    @staticmethod
    def supports(dtype: torch.dtype, device: torch.device) -> bool:
        """Whether the kernel can do it, and exists here."""
        return dtype == torch.float32 and device.type == "cpu" and is_available()

    def plan(self, metadata: AttentionMetadata) -> PagedAttentionStep:
        num_threads = torch.get_num_threads()
        floats = attention_scratch_floats(*self._sizes) * num_threads
        if self._scratch.numel() < floats:
            self._scratch = torch.empty(floats)
        arrays = {
            "slot_mapping": metadata.slot_mapping,
            "query_start_loc": metadata.query_start_loc,
            "seq_lens": metadata.seq_lens,
            "block_tables": metadata.block_tables,
            "tasks": self._tasks(metadata, num_threads),
        }
        return PagedAttentionStep(
            self._sizes,
            self.block_size,
            self.shape.scale,
            self.shape.sliding_window,
            {name: np.ascontiguousarray(array, np.int64) for name, array in arrays.items()},
            self._scratch,
        )

    def forward(
        self,
        query: torch.Tensor,
        key_value: torch.Tensor,
        cache: LayerKVCache,
        plan: PagedAttentionStep,
        out: torch.Tensor,
    ) -> None:
        plan.run(query, key_value, cache.storage, out)

    def _tasks(self, metadata: AttentionMetadata, num_threads: int) -> np.ndarray:
        """The longest first, so that the threads end together.

        A chunk is cut by tokens and KV heads. With many requests a decode is one task, and its
        blocks stream through once; with few it is cut by KV heads, so that every core has work.
        """
        num_kv_heads = self.shape.num_kv_heads
        heads = num_kv_heads if len(metadata.seq_lens) >= 2 * num_threads else 1
        tasks, costs = [], []
        lens = zip(metadata.query_lens.tolist(), metadata.seq_lens.tolist(), strict=True)
        for request, (query_len, seq_len) in enumerate(lens):
            width = heads if query_len == 1 else 1
            for head in range(0, num_kv_heads, width):
                for start in range(0, query_len, self._tokens_per_task):
                    end = min(start + self._tokens_per_task, query_len)
                    tasks.append((request, head, head + width, start, end))
                    costs.append((end - start) * width * (seq_len - query_len + end))
        return np.array(tasks)[np.argsort(np.negative(costs), kind="stable")]
