"""How paged attention is launched: tiles, warps and stages, by what the gate found."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton


@dataclass(frozen=True)
class Launch:
    """block_m: rows (query tokens x heads of a group) of a program. block_n: keys of a tile.
    peel: whether tiles that all rows see whole are done without masks.
    programs_per_processor: how many are resident, by registers and shared memory.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    peel: bool
    programs_per_processor: int


def choose_launch(
    group: int,
    head_dim: int,
    query_dtype: torch.dtype,
    cache_dtype: torch.dtype,
    max_query_len: int,
    arch: str,
) -> Launch:
    rows = group * max_query_len
    if rows <= 16 or max_query_len == 1:
        return Launch(max(16, triton.next_power_of_2(group)), 64, 4, 3, False, 2)
    return Launch(max(64, triton.next_power_of_2(group)), 64, 8, 3, True, 1)
