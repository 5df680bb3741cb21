"""The kernel of paged attention: which rows a program has, and which keys they see.

A program holds BLOCK_M rows: some query tokens of one request, each with the query heads that
share one KV head, so that a key is read once for all of them (GQA) and the matrix instruction has
rows to fill it with.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

import triton
import triton.language as tl

from kernels.paged_attention_tiles import SMALLEST_NORMAL, attend

# Numbers that differ from step to step: compiling again for a 1 or a multiple of 16 gains nothing.
NOT_SPECIALIZED = ("num_requests", "num_tokens", "capacity", "window", "table_stride")


@triton.jit
def find_request(query_start_loc, num_requests, block, BLOCK_Q: tl.constexpr):
    """The request that query block number `block` belongs to.

    Request r is given the blocks from query_start_loc[r] // BLOCK_Q + r to that of r + 1, which
    are always enough for its tokens: the lengths need not be known where the grid is chosen.
    """
    low = 0
    high = num_requests
    while low < high:
        middle = (low + high) // 2
        first_block = tl.load(query_start_loc + middle).to(tl.int32) // BLOCK_Q + middle
        low, high = (
            tl.where(first_block <= block, middle + 1, low),
            tl.where(first_block <= block, high, middle),
        )
    return low - 1


@triton.jit(do_not_specialize=NOT_SPECIALIZED)
def paged_attention_kernel(
    query,
    key_cache,
    value_cache,
    key_scales,
    value_scales,
    block_tables,
    seq_lens,
    query_start_loc,
    out,
    partial_lse,
    query_token_stride,
    query_head_stride,
    key_block_stride,
    key_slot_stride,
    key_head_stride,
    value_block_stride,
    value_slot_stride,
    value_head_stride,
    key_scale_block_stride,
    key_scale_slot_stride,
    key_scale_head_stride,
    value_scale_block_stride,
    value_scale_slot_stride,
    value_scale_head_stride,
    table_stride,
    out_token_stride,
    out_head_stride,
    num_requests,
    num_tokens,
    capacity,
    window,
    scale,
    cap,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SEARCH: tl.constexpr,
    PEEL: tl.constexpr,
    SPLIT: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SCALES: tl.constexpr,
):
    """Program (block of query tokens, KV head, split of the keys).

    capacity: keys that a row of block_tables has room for. scale, cap: scores are in base 2, so
    that an exponential is one instruction; they are scale * q k, log2(e) being in `scale`, or
    with HAS_SOFTCAP cap * tanh(scale * q k), log2(e) being in `cap` and 1 / softcap in `scale`.
    SEARCH: a request may have several blocks of query tokens. PEEL: tiles that all rows see
    whole are done without masks. SPLIT: `out` is the partial results, fp32 [num_splits,
    num_tokens, num_heads, head_dim], and partial_lse is written.
    """
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    BLOCK_D: tl.constexpr = triton.next_power_of_2(HEAD_DIM) if HEAD_DIM > 16 else 16
    block = tl.program_id(0)
    kv_head = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)

    request = find_request(query_start_loc, num_requests, block, BLOCK_Q) if SEARCH else block
    start = tl.load(query_start_loc + request).to(tl.int32)
    query_len = tl.load(query_start_loc + request + 1).to(tl.int32) - start
    first = 0
    if SEARCH:
        first = (block - (start // BLOCK_Q + request)) * BLOCK_Q
    if first >= query_len:
        return
    row = tl.arange(0, BLOCK_M)
    token = first + row // GROUP
    head = kv_head * GROUP + row % GROUP
    in_block = (row < BLOCK_Q * GROUP) & (token < query_len)

    # Keys that rows see: each those up to its own position, from its window's first key on.
    seq_len = tl.load(seq_lens + request).to(tl.int32)
    position = seq_len - query_len + token
    first_position = seq_len - query_len + first
    last_position = seq_len - query_len + tl.minimum(first + BLOCK_Q, query_len) - 1
    num_keys = tl.maximum(tl.minimum(last_position + 1, capacity), 0)
    begin = 0
    if HAS_WINDOW:
        begin = tl.maximum(first_position - window + 1, 0) // BLOCK_N * BLOCK_N
    end = tl.cdiv(num_keys, BLOCK_N) * BLOCK_N
    if SPLIT:
        tiles = tl.maximum(end - begin, 0) // BLOCK_N
        length = tl.cdiv(tiles, tl.num_programs(2)) * BLOCK_N
        begin += split * length
        end = tl.minimum(begin + length, end)
    full_begin = begin
    if HAS_WINDOW:
        window_end = tl.maximum(last_position - window + 1, 0)
        full_begin = tl.cdiv(window_end, BLOCK_N) * BLOCK_N
    full_end = tl.maximum(tl.minimum(first_position + 1, num_keys), 0) // BLOCK_N * BLOCK_N
    # Peeled, the parts are: the window's edge, what all rows see, the causal edge.
    bounds = (begin, end, end, end)
    if PEEL:
        full_begin = tl.minimum(tl.maximum(full_begin, begin), end)
        full_end = tl.minimum(tl.maximum(full_end, full_begin), end)
        bounds = (begin, full_begin, full_end, end)

    d = tl.arange(0, BLOCK_D)
    in_head = d < HEAD_DIM
    place = (start + token).to(tl.int64)
    q = tl.load(
        query + (place * query_token_stride + head * query_head_stride)[:, None] + d[None, :],
        mask=in_block[:, None] & in_head[None, :],
        other=0.0,
    )
    row_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    row_sum = tl.zeros((BLOCK_M,), tl.float32)
    accumulator = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    state = (row_max, row_sum, accumulator, SMALLEST_NORMAL)
    for part in tl.static_range(0 if HAS_WINDOW or not PEEL else 1, 3 if PEEL else 1):
        state = attend(
            state,
            q,
            position,
            bounds[part],
            bounds[part + 1],
            num_keys,
            block_tables + request.to(tl.int64) * table_stride,
            key_cache + kv_head * key_head_stride,
            value_cache + kv_head * value_head_stride,
            key_scales + kv_head * key_scale_head_stride,
            value_scales + kv_head * value_scale_head_stride,
            (key_block_stride, key_slot_stride),
            (value_block_stride, value_slot_stride),
            (key_scale_block_stride, key_scale_slot_stride),
            (value_scale_block_stride, value_scale_slot_stride),
            window,
            scale,
            cap,
            BLOCK_SIZE,
            HEAD_DIM,
            BLOCK_N,
            HAS_WINDOW,
            HAS_SOFTCAP,
            HAS_SCALES,
            MASKED=part != 1 or not PEEL,
        )
    row_max, row_sum, accumulator, unit = state

    saw_none = row_sum == 0.0
    result = accumulator * (unit if HAS_SCALES else 1.0)
    result = result / tl.where(saw_none, 1.0, row_sum)[:, None]
    if SPLIT:
        lse = tl.where(saw_none, float("-inf"), row_max + tl.math.log2(row_sum))
        place += split.to(tl.int64) * num_tokens
        num_heads = tl.num_programs(1) * GROUP
        tl.store(partial_lse + place * num_heads + head, lse, mask=in_block)
        in_block &= ~saw_none  # what is nothing is not merged
    place = place * out_token_stride + head * out_head_stride
    tl.store(
        out + place[:, None] + d[None, :],
        result.to(out.dtype.element_ty),
        mask=in_block[:, None] & in_head[None, :],
    )
