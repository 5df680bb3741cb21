"""Flash attention's backward pass: the weights are made again from the LSE, tile by tile.

Dao 2023, "FlashAttention-2", algorithm 2, as two kernels: one adds up dk and dv over the queries
that see a tile of keys, one adds up dq over the keys that a tile of queries sees. The weights
are thus computed twice (7 products of a tile for 5), and in return nothing is added atomically:
the gradients are the same in every run. With P the weights and dS the scores' gradient:
dV = P^T dO, dP = dO V^T, dS = P * (dP - rowsum(O * dO)), dQ = scale dS K, dK = scale dS^T Q.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.devices import device_of
from kernels.flash_attention_problem import Problem, dtype_name, padded_head_dim
from kernels.flash_attention_tiles import (
    LOG2_E,
    is_visible,
    key_tiles,
    load_rows,
    place_of_program,
    query_tiles,
    sequence,
    store_rows,
    tanh,
)
from kernels.flash_attention_forward import Launch
from kernels.testing.cases import AotCase


DELTA_ROWS = 64


@triton.jit(do_not_specialize=["query_len", "tiles"])
def flash_delta_kernel(
    out, d_out, delta, query_starts,
    stride_ob, stride_ot, stride_oh, stride_gb, stride_gt, stride_gh, stride_lb, stride_lh,
    query_len, tiles, heads,
    ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, VARLEN: tl.constexpr,
):  # fmt: skip
    """delta = rowsum(out * d_out): what the weights' gradients have in common in a row."""
    tile, head, batch = place_of_program(tiles, heads, False)
    query_start, query_len = sequence(query_starts, batch, query_len, VARLEN)
    first = tile * ROWS
    if first >= query_len:
        return
    head = head.to(tl.int64)
    out_base = out + batch * stride_ob + query_start * stride_ot + head * stride_oh
    d_out_base = d_out + batch * stride_gb + query_start * stride_gt + head * stride_gh
    o = load_rows(out_base, first, stride_ot, query_len, ROWS, HEAD_DIM, PADDED_DIM, True)
    g = load_rows(d_out_base, first, stride_gt, query_len, ROWS, HEAD_DIM, PADDED_DIM, True)
    row = first + tl.arange(0, ROWS)
    sums = tl.sum(o.to(tl.float32) * g.to(tl.float32), 1)
    delta_base = delta + batch * stride_lb + head * stride_lh + query_start
    tl.store(delta_base + row, sums, mask=row < query_len)


@triton.jit
def load_lse(base, row, limit):
    """In units of log 2; infinite where a row sees nothing or is none: its weights are 0."""
    lse = tl.load(base + row, mask=row < limit, other=float("inf")) * LOG2_E
    return tl.where(lse == float("-inf"), float("inf"), lse)


@triton.jit
def weights_and_slope(
    product, lse, scale, softcap, visible, HAS_SOFTCAP: tl.constexpr, MASKED: tl.constexpr
):
    """The weights of a tile of q k products, and how a score grows with its scaled product."""
    if HAS_SOFTCAP:
        share = tanh(product * (scale / softcap))
        score = share * (softcap * LOG2_E)
        slope = 1.0 - share * share
    else:
        score = product * (scale * LOG2_E)
        slope = 1.0
    if MASKED:
        score = tl.where(visible, score, float("-inf"))
    return tl.exp2(score - lse), slope


