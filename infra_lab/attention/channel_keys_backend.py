"""Keys quantized per channel, in groups of tokens, with the newest keys as they are (KIVI).

Liu et al. 2024, "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache", algorithm 1, with
one group as the residual. Groups are aligned to position 0: a query at position p sees the keys of
all groups before its own as codes, and those of its own group, itself included, as they were
computed; values are codes, with a scale for each token and head. So what a token's output is
depends on the tokens before it alone: not on how prompts are cut into steps, nor on whether a
prefix was found in the cache, whose full blocks hold whole groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from infra_lab.attention.backend import AttentionMetadata, LayerKVCache
from infra_lab.attention.kv_quantization import (
    dequantize_channels,
    dequantize_rows,
    quantize_channels,
    quantize_rows,
)
from infra_lab.attention.torch_backend import (
    Chunk,
    DecodeGroup,
    TorchAttentionBackend,
    TorchPlan,
)
from infra_lab.config import TOKENS_PER_KEY_GROUP as GROUP


@dataclass(frozen=True, slots=True)
class WholeKeys:
    """The keys that a step needs as they were computed: of each request those from the start of
    the group of its first new token on, end to end. Rows count these, places the flattened
    `recent_keys` of all blocks.

    old_rows, old_places: int64, those computed in earlier steps, and where they lie.
    new_rows: int64 [num_tokens], those of this step, in the order of the batch.
    complete: int64 [groups, GROUP], the rows of each group that this step completes.
    complete_groups: int64 [groups], block * groups of a block + group within the block.
    left_rows, left_places: int64, the new ones whose group stays incomplete, and where to leave
        them.
    """

    old_rows: torch.Tensor
    old_places: torch.Tensor
    new_rows: torch.Tensor
    complete: torch.Tensor
    complete_groups: torch.Tensor
    left_rows: torch.Tensor
    left_places: torch.Tensor


@dataclass(frozen=True, slots=True)
class ChannelDecodeGroup(DecodeGroup):
    """tile_places: int64, tokens of the tile whose keys are whole; whole_rows: int64, which."""

    tile_places: torch.Tensor
    whole_rows: torch.Tensor


@dataclass(frozen=True, slots=True)
class ChannelChunk(Chunk):
    """Its keys: those of positions [0, num_coded) from codes, then whole ones from `first` on,
    which are the rows from `whole_start` on. Some positions have both, and a query sees one."""

    num_coded: int
    first: int
    whole_start: int


@dataclass(frozen=True, slots=True)
class ChannelPlan(TorchPlan):
    whole: WholeKeys


class ChannelKeysBackend(TorchAttentionBackend):
    """Attention over a cache of format "int8_per_channel_keys"; GROUP divides block_size."""

    def plan(self, metadata: AttentionMetadata) -> ChannelPlan:
        firsts = (metadata.seq_lens - metadata.query_lens) // GROUP * GROUP
        starts = np.concatenate([[0], np.cumsum(metadata.seq_lens - firsts)])
        decodes = np.flatnonzero(metadata.query_lens == 1)
        chunks = np.flatnonzero(metadata.query_lens > 1)
        return ChannelPlan(
            self._to_device(metadata.slot_mapping),
            None,
            [
                self._channel_chunk(metadata, int(index), int(firsts[index]), int(starts[index]))
                for index in chunks
            ],
            [
                self._channel_group(metadata, members, firsts, starts)
                for members in self._split_decodes(metadata.seq_lens, decodes)
            ],
            [],
            self._plan_whole(metadata, firsts, starts),
        )

    def _plan_whole(
        self, metadata: AttentionMetadata, firsts: np.ndarray, starts: np.ndarray
    ) -> WholeKeys:
        owners = np.repeat(np.arange(len(firsts)), metadata.seq_lens - firsts)
        position = np.arange(starts[-1]) - starts[owners] + firsts[owners]
        block = metadata.block_tables[owners, position // self.block_size]
        place = block * GROUP + position % GROUP
        seq_len = metadata.seq_lens[owners]
        is_old = position < seq_len - metadata.query_lens[owners]
        opens = np.flatnonzero((position % GROUP == 0) & (position + GROUP <= seq_len))
        group = block * (self.block_size // GROUP) + position % self.block_size // GROUP
        is_left = (position >= seq_len // GROUP * GROUP) & ~is_old
        return WholeKeys(
            self._to_device(np.flatnonzero(is_old)),
            self._to_device(place[is_old]),
            self._to_device(np.flatnonzero(~is_old)),
            self._to_device(opens[:, None] + np.arange(GROUP)),
            self._to_device(group[opens]),
            self._to_device(np.flatnonzero(is_left)),
            self._to_device(place[is_left]),
        )

    def _channel_group(
        self,
        metadata: AttentionMetadata,
        members: np.ndarray,
        firsts: np.ndarray,
        starts: np.ndarray,
    ) -> ChannelDecodeGroup:
        base = self._plan_group(metadata, members, in_order=len(members) == metadata.num_tokens)
        counts = metadata.seq_lens[members] - firsts[members]
        owners = np.repeat(np.arange(len(members)), counts)
        nth = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        width = base.mask.shape[-1]
        return ChannelDecodeGroup(
            base.rows,
            base.block_ids,
            base.mask,
            base.stale,
            self._to_device(owners * width + firsts[members][owners] + nth),
            self._to_device(starts[members][owners] + nth),
        )

    def _channel_chunk(
        self, metadata: AttentionMetadata, index: int, first: int, whole_start: int
    ) -> ChannelChunk:
        start, end = (int(row) for row in metadata.query_start_loc[index : index + 2])
        seq_len = int(metadata.seq_lens[index])
        num_coded = (seq_len - 1) // GROUP * GROUP
        query = np.arange(seq_len - (end - start), seq_len)[:, None]
        own_group = query // GROUP * GROUP
        coded, whole = np.arange(num_coded), np.arange(first, seq_len)
        visible = np.concatenate(
            [coded < own_group, (whole >= own_group) & (whole <= query)], axis=1
        )
        if self.shape.sliding_window is not None:
            visible &= np.concatenate([coded, whole]) > query - self.shape.sliding_window
        num_blocks = -(-seq_len // self.block_size)
        block_ids = self._to_device(metadata.block_tables[index, :num_blocks])
        mask = self._bias(visible)
        return ChannelChunk(start, end, seq_len, block_ids, mask, num_coded, first, whole_start)

    def _write(self, key_value: torch.Tensor, cache: LayerKVCache, plan: TorchPlan) -> torch.Tensor:
        """Returns the step's whole keys, [rows, num_kv_heads, head_dim]."""
        assert isinstance(plan, ChannelPlan)
        assert cache.scales is not None
        assert cache.channel_ranges is not None
        assert cache.recent_keys is not None
        keys, values = key_value.unbind(1)
        rows, recent = plan.whole, cache.recent_keys.flatten(0, 1)
        whole = keys.new_empty(len(rows.old_rows) + len(rows.new_rows), *keys.shape[1:])
        whole[rows.old_rows] = recent[rows.old_places]
        whole[rows.new_rows] = keys
        codes, ranges = quantize_channels(whole[rows.complete])
        groups = cache.storage.view(-1, GROUP, *cache.storage.shape[2:])
        groups[rows.complete_groups, :, 0] = codes
        cache.channel_ranges.flatten(0, 1)[rows.complete_groups] = ranges
        recent[rows.left_places] = whole[rows.left_rows]
        codes, scales = quantize_rows(values, torch.int8)
        cache.storage.flatten(0, 1)[plan.slot_mapping, 1] = codes
        cache.scales.flatten(0, 1)[plan.slot_mapping, 0] = scales
        return whole

    def _decode_tile(
        self, written: torch.Tensor, cache: LayerKVCache, group: DecodeGroup
    ) -> torch.Tensor:
        assert isinstance(group, ChannelDecodeGroup)
        tile = super()._decode_tile(written, cache, group)
        tile[group.tile_places, 0] = written[group.whole_rows]
        return tile

    def _chunk_tile(self, written: torch.Tensor, cache: LayerKVCache, chunk: Chunk) -> torch.Tensor:
        assert isinstance(chunk, ChannelChunk)
        assert chunk.block_ids is not None
        tile = self._gather(cache, chunk.block_ids)[: chunk.seq_len]
        end = chunk.whole_start + chunk.seq_len - chunk.first
        whole = torch.stack((written[chunk.whole_start : end], tile[chunk.first :, 1]), 1)
        return torch.cat((tile[: chunk.num_coded], whole))

    def _gather_codes(
        self, cache: LayerKVCache, block_ids: torch.Tensor, gathered: torch.Tensor
    ) -> None:
        assert cache.scales is not None
        assert cache.channel_ranges is not None
        codes = cache.storage.index_select(0, block_ids)
        ranges = cache.channel_ranges.index_select(0, block_ids).flatten(0, 1)
        keys = codes[:, :, 0].reshape(-1, GROUP, *codes.shape[3:])
        gathered[:, :, 0] = dequantize_channels(keys, ranges).view_as(gathered[:, :, 0])
        scales = cache.scales[:, :, 0].index_select(0, block_ids)
        gathered[:, :, 1] = dequantize_rows(codes[:, :, 1], scales)
