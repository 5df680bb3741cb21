"""cos and sin of every position, made once: the table that the rotary kernels read.

Why not from positions in the kernel? cos of an angle of 10^5 needs an exact reduction by 2 pi,
which costs more than the load of a row that all heads of a token share, takes stack memory in
NVIDIA's library, and ends in other last bits on other GPUs.
"""

from __future__ import annotations

import torch

from kernels.checks import require_adjacent, require_dtype, require_shape
from kernels.errors import KernelInputError

MAX_HEAD_DIM = 1024
MAX_POSITIONS = 2**24  # beyond, fp32 does not have every position


def rotary_table(inv_freq: torch.Tensor, max_positions: int) -> torch.Tensor:
    """cos, then sin, of every position's angles: fp32 [max_positions, rotary_dim].

    inv_freq: [rotary_dim / 2], radians per position, rounded to fp32. An angle is the product of
    position and inv_freq rounded to fp32, which is what models are trained with: at position
    2^20 both roundings make up to 1/16 radian, and a table with exact angles would be the one
    that errs. cos and sin of the angle are right to the last place. Source: Su et al. 2021, eq. 34.
    Raises KernelInputError for more than 2^24 positions.
    """
    if inv_freq.dim() != 1 or not inv_freq.is_floating_point():
        raise KernelInputError(
            f"rotary_table: inv_freq is {inv_freq.dtype} of shape {tuple(inv_freq.shape)}, wanted "
            "floats [rotary_dim / 2]"
        )
    if not 0 <= max_positions <= MAX_POSITIONS:
        raise KernelInputError(
            f"rotary_table: {max_positions} positions, wanted 0 to {MAX_POSITIONS}"
        )
    # On the CPU, whose results do not depend on the GPU.
    angles = torch.outer(torch.arange(max_positions).float(), inv_freq.float().cpu())
    return torch.cat((angles.cos(), angles.sin()), dim=-1).to(inv_freq.device)


def require_rotary(
    kernel: str, num_tokens: int, head_dim: int, positions: torch.Tensor, table: torch.Tensor
) -> int:
    """rotary_dim, if positions and table fit; else raises KernelInputError."""
    require_dtype(kernel, "positions", positions, (torch.int32, torch.int64))
    require_shape(kernel, "positions", positions, (num_tokens,))
    require_adjacent(kernel, "positions", positions)
    require_dtype(kernel, "table", table, (torch.float32,))
    if table.dim() != 2 or not table.is_contiguous():
        raise KernelInputError(
            f"{kernel}: table has shape {tuple(table.shape)} and strides {table.stride()}, wanted "
            "[max_positions, rotary_dim], contiguous: make it with rotary_table"
        )
    rotary_dim = table.shape[1]
    if rotary_dim % 2 or not 2 <= rotary_dim <= head_dim <= MAX_HEAD_DIM:
        raise KernelInputError(
            f"{kernel}: rotary_dim is {rotary_dim} and head_dim {head_dim}, wanted an even "
            f"rotary_dim from 2 to head_dim, and head_dim up to {MAX_HEAD_DIM}"
        )
    return rotary_dim
