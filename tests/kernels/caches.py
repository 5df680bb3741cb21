"""Paged caches for tests: filled with what must not change, in the layouts that engines have."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st

from tests.kernels.on_device import bits

CODES = [torch.int8, torch.float8_e4m3fn]
LAYOUTS = st.sampled_from(["side by side", "apart", "heads first"])


@dataclass
class Cache:
    """Keys, values and their scales, filled with what must not change."""

    storage: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scales: torch.Tensor
    scale_arguments: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def memory(self) -> tuple[torch.Tensor, torch.Tensor]:
        return bits(self.storage), bits(self.scales)


def cache_of(
    device: str,
    dtype: torch.dtype,
    blocks: int,
    block_size: int,
    heads: int,
    head_dim: int,
    layout: str = "side by side",
) -> Cache:
    """Every byte 0x55, so that one which is written where it should not be shows."""

    def filled(of: torch.dtype, *shape: int) -> torch.Tensor:
        size = torch.Size(shape).numel() * torch.empty(0, dtype=of).element_size()
        return torch.full((size,), 0x55, dtype=torch.uint8, device=device).view(of).view(shape)

    scales = filled(torch.float32, 2, blocks, block_size, heads)
    if layout == "side by side":
        storage = filled(dtype, blocks, block_size, 2, heads, head_dim)
        key, value = storage[:, :, 0], storage[:, :, 1]
    elif layout == "apart":
        storage = filled(dtype, 2, blocks, block_size, heads, head_dim)
        key, value = storage[0], storage[1]
    else:  # [num_blocks, heads, block_size], as some engines have it
        storage = filled(dtype, 2, blocks, heads, block_size, head_dim)
        key, value = storage[0].transpose(1, 2), storage[1].transpose(1, 2)
    cache = Cache(storage, key, value, scales)
    if dtype in CODES:
        cache.scale_arguments = {"key_scales": scales[0], "value_scales": scales[1]}
    return cache


def slots_of(tokens: int, capacity: int, seed: int, padding: bool) -> torch.Tensor:
    """Different slots in any order; some are padding."""
    generator = torch.Generator().manual_seed(seed)
    slots = torch.randperm(capacity, generator=generator)[:tokens]
    if padding:
        slots[torch.rand(tokens, generator=generator) < 0.3] = -1
    return slots
