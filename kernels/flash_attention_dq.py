"""The gradient of queries: a program adds up what the keys say that its tile of queries sees.

Dao 2023, "FlashAttention-2", algorithm 2, with its loops turned round: where the paper adds to dq
atomically from every tile of keys, here the weights are computed a second time and dq is the
same in every run. 6 * heads * query_len * key_len * head_dim FLOPs, half of it when causal.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.devices import device_of
from kernels.flash_attention_problem import Launch, Problem, aot_cases, dtype_name, padded_head_dim
from kernels.flash_attention_tiles import (
    is_visible,
    key_range,
    load_lse,
    load_rows,
    place_of_program,
    sequence,
    store_rows,
    weights_and_slope,
)


@triton.jit
def _collect_dq(
    dq, q, d_out, lse, delta, k_base, v_base,
    begin, end, first, query_len, key_len, stride_kt, stride_vt, scale, softcap, window,
    ROWS: tl.constexpr, KEYS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
):  # fmt: skip
    """One pass over tiles of keys.

    All are masked: a second loop without a mask costs registers, which spill.
    """
    query = first + tl.arange(0, ROWS)[:, None]
    for start in tl.range(begin, end, KEYS):
        k = load_rows(k_base, start, stride_kt, key_len, KEYS, HEAD_DIM, PADDED_DIM, True)
        key = start + tl.arange(0, KEYS)[None, :]
        visible = is_visible(query, key, query_len, key_len, window, CAUSAL, HAS_WINDOW)
        product = tl.dot(q, tl.trans(k), input_precision="ieee")
        weight, slope = weights_and_slope(
            product, lse[:, None], scale, softcap, visible,
            HAS_SOFTCAP, True, q.dtype == tl.float32,
        )  # fmt: skip
        v = load_rows(v_base, start, stride_vt, key_len, KEYS, HEAD_DIM, PADDED_DIM, True)
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
    d_result = load_rows(d_out_base, first, stride_gt, query_len, ROWS, HEAD_DIM, PADDED_DIM, True)
    row = first + tl.arange(0, ROWS)
    row_lse = load_lse(lse_base, row, query_len)
    row_delta = tl.load(delta_base + row, mask=row < query_len, other=0.0)
    begin, end = key_range(first, query_len, key_len, window, ROWS, KEYS, CAUSAL, HAS_WINDOW)
    result = tl.zeros((ROWS, PADDED_DIM), tl.float32)
    result = _collect_dq(
        result, queries, d_result, row_lse, row_delta, k_base, v_base,
        begin, end, first, query_len, key_len, stride_kt, stride_vt,
        scale, softcap, window,
        ROWS, KEYS, HEAD_DIM, PADDED_DIM, CAUSAL, HAS_WINDOW, HAS_SOFTCAP,
    )  # fmt: skip
    dq_base = dq + batch * stride_dqb + query_start * stride_dqt + head * stride_dqh
    store_rows(dq_base, first, stride_dqt, query_len, result * scale, ROWS, HEAD_DIM, PADDED_DIM)


def choose_launch(arch: str, head_dim: int, dtype: str) -> Launch:
    """The best occupancy without spills, which up to head_dim 64 the smaller tiles have.

    dtype: "fp16", "bf16" or "fp32".
    """
    padded = padded_head_dim(head_dim)
    if dtype == "fp32":  # beyond head_dim 128 about 300 bytes spill, whatever the tile
        return Launch(32, 32, 8, 1) if padded <= 64 else Launch(16, 16, 8, 1)
    if padded <= 64:
        return Launch(64, 32, 4, 2)
    if padded == 128:
        return Launch(128, 64 if arch == "sm_90" else 32, 8, 2)
    if arch == "gfx942":
        return Launch(64, 16, 4, 1)
    return Launch(64, 32, 8, {"sm_89": 1, "sm_100": 3}.get(arch, 2))


def query_gradient(
    problem: Problem,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    d_out: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
) -> torch.Tensor:
    """dq, contiguous and like q. lse, delta: fp32 [batch, heads, query_len]."""
    heads, head_dim = q.shape[2:]
    dq = q.new_zeros(q.shape) if problem.is_packed else q.new_empty(q.shape)
    if not dq.numel():
        return dq
    launch = choose_launch(device_of(q).arch, head_dim, dtype_name(q.dtype))
    tiles = triton.cdiv(problem.query_len, launch.rows)
    flash_dq_kernel[problem.grid(tiles, heads)](
        q, k, v, d_out, dq, lse, delta, problem.query_starts, problem.key_starts,
        *problem.strides(q, k, v, d_out, dq), *problem.row_strides(lse),
        problem.query_len, problem.key_len, tiles, heads, heads // k.shape[2],
        problem.scale, problem.softcap, problem.window or 0,
        ROWS=launch.rows, KEYS=launch.keys, **problem.constants(head_dim),
        num_warps=launch.num_warps, num_stages=launch.num_stages,
    )  # fmt: skip
    return dq


AOT_CASES = (
    *aot_cases(flash_dq_kernel, choose_launch, "bf16", 64),
    *aot_cases(flash_dq_kernel, choose_launch, "bf16", 128),
    *aot_cases(flash_dq_kernel, choose_launch, "fp16", 128, VARLEN=True),
    *aot_cases(flash_dq_kernel, choose_launch, "bf16", 256),
    *aot_cases(
        flash_dq_kernel, choose_launch, "bf16", 128,
        HAS_WINDOW=True, HAS_SOFTCAP=True, VARLEN=True,
    ),
    *aot_cases(flash_dq_kernel, choose_launch, "fp32", 64),
)  # fmt: skip
