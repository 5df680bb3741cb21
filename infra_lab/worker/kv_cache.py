"""The KV cache's tensors: the memory behind the block ids that the scheduler hands out."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from infra_lab.attention.kv_cache import KVCacheFormat, LayerKVCache
from infra_lab.models.config import ModelConfig
from infra_lab.step import BlockCopy


def kv_cache_format(
    config: ModelConfig,
    block_size: int,
    dtype: torch.dtype,
    kv_cache_dtype: str = "auto",
    sparse: bool = False,
) -> KVCacheFormat:
    """How each layer of the model keeps a block."""
    heads, head_dim = config.num_key_value_heads, config.head_dim
    return KVCacheFormat(heads, head_dim, block_size, dtype, kv_cache_dtype, sparse)


def allocate_kv_cache(
    config: ModelConfig,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    pretouch: bool = False,
    kv_cache_dtype: str = "auto",
    sparse: bool = False,
) -> list[LayerKVCache]:
    """One LayerKVCache a layer, zeroed: padding and the null block must hold finite numbers.
    With `pretouch` all of it is in memory when this returns."""
    layout = kv_cache_format(config, block_size, dtype, kv_cache_dtype, sparse)
    caches = [layout.allocate(num_blocks, device) for _ in range(config.num_hidden_layers)]
    if pretouch:
        for tensor in (tensor for cache in caches for tensor in cache.tensors):
            tensor.zero_()
    return caches


def copy_blocks(caches: Sequence[LayerKVCache], copies: Sequence[BlockCopy]) -> None:
    """Copies whole blocks in every layer, as if all sources were read before any is written."""
    if not copies:
        return
    sources = [copy.source for copy in copies]
    targets = [copy.target for copy in copies]
    for cache in caches:
        cache.copy_blocks(sources, targets)
