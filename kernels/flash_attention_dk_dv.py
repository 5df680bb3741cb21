"""The gradients of keys and values: a program adds up what all queries say to its tile of keys.

Dao 2023, "FlashAttention-2", algorithm 2, its outer loop. The query heads that share a kv head
are summed by the same program, so grouped heads need no buffer and no atomics. Of the work of
the backward pass, 10 * heads * query_len * key_len * head_dim FLOPs, 8 are done here: the scores
again, dV, dP and dK.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl

from kernels.devices import device_of
from kernels.flash_attention_problem import Launch, Problem, aot_cases, dtype_name, padded_head_dim
from kernels.flash_attention_tiles import (
    is_visible,
    load_lse,
    load_rows,
    place_of_program,
    query_range,
    sequence,
    store_rows,
    weights_and_slope,
)


@triton.jit
def _collect_dk_dv(
    dk, dv, k, v, q_base, d_out_base, lse_base, delta_base,
    begin, end, first, query_len, key_len, stride_qt, stride_gt, scale, softcap, window,
    ROWS: tl.constexpr, KEYS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
):  # fmt: skip
    """One pass over tiles of queries, the tiles of scores turned: [KEYS, ROWS].

    All causal tiles are masked: a second loop without a mask costs 50 registers, which spill.
    """
    key = first + tl.arange(0, KEYS)[:, None]
    for start in tl.range(begin, end, ROWS):
        q = load_rows(q_base, start, stride_qt, query_len, ROWS, HEAD_DIM, PADDED_DIM, True)
        row = start + tl.arange(0, ROWS)
        lse = load_lse(lse_base, row, query_len)
        query = row[None, :]
        visible = is_visible(query, key, query_len, key_len, window, CAUSAL, HAS_WINDOW)
        product = tl.dot(k, tl.trans(q), input_precision="ieee")
        weight, slope = weights_and_slope(
            product, lse[None, :], scale, softcap, visible,
            HAS_SOFTCAP, CAUSAL, q.dtype == tl.float32,
        )  # fmt: skip
        d_out = load_rows(d_out_base, start, stride_gt, query_len, ROWS, HEAD_DIM, PADDED_DIM, True)
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
    begin, end = query_range(first, query_len, key_len, window, ROWS, KEYS, CAUSAL, HAS_WINDOW)
    d_keys = tl.zeros((KEYS, PADDED_DIM), tl.float32)
    d_values = tl.zeros((KEYS, PADDED_DIM), tl.float32)
    for member in range(group):
        query_head = (kv_head * group + member).to(tl.int64)
        q_base = q + batch * stride_qb + query_start * stride_qt + query_head * stride_qh
        d_out_base = d_out + batch * stride_gb + query_start * stride_gt + query_head * stride_gh
        lse_base = lse + batch * stride_lb + query_head * stride_lh + query_start
        delta_base = delta + batch * stride_lb + query_head * stride_lh + query_start
        d_keys, d_values = _collect_dk_dv(
            d_keys, d_values, keys, values, q_base, d_out_base, lse_base, delta_base,
            begin, end, first, query_len, key_len, stride_qt, stride_gt,
            scale, softcap, window,
            ROWS, KEYS, HEAD_DIM, PADDED_DIM, CAUSAL, HAS_WINDOW, HAS_SOFTCAP,
        )  # fmt: skip
    dk_base = dk + batch * stride_dkb + key_start * stride_dkt + head * stride_dkh
    dv_base = dv + batch * stride_dvb + key_start * stride_dvt + head * stride_dvh
    store_rows(dk_base, first, stride_dkt, key_len, d_keys * scale, KEYS, HEAD_DIM, PADDED_DIM)
    store_rows(dv_base, first, stride_dvt, key_len, d_values, KEYS, HEAD_DIM, PADDED_DIM)


def choose_launch(arch: str, head_dim: int, dtype: str, softcap: bool = False) -> Launch:
    """Few queries and many keys: two results of [keys, head_dim] stay in registers.

    dtype: "fp16", "bf16" or "fp32". softcap: whether scores are capped, which takes registers.
    """
    padded = padded_head_dim(head_dim)
    if dtype == "fp32":  # both operands of a product in registers
        return Launch(16, 32 if padded <= 64 else 16, 8, 1)
    if padded <= 64:
        if arch == "gfx942":
            return Launch(32, 64, 4, 1)
        return Launch(64 if arch == "sm_90" else 32, 128, 8, 2)
    if padded == 128:
        if arch == "gfx942":
            return Launch(32, 64, 8, 1)
        # wgmma likes 128 keys for eight warps; elsewhere they spill.
        return Launch(32, 128 if arch == "sm_90" and not softcap else 64, 8, 2)
    return Launch(16, 64, 8, 1) if arch == "gfx942" else Launch(32, 32, 8, 2)


def key_gradients(
    problem: Problem,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    d_out: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """dk and dv, contiguous and like k and v. lse, delta: fp32 [batch, heads, query_len]."""
    heads, (kv_heads, head_dim) = q.shape[2], k.shape[2:]
    make = torch.Tensor.new_zeros if problem.is_packed else torch.Tensor.new_empty
    dk, dv = make(k, k.shape), make(v, v.shape)
    if not dk.numel():
        return dk, dv
    launch = choose_launch(device_of(q).arch, head_dim, dtype_name(q.dtype), problem.softcap > 0)
    tiles = triton.cdiv(problem.key_len, launch.keys)
    flash_dk_dv_kernel[problem.grid(tiles, kv_heads)](
        q, k, v, d_out, dk, dv, lse, delta, problem.query_starts, problem.key_starts,
        *problem.strides(q, k, v, d_out, dk, dv), *problem.row_strides(lse),
        problem.query_len, problem.key_len, tiles, kv_heads, heads // kv_heads,
        problem.scale, problem.softcap, problem.window or 0,
        ROWS=launch.rows, KEYS=launch.keys, **problem.constants(head_dim),
        num_warps=launch.num_warps, num_stages=launch.num_stages,
    )  # fmt: skip
    return dk, dv


AOT_CASES = (
    *aot_cases(flash_dk_dv_kernel, choose_launch, "bf16", 64),
    *aot_cases(flash_dk_dv_kernel, choose_launch, "bf16", 128),
    *aot_cases(flash_dk_dv_kernel, choose_launch, "fp16", 128, VARLEN=True),
    *aot_cases(flash_dk_dv_kernel, choose_launch, "bf16", 256),
    *aot_cases(
        flash_dk_dv_kernel, partial(choose_launch, softcap=True), "bf16", 128, {"gfx942": 180},
        HAS_WINDOW=True, HAS_SOFTCAP=True, VARLEN=True,
    ),
    *aot_cases(flash_dk_dv_kernel, choose_launch, "fp32", 64),
)  # fmt: skip
