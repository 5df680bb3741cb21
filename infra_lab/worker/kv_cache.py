"""The KV cache's tensors: the memory behind the block ids that the scheduler hands out."""

from __future__ import annotations

import contextlib
import math
import mmap

import numpy as np
import torch

from infra_lab.attention.backend import LayerKVCache
from infra_lab.models.config import ModelConfig

HUGE_PAGE = 2 << 20


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
    caches = [LayerKVCache(zeros(shape, dtype, device)) for _ in range(config.num_hidden_layers)]
    if pretouch:
        for cache in caches:
            cache.storage.zero_()
    return caches


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros that take memory only where they are written, on a CPU.

    torch.zeros writes every page. Anonymous memory is zero already and becomes resident at the
    first write, so that a large pool costs what its used blocks cost. Huge pages, where the
    system has them, make first writes cheaper: page faults of 4 KiB were seen to take two
    thirds of the time of a prompt's attention.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    raw = np.frombuffer(_anonymous_memory(size + HUGE_PAGE), dtype=np.uint8)
    aligned = raw[-raw.ctypes.data % HUGE_PAGE :][:size]
    return torch.from_numpy(aligned).view(dtype).view(shape)


def _anonymous_memory(size: int) -> mmap.mmap:
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return mmap.mmap(-1, size)
    region = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a Linux built without huge pages
        region.madvise(mmap.MADV_HUGEPAGE)
    return region
