"""The KV cache's tensors: the memory behind the block ids that the scheduler hands out."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from infra_lab.attention.backend import LayerKVCache
from infra_lab.models.config import ModelConfig
from infra_lab.native import memory
from infra_lab.step import BlockCopy


def allocate_kv_cache(
    config: ModelConfig,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    pretouch: bool = False,
) -> list[LayerKVCache]:
    """One LayerKVCache a layer, zeroed: padding and the null block must hold finite numbers.
    With `pretouch` all of it is in memory when this returns."""
    shape = (num_blocks, block_size, 2, config.num_key_value_heads, config.head_dim)
    layers = range(config.num_hidden_layers)
    if device.type == "cpu":
        caches = [LayerKVCache(memory.zeros(shape, dtype)) for _ in layers]
    else:
        caches = [LayerKVCache(torch.zeros(shape, dtype=dtype, device=device)) for _ in layers]
    if pretouch:
        for cache in caches:
            cache.storage.zero_()
    return caches


def copy_blocks(caches: Sequence[LayerKVCache], copies: Sequence[BlockCopy]) -> None:
    """Copies whole blocks in every layer, as if all sources were read before any is written."""
    if not copies:
        return
    device = caches[0].storage.device
    sources = torch.tensor([copy.source for copy in copies], device=device)
    targets = torch.tensor([copy.target for copy in copies], device=device)
    for cache in caches:
        cache.storage.index_copy_(0, targets, cache.storage.index_select(0, sources))
