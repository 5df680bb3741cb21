"""The KV cache's tensors: the memory behind the block ids that the scheduler hands out."""

from __future__ import annotations

import math

import numpy as np
import torch

from infra_lab.attention.backend import LayerKVCache
from infra_lab.models.config import ModelConfig


def allocate_kv_cache(
    config: ModelConfig,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> list[LayerKVCache]:
    """One LayerKVCache a layer, zeroed: padding and the null block must hold finite numbers."""
    shape = (num_blocks, block_size, 2, config.num_key_value_heads, config.head_dim)
    return [LayerKVCache(zeros(shape, dtype, device)) for _ in range(config.num_hidden_layers)]


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros that take memory only where they are written, on a CPU.

    torch.zeros writes every page. NumPy asks the system for zeroed pages (calloc), and those
    become resident at the first write: a large pool costs what its used blocks cost.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    raw = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).view(shape)
