"""Attention over a paged KV cache, for a ragged batch of prefill chunks and decodes.

How does PagedAttention find its keys, and what bounds it? Key number n of a request is in slot
n % block_size of block block_tables[request, n // block_size] (Kwon et al. 2023, "Efficient Memory
Management for Large Language Model Serving with PagedAttention", eq. 4). A decode reads each key
and value once, 2 * head_dim * bytes a token and KV head, and does 4 * head_dim FLOPs with them for
each query head of the group: 1 FLOP a byte and head in bf16, so it is bound by memory until the
group is in the hundreds, and an int8 or e4m3 cache nearly halves its time. A chunk of q tokens
does q times the work on the same bytes: from some hundred tokens on it is bound by the matrix
units.

Decodes and chunks go in one launch. A decode that shares it gets tiles with more rows than it
has, but stays bound by memory, and a second launch would cost it more than that.
"""

from __future__ import annotations

import math

import torch
import triton

from kernels.devices import device_of
from kernels.e4m3 import E4M3_ARCHITECTURES
from kernels.paged_attention_inputs import require_numbers, require_scales, require_tensors
from kernels.paged_attention_kernel import paged_attention_kernel
from kernels.paged_attention_launch import choose_launch
from kernels.split_kv import choose_num_splits, merge_splits

