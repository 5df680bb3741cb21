"""Paged attention in plain torch: the default on a CPU, and the reference for any other.

Decodes are gathered block by block into a small reused tile and attended together, in
groups of similar length, with the query heads that share a KV head as the rows of one
product, so that every key is read once. A prompt that starts in this step needs no gather:
its keys are the ones just computed. Nothing ever copies more than the tokens attended to.

Of a quantized cache every query sees what the cache gives back, of its own token too: what a
token's output is depends on the tokens before it, and not on how steps were cut.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from infra_lab.attention.backend import (
    AttentionBackend,
    AttentionMetadata,
    AttentionShape,
    LayerKVCache,
)
from infra_lab.attention.heavy_hitters import BudgetedRequest, attend_within_budget
from infra_lab.attention.kv_cache import movable
from infra_lab.attention.kv_quantization import dequantize_rows, quantize_rows

# Keys and values of one decode group: the tile stays in L2. Measured at batch 32, a tile of
# 8 MiB costs 1.5 times as much.
TILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Requests with one query token each, attended in one call.

    rows: int64 [n], their query tokens; None when they are all tokens in order.
    block_ids: int64 [n * blocks], their tables, cut to the longest of the group.
    mask: [n, 1, 1, blocks * block_size], 0 where visible and -inf elsewhere.
    stale: int64, the slots of the tile that belong to no token of their request. They hold what
        others left there, and NaN among it would come through any mask: 0 x NaN is NaN.
    """

    rows: torch.Tensor | None
    block_ids: torch.Tensor
    mask: torch.Tensor
    stale: torch.Tensor


@dataclass(frozen=True, slots=True)
class Chunk:
    """One request with several query tokens: tokens [start, end) of the batch.

    block_ids is None when the chunk begins at position 0, where all keys are fresh; mask is
    None when plain causal masking is right.
    """

    start: int
    end: int
    seq_len: int
    block_ids: torch.Tensor | None
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class TorchPlan:
    """slot_mapping: of the rows that are written as they come, which are all of them where
    `written_rows` is None; a request with a budget finds its slots itself."""

    slot_mapping: torch.Tensor
    written_rows: torch.Tensor | None
    chunks: list[Chunk]
    decode_groups: list[DecodeGroup]
    budgeted: list[BudgetedRequest]