@triton.jit
def _collect_dk_dv(
    dk, dv, k, v, q_base, d_out_base, lse_base, delta_base,
    begin, end, first, query_len, key_len, stride_qt, stride_gt, scale, softcap, window,
    ROWS: tl.constexpr, KEYS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """One pass over tiles of queries, the tiles of scores turned: [KEYS, ROWS]."""
    key = first + tl.arange(0, KEYS)[:, None]
    for start in tl.range(begin, end, ROWS):
        q = load_rows(q_base, start, stride_qt, query_len, ROWS, HEAD_DIM, PADDED_DIM, True)
        row = start + tl.arange(0, ROWS)
        lse = load_lse(lse_base, row, query_len)
        query = row[None, :]
        visible = is_visible(query, key, query_len, key_len, window, CAUSAL, HAS_WINDOW)
        product = tl.dot(k, tl.trans(q), input_precision="ieee")
        weight, slope = weights_and_slope(
            product, lse[None, :], scale, softcap, visible, HAS_SOFTCAP, MASKED
        )
        d_out = load_rows(
            d_out_base, start, stride_gt, query_len, ROWS, HEAD_DIM, PADDED_DIM, True
        )
        dv = tl.dot(weight.to(d_out.dtype), d_out, dv, input_precision="ieee")
        delta = tl.load(delta_base + row, mask=row < query_len, other=0.0)
        d_weight = tl.dot(v, tl.trans(d_out), input_precision="ieee")
        d_score = weight * (d_weight - delta[None, :]) * slope
        dk = tl.dot(d_score.to(q.dtype), q, dk, input_precision="ieee")
    return dk, dv


@triton.jit(do_not_specialize=["query_len", "key_len", "tiles", "window"])
def flash_dk_dv_kernel(
    q, k, v, d_out, dk, dv, lse, delta, query_starts, key_starts,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh,
    stride_vb, stride_vt, stride_vh, stride_gb, stride_gt, stride_gh,
    stride_dkb, stride_dkt, stride_dkh, stride_dvb, stride_dvt, stride_dvh, stride_lb, stride_lh,
    query_len, key_len, tiles, kv_heads, group, scale, softcap, window,
    ROWS: tl.constexpr, KEYS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    VARLEN: tl.constexpr,
):  # fmt: skip
    """One program does KEYS keys of one kv head, over all query heads of its group."""
    tile, kv_head, batch = place_of_program(tiles, kv_heads, False)
    query_start, query_len = sequence(query_starts, batch, query_len, VARLEN)
    key_start, key_len = sequence(key_starts, batch, key_len, VARLEN)
    first = tile * KEYS
    if first >= key_len:
        return
    head = kv_head.to(tl.int64)
    k_base = k + batch * stride_kb + key_start * stride_kt + head * stride_kh
    v_base = v + batch * stride_vb + key_start * stride_vt + head * stride_vh
    keys = load_rows(k_base, first, stride_kt, key_len, KEYS, HEAD_DIM, PADDED_DIM, True)
    values = load_rows(v_base, first, stride_vt, key_len, KEYS, HEAD_DIM, PADDED_DIM, True)
    begin, full_begin, full_end, end = query_tiles(
        first, query_len, key_len, window, ROWS, KEYS, CAUSAL, HAS_WINDOW
    )
    d_keys = tl.zeros((KEYS, PADDED_DIM), tl.float32)
    d_values = tl.zeros((KEYS, PADDED_DIM), tl.float32)
    for member in range(group):
        query_head = (kv_head * group + member).to(tl.int64)
        q_base = q + batch * stride_qb + query_start * stride_qt + query_head * stride_qh
        d_out_base = d_out + batch * stride_gb + query_start * stride_gt + query_head * stride_gh
        lse_base = lse + batch * stride_lb + query_head * stride_lh + query_start
        delta_base = delta + batch * stride_lb + query_head * stride_lh + query_start
        if CAUSAL:
            d_keys, d_values = _collect_dk_dv(
                d_keys, d_values, keys, values, q_base, d_out_base, lse_base, delta_base,
                begin, full_begin, first, query_len, key_len, stride_qt, stride_gt,
                scale, softcap, window,
                ROWS, KEYS, HEAD_DIM, PADDED_DIM, CAUSAL, HAS_WINDOW, HAS_SOFTCAP, True,
            )  # fmt: skip
        d_keys, d_values = _collect_dk_dv(
            d_keys, d_values, keys, values, q_base, d_out_base, lse_base, delta_base,
            full_begin, full_end, first, query_len, key_len, stride_qt, stride_gt,
            scale, softcap, window,
            ROWS, KEYS, HEAD_DIM, PADDED_DIM, CAUSAL, HAS_WINDOW, HAS_SOFTCAP, False,
        )  # fmt: skip
        if HAS_WINDOW:
            d_keys, d_values = _collect_dk_dv(
                d_keys, d_values, keys, values, q_base, d_out_base, lse_base, delta_base,
                full_end, end, first, query_len, key_len, stride_qt, stride_gt,
                scale, softcap, window,
                ROWS, KEYS, HEAD_DIM, PADDED_DIM, CAUSAL, HAS_WINDOW, HAS_SOFTCAP, True,
            )  # fmt: skip
    dk_base = dk + batch * stride_dkb + key_start * stride_dkt + head * stride_dkh
    dv_base = dv + batch * stride_dvb + key_start * stride_dvt + head * stride_dvh
    store_rows(dk_base, first, stride_dkt, key_len, d_keys * scale, KEYS, HEAD_DIM, PADDED_DIM)
    store_rows(dv_base, first, stride_dvt, key_len, d_values, KEYS, HEAD_DIM, PADDED_DIM)


@triton.jit
def _collect_dq(
    dq, q, d_out, lse, delta, k_base, v_base,
    begin, end, first, query_len, key_len, stride_kt, stride_vt, scale, softcap, window,
    ROWS: tl.constexpr, KEYS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """One pass over tiles of keys."""
    query = first + tl.arange(0, ROWS)[:, None]
    for start in tl.range(begin, end, KEYS):
        k = load_rows(k_base, start, stride_kt, key_len, KEYS, HEAD_DIM, PADDED_DIM, MASKED)
        key = start + tl.arange(0, KEYS)[None, :]
        visible = is_visible(query, key, query_len, key_len, window, CAUSAL, HAS_WINDOW)
        product = tl.dot(q, tl.trans(k), input_precision="ieee")
        weight, slope = weights_and_slope(
            product, lse[:, None], scale, softcap, visible, HAS_SOFTCAP, MASKED
        )
        v = load_rows(v_base, start, stride_vt, key_len, KEYS, HEAD_DIM, PADDED_DIM, MASKED)
        d_weight = tl.dot(d_out, tl.trans(v), input_precision="ieee")
        d_score = weight * (d_weight - delta[:, None]) * slope
        dq = tl.dot(d_score.to(k.dtype), k, dq, input_precision="ieee")
    return dq


@triton.jit(do_not_specialize=["query_len", "key_len", "tiles", "window"])
def flash_dq_kernel(
    q, k, v, d_out, dq, lse, delta, query_starts, key_starts,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh,
    stride_vb, stride_vt, stride_vh, stride_gb, stride_gt, stride_gh,
    stride_dqb, stride_dqt, stride_dqh, stride_lb, stride_lh,
    query_len, key_len, tiles, heads, group, scale, softcap, window,
    ROWS: tl.constexpr, KEYS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    VARLEN: tl.constexpr,
):  # fmt: skip
    """One program does ROWS queries of one head."""
    tile, head, batch = place_of_program(tiles, heads, CAUSAL)
    query_start, query_len = sequence(query_starts, batch, query_len, VARLEN)
    key_start, key_len = sequence(key_starts, batch, key_len, VARLEN)
    first = tile * ROWS
    if first >= query_len:
        return
    kv_head = (head // group).to(tl.int64)
    head = head.to(tl.int64)
    q_base = q + batch * stride_qb + query_start * stride_qt + head * stride_qh
    d_out_base = d_out + batch * stride_gb + query_start * stride_gt + head * stride_gh
    k_base = k + batch * stride_kb + key_start * stride_kt + kv_head * stride_kh
    v_base = v + batch * stride_vb + key_start * stride_vt + kv_head * stride_vh
    lse_base = lse + batch * stride_lb + head * stride_lh + query_start
    delta_base = delta + batch * stride_lb + head * stride_lh + query_start
    queries = load_rows(q_base, first, stride_qt, query_len, ROWS, HEAD_DIM, PADDED_DIM, True)
    d_result = load_rows(
        d_out_base, first, stride_gt, query_len, ROWS, HEAD_DIM, PADDED_DIM, True
    )
    row = first + tl.arange(0, ROWS)
    row_lse = load_lse(lse_base, row, query_len)
    row_delta = tl.load(delta_base + row, mask=row < query_len, other=0.0)
    begin, full_begin, full_end, end = key_tiles(
        first, query_len, key_len, window, ROWS, KEYS, CAUSAL, HAS_WINDOW
    )
    result = tl.zeros((ROWS, PADDED_DIM), tl.float32)
    if HAS_WINDOW:
        result = _collect_dq(
            result, queries, d_result, row_lse, row_delta, k_base, v_base,
            begin, full_begin, first, query_len, key_len, stride_kt, stride_vt,
            scale, softcap, window,
            ROWS, KEYS, HEAD_DIM, PADDED_DIM, CAUSAL, HAS_WINDOW, HAS_SOFTCAP, True,
        )  # fmt: skip
    result = _collect_dq(
        result, queries, d_result, row_lse, row_delta, k_base, v_base,
        full_begin, full_end, first, query_len, key_len, stride_kt, stride_vt,
        scale, softcap, window,
        ROWS, KEYS, HEAD_DIM, PADDED_DIM, CAUSAL, HAS_WINDOW, HAS_SOFTCAP, False,
    )  # fmt: skip
    result = _collect_dq(
        result, queries, d_result, row_lse, row_delta, k_base, v_base,
        full_end, end, first, query_len, key_len, stride_kt, stride_vt,
        scale, softcap, window,
        ROWS, KEYS, HEAD_DIM, PADDED_DIM, CAUSAL, HAS_WINDOW, HAS_SOFTCAP, True,
    )  # fmt: skip
    dq_base = dq + batch * stride_dqb + query_start * stride_dqt + head * stride_dqh
    store_rows(dq_base, first, stride_dqt, query_len, result * scale, ROWS, HEAD_DIM, PADDED_DIM)


def choose_backward_launch(arch: str, head_dim: int, dtype: str) -> tuple[Launch, Launch]:
    """For dk and dv, and for dq."""
    padded = padded_head_dim(head_dim)
    if dtype == "fp32":
        return Launch(32, 32, 4, 1), Launch(32, 32, 4, 1)
    if padded <= 64:
        return Launch(64, 64, 4, 2), Launch(64, 64, 4, 2)
    if padded == 128:
        return Launch(64, 64, 8, 2), Launch(64, 64, 8, 2)
    return Launch(32, 32, 8, 1), Launch(32, 32, 8, 1)


def backward(
    problem: Problem,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    d_out: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of q, k and v, contiguous and in their dtypes; `lse` as `forward` gave it."""
    heads, head_dim = q.shape[2:]
    kv_heads = k.shape[2]
    make = torch.Tensor.new_zeros if problem.is_packed else torch.Tensor.new_empty
    dq, dk, dv = make(q, q.shape), make(k, k.shape), make(v, v.shape)
    delta = torch.empty_like(lse)
    for_keys, for_queries = choose_backward_launch(device_of(q).arch, head_dim, dtype_name(q.dtype))
    shape = {"HEAD_DIM": head_dim, "PADDED_DIM": padded_head_dim(head_dim)}
    rules = {
        "CAUSAL": problem.causal,
        "HAS_WINDOW": problem.window is not None,
        "HAS_SOFTCAP": problem.softcap > 0,
    }
    numbers = (problem.scale, problem.softcap, problem.window or 0)
    strides, row_strides = problem.strides, problem.row_strides(lse)
    if dq.numel():
        tiles = triton.cdiv(problem.query_len, DELTA_ROWS)
        flash_delta_kernel[(tiles * heads * problem.batch,)](
            out, d_out, delta, problem.query_starts,
            *strides(out, d_out), *row_strides, problem.query_len, tiles, heads,
            ROWS=DELTA_ROWS, VARLEN=problem.is_packed, **shape,
        )  # fmt: skip
    if dk.numel():
        tiles = triton.cdiv(problem.key_len, for_keys.keys)
        flash_dk_dv_kernel[(tiles * kv_heads * problem.batch,)](
            q, k, v, d_out, dk, dv, lse, delta, problem.query_starts, problem.key_starts,
            *strides(q, k, v, d_out, dk, dv), *row_strides,
            problem.query_len, problem.key_len, tiles, kv_heads, heads // kv_heads, *numbers,
            ROWS=for_keys.rows, KEYS=for_keys.keys, VARLEN=problem.is_packed, **shape, **rules,
            num_warps=for_keys.num_warps, num_stages=for_keys.num_stages,
        )  # fmt: skip
    if dq.numel():
        tiles = triton.cdiv(problem.query_len, for_queries.rows)
        flash_dq_kernel[(tiles * heads * problem.batch,)](
            q, k, v, d_out, dq, lse, delta, problem.query_starts, problem.key_starts,
            *strides(q, k, v, d_out, dq), *row_strides,
            problem.query_len, problem.key_len, tiles, heads, heads // kv_heads, *numbers,
            ROWS=for_queries.rows, KEYS=for_queries.keys, VARLEN=problem.is_packed,
            **shape, **rules,
            num_warps=for_queries.num_warps, num_stages=for_queries.num_stages,
        )  # fmt: skip
    return dq, dk, dv