LOG2_E = math.log2(math.e)  # in fp64: a product of two rounded factors would be off by more
NO_WINDOW = 2**30  # longer than any sequence


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    max_query_len: int,
    *,
    scale: float,
    window: int | None = None,
    softcap: float = 0.0,
    key_scales: torch.Tensor | None = None,
    value_scales: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    num_splits: int | None = None,
    max_seq_len: int | None = None,
) -> torch.Tensor:
    """Attends each query token to the cached tokens of its request, up to and with itself.

    query: [num_tokens, num_heads, head_dim], fp16, bf16 or fp32, head_dim 1 to 256; the tokens of
    all requests end to end. key_cache, value_cache: [num_blocks, block_size, num_kv_heads,
    head_dim] of the query's dtype, int8 or float8_e4m3fn; num_kv_heads divides num_heads.
    Any strides, but the elements of a head are adjacent. block_tables: int32 or int64
    [num_requests, max_blocks]. seq_lens: int32 or int64 [num_requests], all tokens of a request,
    this step's included. query_start_loc: int32 or int64 [num_requests + 1], rising from 0 to
    num_tokens. max_query_len: of the longest request, or more.

    Token i of a request stands at position seq_len - query_len + i and sees the keys at 0 to that
    position, or the last `window` of them, itself included. Where that is no key, it gets 0.
    scale: of any sign. softcap: above 0, scores become softcap * tanh(scale * q k / softcap); 0
    leaves them. key_scales, value_scales: fp32 [num_blocks, block_size, num_kv_heads], not
    negative: what a token's codes are multiplied with. int8 needs them, e4m3 may have them.

    num_splits: into how many parts the keys of a request are split (see `split_kv`); chosen by
    the size of the batch unless given. For one number the result of a request does not depend on
    its neighbours. max_seq_len: of the longest request, or more, where the host knows it:
    the choice is better for it, and it is checked against the block table.

    Returns `out`, or a new tensor like query. Raises KernelInputError for what does not fit. Values
    in GPU tensors are not looked at, as that would make the host wait: keys beyond the block
    table's width are taken as absent, and entries of block_tables beyond a request's length are
    not followed, but entries within it and query_start_loc are trusted.
    """
    if out is None:
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    require_tensors(query, key_cache, value_cache, block_tables, seq_lens, query_start_loc, out)
    require_scales(key_cache, key_scales, value_scales)
    num_requests, max_blocks = block_tables.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    num_tokens, num_heads, head_dim = query.shape
    capacity = max_blocks * block_size
    require_numbers(
        num_tokens,
        num_requests,
        capacity,
        max_query_len,
        max_seq_len,
        window,
        num_splits,
        scale,
        softcap,
    )
    if out.numel() == 0:
        return out

    device = device_of(query)
    group = num_heads // num_kv_heads
    launch = choose_launch(
        group, head_dim, query.dtype, key_cache.dtype, max_query_len, device.arch
    )
    block_q = launch.block_m // group
    search = max_query_len > block_q
    if num_splits is None:
        longest = capacity if max_seq_len is None else max_seq_len
        longest = longest if window is None else min(longest, window + max_query_len)
        num_splits = choose_num_splits(
            num_kv_heads * max(num_requests, triton.cdiv(num_tokens, block_q)),
            2 * device.processors,  # so many programs fit, at least of those of a decode
            triton.cdiv(longest, launch.block_n),
        )
    partial_out, partial_lse = out, out
    if num_splits > 1:
        shape = (num_splits, num_tokens, num_heads)
        partial_out = query.new_empty((*shape, head_dim), dtype=torch.float32)
        partial_lse = query.new_empty(shape, dtype=torch.float32)
    if key_cache.dtype == torch.float8_e4m3fn and device.arch not in E4M3_ARCHITECTURES:
        key_cache, value_cache = key_cache.view(torch.uint8), value_cache.view(torch.uint8)
    # Without scales the caches stand in for them and are left alone.
    has_scales = key_scales is not None
    key_scales = key_cache if key_scales is None else key_scales
    value_scales = value_cache if value_scales is None else value_scales
    query_blocks = num_tokens // block_q + num_requests if search else num_requests
    paged_attention_kernel[(query_blocks, num_kv_heads, num_splits)](
        query,
        key_cache,
        value_cache,
        key_scales,
        value_scales,
        block_tables,
        seq_lens,
        query_start_loc,
        partial_out,
        partial_lse,
        *query.stride()[:2],
        *key_cache.stride()[:3],
        *value_cache.stride()[:3],
        *key_scales.stride()[:3],
        *value_scales.stride()[:3],
        block_tables.stride(0),
        *partial_out.stride()[-3:-1],
        num_requests,
        num_tokens,
        min(capacity, NO_WINDOW),
        min(NO_WINDOW, NO_WINDOW if window is None else window),
        scale / softcap if softcap else scale * LOG2_E,
        softcap * LOG2_E,
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        BLOCK_M=launch.block_m,
        BLOCK_N=launch.block_n,
        SEARCH=search,
        PEEL=launch.peel,
        SPLIT=num_splits > 1,
        HAS_WINDOW=window is not None,
        HAS_SOFTCAP=softcap != 0,
        HAS_SCALES=has_scales,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    if num_splits > 1:
        merge_splits(partial_out, partial_lse, out)
    return out


def paged_attention_reference(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float = 0.0,
    key_scales: torch.Tensor | None = None,
    value_scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """The same in plain torch, one request after the other, in the dtype of query.

    Keys are gathered through the block table token by token and given in full to a softmax.
    """
    out = torch.zeros_like(query)
    keys = _dequantized(key_cache, key_scales, query.dtype)
    values = _dequantized(value_cache, value_scales, query.dtype)
    block_size, num_kv_heads, head_dim = key_cache.shape[1:]
    group = query.shape[1] // num_kv_heads
    for request, seq_len in enumerate(seq_lens.tolist()):
        start, end = query_start_loc[request : request + 2].tolist()
        key = torch.arange(seq_len, device=query.device)
        place = block_tables[request, key // block_size].long(), key % block_size
        position = torch.arange(seq_len - (end - start), seq_len, device=query.device)[:, None]
        seen = key <= position
        if window is not None:
            seen &= key > position - window
        grouped = query[start:end].reshape(end - start, num_kv_heads, group, head_dim)
        scores = torch.einsum("qhgd,khd->hgqk", grouped, keys[place]) * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        weights = weights.masked_fill(~seen, 0.0)  # a row that sees nothing is NaN until here
        out[start:end] = torch.einsum("hgqk,khd->qhgd", weights, values[place]).flatten(1, 2)
    return out


def _dequantized(
    cache: torch.Tensor, scales: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    if scales is None:
        return cache.to(dtype)
    return (cache.double() * scales[..., None].double()).to(dtype)