class TorchAttentionBackend(AttentionBackend[TorchPlan]):
    """Attention over the paged cache with torch's scaled_dot_product_attention."""

    def __init__(
        self, shape: AttentionShape, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.shape = shape
        self.block_size = block_size
        self.dtype = dtype
        self.device = device
        row_bytes = 2 * shape.num_kv_heads * shape.head_dim * dtype.itemsize
        self._max_tile_tokens = max(block_size, TILE_BYTES // row_bytes)
        self._tile = torch.empty(0, dtype=dtype, device=device)

    def plan(self, metadata: AttentionMetadata) -> TorchPlan:
        has_budget = np.zeros(len(metadata.seq_lens), dtype=bool)
        if metadata.kv_budgets is not None:
            has_budget = metadata.kv_budgets > 0
        decodes = np.flatnonzero((metadata.query_lens == 1) & ~has_budget)
        chunks = np.flatnonzero((metadata.query_lens > 1) & ~has_budget)
        groups = [
            self._plan_group(metadata, members, in_order=len(members) == metadata.num_tokens)
            for members in self._split_decodes(metadata.seq_lens, decodes)
        ]
        slot_mapping, written_rows = metadata.slot_mapping, None
        if has_budget.any():
            rows = np.flatnonzero(~np.repeat(has_budget, metadata.query_lens))
            slot_mapping, written_rows = slot_mapping[rows], self._to_device(rows)
        return TorchPlan(
            self._to_device(slot_mapping),
            written_rows,
            [self._plan_chunk(metadata, int(index)) for index in chunks],
            groups,
            [self._plan_budgeted(metadata, int(index)) for index in np.flatnonzero(has_budget)],
        )

    def forward(
        self,
        query: torch.Tensor,
        key_value: torch.Tensor,
        cache: LayerKVCache,
        plan: TorchPlan,
        out: torch.Tensor,
    ) -> None:
        written = self._write(key_value, cache, plan)
        for group in plan.decode_groups:
            self._attend_group(query, written, cache, group, out)
        for chunk in plan.chunks:
            self._attend_chunk(query, written, cache, chunk, out)
        for request in plan.budgeted:
            attend_within_budget(query, key_value, cache, request, self.shape, out)

    def _write(self, key_value: torch.Tensor, cache: LayerKVCache, plan: TorchPlan) -> torch.Tensor:
        """Writes what the plan says; returns [num_tokens, 2, num_kv_heads, head_dim] as the cache
        will give it back."""
        codes, read = key_value, key_value
        if cache.scales is not None:
            codes, scales = quantize_rows(key_value, cache.storage.dtype)
            read = dequantize_rows(codes, scales).to(self.dtype)
            _put_rows(cache.scales, plan, scales)
        _put_rows(cache.storage, plan, codes)
        return read

    def _split_decodes(self, seq_lens: np.ndarray, decodes: np.ndarray) -> list[np.ndarray]:
        """Cuts the decodes, sorted by length, into groups whose padded keys fit the tile."""
        if len(decodes) == 0:
            return []
        padded = -(-seq_lens[decodes] // self.block_size) * self.block_size
        if len(decodes) * padded.max() <= self._max_tile_tokens:
            return [decodes]
        order = np.argsort(-padded, kind="stable")
        groups, begin = [], 0
        while begin < len(order):
            size = max(1, self._max_tile_tokens // int(padded[order[begin]]))
            groups.append(np.sort(decodes[order[begin : begin + size]]))
            begin += size
        return groups

    def _plan_group(
        self, metadata: AttentionMetadata, members: np.ndarray, in_order: bool
    ) -> DecodeGroup:
        seq_lens = metadata.seq_lens[members]
        num_blocks = -(-int(seq_lens.max()) // self.block_size)
        positions = np.arange(num_blocks * self.block_size)
        visible = positions < seq_lens[:, None]
        stale = self._to_device(np.flatnonzero(~visible))
        if self.shape.sliding_window is not None:
            visible &= positions >= (seq_lens - self.shape.sliding_window)[:, None]
        rows = None if in_order else self._to_device(metadata.query_start_loc[members])
        block_ids = self._to_device(metadata.block_tables[members, :num_blocks].reshape(-1))
        return DecodeGroup(rows, block_ids, self._bias(visible)[:, None, None, :], stale)

    def _plan_budgeted(self, metadata: AttentionMetadata, index: int) -> BudgetedRequest:
        assert metadata.kv_budgets is not None
        start, end = (int(row) for row in metadata.query_start_loc[index : index + 2])
        seq_len, budget = int(metadata.seq_lens[index]), int(metadata.kv_budgets[index])
        place = np.arange(min(seq_len, budget))
        blocks = metadata.block_tables[index, place // self.block_size]
        slots = self._to_device(blocks * self.block_size + place % self.block_size)
        return BudgetedRequest(start, end, seq_len - (end - start), budget, slots)

    def _plan_chunk(self, metadata: AttentionMetadata, index: int) -> Chunk:
        start = int(metadata.query_start_loc[index])
        end = int(metadata.query_start_loc[index + 1])
        seq_len = int(metadata.seq_lens[index])
        fresh = end - start == seq_len
        window = self.shape.sliding_window
        block_ids = None
        if not fresh:
            num_blocks = -(-seq_len // self.block_size)
            block_ids = self._to_device(metadata.block_tables[index, :num_blocks])
        mask = None
        if not fresh or (window is not None and window < seq_len):
            # Bottom-right alignment: the last query token sees the whole sequence.
            query_positions = np.arange(seq_len - (end - start), seq_len)[:, None]
            key_positions = np.arange(seq_len)
            visible = key_positions <= query_positions
            if window is not None:
                visible &= key_positions > query_positions - window
            mask = self._bias(visible)
        return Chunk(start, end, seq_len, block_ids, mask)

    def _attend_group(
        self,
        query: torch.Tensor,
        written: torch.Tensor,
        cache: LayerKVCache,
        group: DecodeGroup,
        out: torch.Tensor,
    ) -> None:
        shape = self.shape
        rows = query if group.rows is None else query.index_select(0, group.rows)
        tile = self._decode_tile(written, cache, group)
        keys, values = tile.view(len(rows), -1, *tile.shape[1:]).unbind(2)
        attended = F.scaled_dot_product_attention(
            rows.view(len(rows), shape.num_kv_heads, shape.group_size, shape.head_dim),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=group.mask,
            scale=shape.scale,
        ).view(len(rows), shape.num_heads, shape.head_dim)
        if group.rows is None:
            out.copy_(attended)
        else:
            out.index_copy_(0, group.rows, attended)

    def _attend_chunk(
        self,
        query: torch.Tensor,
        written: torch.Tensor,
        cache: LayerKVCache,
        chunk: Chunk,
        out: torch.Tensor,
    ) -> None:
        shape = self.shape
        keys, values = self._chunk_tile(written, cache, chunk).unbind(1)
        grouped = (-1, shape.num_kv_heads, shape.group_size, shape.head_dim)
        # KV heads as the batch and a stride of 0 over the group: GQA without repeating keys.
        attended = F.scaled_dot_product_attention(
            query[chunk.start : chunk.end].view(grouped).permute(1, 2, 0, 3),
            keys.transpose(0, 1).unsqueeze(1).expand(-1, shape.group_size, -1, -1),
            values.transpose(0, 1).unsqueeze(1).expand(-1, shape.group_size, -1, -1),
            attn_mask=chunk.mask,
            is_causal=chunk.mask is None,
            scale=shape.scale,
        )
        out[chunk.start : chunk.end].view(grouped).copy_(attended.permute(2, 0, 1, 3))

    def _decode_tile(
        self, written: torch.Tensor, cache: LayerKVCache, group: DecodeGroup
    ) -> torch.Tensor:
        """[n * blocks * block_size, 2, num_kv_heads, head_dim], zero where stale."""
        return self._gather(cache, group.block_ids).index_fill_(0, group.stale, 0)

    def _chunk_tile(self, written: torch.Tensor, cache: LayerKVCache, chunk: Chunk) -> torch.Tensor:
        """[keys, 2, num_kv_heads, head_dim], as the chunk's mask has them."""
        if chunk.block_ids is None:
            return written[chunk.start : chunk.end]
        return self._gather(cache, chunk.block_ids)[: chunk.seq_len]

    def _gather(self, cache: LayerKVCache, block_ids: torch.Tensor) -> torch.Tensor:
        """Copies whole blocks into the reused tile: [tokens, 2, num_kv_heads, head_dim]."""
        block_numel = cache.storage[0].numel()
        needed = len(block_ids) * block_numel
        if self._tile.numel() < needed:
            self._tile = torch.empty(needed, dtype=self.dtype, device=self.device)
        gathered = self._tile[:needed].view(len(block_ids), *cache.storage.shape[1:])
        if cache.scales is None:
            torch.index_select(cache.storage, 0, block_ids, out=gathered)
        else:
            self._gather_codes(cache, block_ids, gathered)
        return gathered.flatten(0, 1)

    def _gather_codes(
        self, cache: LayerKVCache, block_ids: torch.Tensor, gathered: torch.Tensor
    ) -> None:
        """Fills `gathered` [blocks, block_size, 2, num_kv_heads, head_dim] with numbers."""
        assert cache.scales is not None
        codes = cache.storage.view(torch.int8).index_select(0, block_ids)
        scales = cache.scales.index_select(0, block_ids)
        gathered.copy_(dequantize_rows(codes.view(cache.storage.dtype), scales))

    def _bias(self, visible: np.ndarray) -> torch.Tensor:
        mask = torch.zeros(visible.shape, dtype=self.dtype)
        mask.masked_fill_(torch.from_numpy(~visible), float("-inf"))
        return mask.to(self.device)

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64)).to(self.device)


def _put_rows(target: torch.Tensor, plan: TorchPlan, rows: torch.Tensor) -> None:
    """Writes rows [num_tokens, ...] into `target` [num_blocks, block_size, ...] at their slots."""
    if plan.written_rows is not None:
        rows = movable(rows).index_select(0, plan.written_rows)
    slots = movable(target).view(-1, target[0, 0].numel())
    slots.index_copy_(0, plan.slot_mapping, movable(rows).flatten(1))
