"""What paged attention asks of its arguments before a kernel sees them.

Only what the host knows without waiting for the GPU: shapes, types, strides, and plain numbers.
"""

from __future__ import annotations

import math

import torch

from kernels.checks import (
    FLOATS,
    MAX_GRID_Y,
    require_adjacent,
    require_dimensions,
    require_dtype,
    require_runnable,
    require_shape,
)
from kernels.errors import KernelInputError
from kernels.split_kv import MAX_SPLITS

NAME = "paged_attention"
CODES = (torch.int8, torch.float8_e4m3fn)
INDICES = (torch.int32, torch.int64)
MAX_HEAD_DIM = 256
MAX_GROUP = 128


def require_tensors(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Raises KernelInputError unless these fit each other."""
    require_dimensions(NAME, "query", query, "[num_tokens, num_heads, head_dim]")
    caches = "[num_blocks, block_size, num_kv_heads, head_dim]"
    require_dimensions(NAME, "key_cache", key_cache, caches)
    require_dimensions(NAME, "block_tables", block_tables, "[num_requests, max_blocks]")
    require_dtype(NAME, "query", query, FLOATS)
    require_dtype(NAME, "key_cache", key_cache, (query.dtype, *CODES))
    num_heads, head_dim = query.shape[1:]
    block_size, num_kv_heads, key_dim = key_cache.shape[1:]
    if not 1 <= head_dim <= MAX_HEAD_DIM:
        raise KernelInputError(f"{NAME}: head_dim is {head_dim}, wanted 1 to {MAX_HEAD_DIM}")
    if key_dim != head_dim:
        raise KernelInputError(
            f"{NAME}: query has head_dim {head_dim}, key_cache {key_dim}: wanted one"
        )
    if block_size < 1:
        raise KernelInputError(f"{NAME}: key_cache has blocks of {block_size} tokens")
    if num_kv_heads < 1 or num_heads % num_kv_heads or num_heads > MAX_GROUP * num_kv_heads:
        raise KernelInputError(
            f"{NAME}: {num_heads} query heads and {num_kv_heads} KV heads, wanted a multiple, "
            f"up to {MAX_GROUP}"
        )
    if num_kv_heads > MAX_GRID_Y:
        raise KernelInputError(f"{NAME}: {num_kv_heads} KV heads, wanted at most {MAX_GRID_Y}")
    require_shape(NAME, "value_cache", value_cache, key_cache.shape)
    require_dtype(NAME, "value_cache", value_cache, (key_cache.dtype,))
    num_requests = block_tables.shape[0]
    require_shape(NAME, "seq_lens", seq_lens, (num_requests,))
    require_shape(NAME, "query_start_loc", query_start_loc, (num_requests + 1,))
    require_shape(NAME, "out", out, query.shape)
    require_dtype(NAME, "out", out, (query.dtype,))
    heads = {"query": query, "key_cache": key_cache, "value_cache": value_cache, "out": out}
    for name, tensor in heads.items():
        require_adjacent(NAME, name, tensor, "head")
    for name in ("key_cache", "value_cache"):
        _require_narrow_blocks(name, heads[name])
    indices = {
        "block_tables": block_tables,
        "seq_lens": seq_lens,
        "query_start_loc": query_start_loc,
    }
    for name, tensor in indices.items():
        require_dtype(NAME, name, tensor, INDICES)
        require_adjacent(NAME, name, tensor)
    require_runnable(NAME, **heads, **indices)


def require_scales(
    key_cache: torch.Tensor, key_scales: torch.Tensor | None, value_scales: torch.Tensor | None
) -> None:
    """Raises KernelInputError unless both are there and fit, or none is and none is needed."""
    scales = {"key_scales": key_scales, "value_scales": value_scales}
    given = {name: tensor for name, tensor in scales.items() if tensor is not None}
    if len(given) == 1:
        raise KernelInputError(f"{NAME}: {next(iter(given))} alone: give both scales or none")
    if given and key_cache.dtype not in CODES:
        raise KernelInputError(
            f"{NAME}: scales are for int8 and float8_e4m3fn caches, this one is {key_cache.dtype}"
        )
    if not given and key_cache.dtype == torch.int8:
        raise KernelInputError(f"{NAME}: an int8 cache needs key_scales and value_scales")
    for name, tensor in given.items():
        require_dtype(NAME, name, tensor, (torch.float32,))
        require_shape(NAME, name, tensor, key_cache.shape[:3])
        _require_narrow_blocks(name, tensor)
        require_runnable(NAME, **{name: tensor, "key_cache": key_cache})


def require_numbers(
    num_tokens: int,
    num_requests: int,
    capacity: int,
    max_query_len: int,
    max_seq_len: int | None,
    window: int | None,
    num_splits: int | None,
    scale: float,
    softcap: float,
) -> None:
    """Raises KernelInputError for numbers that cannot be meant. capacity: keys of a table row."""
    if not math.isfinite(scale):
        raise KernelInputError(f"{NAME}: scale is {scale}, wanted a finite number")
    if not 0.0 <= softcap < math.inf:
        raise KernelInputError(f"{NAME}: softcap is {softcap}, wanted a number above 0, or 0")
    if max_query_len < 0 or num_tokens > num_requests * max_query_len:
        raise KernelInputError(
            f"{NAME}: query has {num_tokens} tokens, {num_requests} requests of at most "
            f"max_query_len={max_query_len} have fewer"
        )
    if max_seq_len is not None and not 0 <= max_seq_len <= capacity:
        raise KernelInputError(
            f"{NAME}: max_seq_len is {max_seq_len}, a row of block_tables has room for {capacity} "
            "tokens: give every request a block for each block_size of its tokens"
        )
    if window is not None and window < 1:
        raise KernelInputError(f"{NAME}: window is {window}, wanted None or at least 1, the token")
    if num_splits is not None and not 1 <= num_splits <= MAX_SPLITS:
        raise KernelInputError(
            f"{NAME}: num_splits is {num_splits}, wanted None or 1 to {MAX_SPLITS}"
        )


def _require_narrow_blocks(name: str, tensor: torch.Tensor) -> None:
    """Offsets within a block are of 32 bits, which leaves registers for more programs."""
    furthest = (tensor.shape[1] - 1) * tensor.stride(1)
    if furthest >= 2**31:
        raise KernelInputError(
            f"{NAME}: the tokens of a block of {name} lie up to {furthest} elements apart, wanted "
            "less than 2^31: lay blocks end to end"
        )
