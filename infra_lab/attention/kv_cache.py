"""What one layer's KV cache is made of, in every format: how small can a cached token be?

Each tensor's first dimension is the block, so whoever copies a block (copy-on-write, swap) copies
row i of every tensor and need not know the format. Formats differ in how keys and values become
numbers of fewer bits: see `kv_quantization`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch

from infra_lab.config import TOKENS_PER_KEY_GROUP
from infra_lab.native import memory

CODE_DTYPES = {
    "int8_per_token_head": torch.int8,
    "fp8_per_token_head": torch.float8_e4m3fn,
    "int8_per_channel_keys": torch.int8,
}


@dataclass(frozen=True, slots=True)
class LayerKVCache:
    """One layer's keys and values, side by side for each token, and what reading them takes.

    A token's keys and values are one row, so a step writes them, and a gather reads them, in
    one piece.

    Attributes:
        storage: [num_blocks, block_size, 2, num_kv_heads, head_dim], contiguous, keys first: of
            the model's dtype, or codes of one byte.
        scales: fp32 [num_blocks, block_size, 2, num_kv_heads]: code * scale is the number. With
            `channel_ranges` [num_blocks, block_size, 1, num_kv_heads], of the values only.
        channel_ranges: fp32 [num_blocks, groups, 2, num_kv_heads, head_dim]: centre and scale of
            every channel of a complete group of keys: centre + code * scale is the number.
        recent_keys: [num_blocks, TOKENS_PER_KEY_GROUP, num_kv_heads, head_dim] of the model's
            dtype: the keys of the block's group that is not complete yet, as they were computed.
        attention_received: fp32 [num_blocks, block_size, num_kv_heads], what all queries so far
            have given to the token of each slot and head; see `heavy_hitters`.
        kept_positions: int32 of the same shape, that token's position.
    """

    storage: torch.Tensor
    scales: torch.Tensor | None = None
    channel_ranges: torch.Tensor | None = None
    recent_keys: torch.Tensor | None = None
    attention_received: torch.Tensor | None = None
    kept_positions: torch.Tensor | None = None

    @property
    def key(self) -> torch.Tensor:
        """[num_blocks, block_size, num_kv_heads, head_dim], a view."""
        return self.storage[:, :, 0]

    @property
    def value(self) -> torch.Tensor:
        """[num_blocks, block_size, num_kv_heads, head_dim], a view."""
        return self.storage[:, :, 1]

    @property
    def key_scales(self) -> torch.Tensor | None:
        """fp32 [num_blocks, block_size, num_kv_heads], a view; None where keys have none."""
        return None if self.scales is None or self.scales.shape[2] == 1 else self.scales[:, :, 0]

    @property
    def value_scales(self) -> torch.Tensor | None:
        """fp32 [num_blocks, block_size, num_kv_heads], a view; None where values have none."""
        return None if self.scales is None else self.scales[:, :, -1]

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All there is of the layer: row i of each of them is block i."""
        held = (getattr(self, field.name) for field in fields(self))
        return tuple(tensor for tensor in held if tensor is not None)

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Block targets[i] becomes what block sources[i] was before this call."""
        source_ids = torch.tensor(sources, device=self.storage.device)
        target_ids = torch.tensor(targets, device=self.storage.device)
        for tensor in map(movable, self.tensors):
            tensor.index_copy_(0, target_ids, tensor.index_select(0, source_ids))


@dataclass(frozen=True, slots=True)
class KVCacheFormat:
    """How one layer keeps a block of tokens: the shape and type of each tensor of LayerKVCache.

    Attributes:
        dtype: the model's.
        kv_cache_dtype: as in EngineConfig.
        sparse: whether requests may have a budget, for which each slot keeps its score.
    """

    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    kv_cache_dtype: str = "auto"
    sparse: bool = False

    def block_tensors(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape of one block, and element type, by field of LayerKVCache."""
        size, heads, dim = self.block_size, self.num_kv_heads, self.head_dim
        keys_and_values = (size, 2, heads, dim)
        stored = CODE_DTYPES.get(self.kv_cache_dtype, self.dtype)
        tensors: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        tensors["storage"] = (keys_and_values, stored)
        if self.kv_cache_dtype == "int8_per_channel_keys":
            groups = size // TOKENS_PER_KEY_GROUP
            tensors["scales"] = ((size, 1, heads), torch.float32)
            tensors["channel_ranges"] = ((groups, 2, heads, dim), torch.float32)
            tensors["recent_keys"] = ((TOKENS_PER_KEY_GROUP, heads, dim), self.dtype)
        elif self.kv_cache_dtype != "auto":
            tensors["scales"] = ((size, 2, heads), torch.float32)
        if self.sparse:
            tensors["attention_received"] = ((size, heads), torch.float32)
            tensors["kept_positions"] = ((size, heads), torch.int32)
        return tensors

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in one layer, scales and all."""
        tensors = self.block_tensors().values()
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in tensors)

    def allocate(self, num_blocks: int, device: torch.device) -> LayerKVCache:
        """One layer's cache, zeroed: padding and the null block must hold finite numbers."""
        tensors = {
            name: _zeros((num_blocks, *shape), dtype, device)
            for name, (shape, dtype) in self.block_tensors().items()
        }
        return LayerKVCache(**tensors)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type == "cpu":
        return memory.zeros(shape, dtype)
    return torch.zeros(shape, dtype=dtype, device=device)


def movable(tensor: torch.Tensor) -> torch.Tensor:
    """e4m3 as int8, on the same memory: not every operation that moves elements knows e4m3."""
    return tensor.view(torch.int8) if tensor.dtype == torch.float8_e4m3fn else tensor
