"""Flash attention's forward pass: softmax(q k^T) v in tiles, the scores never in memory.

Dao 2023, "FlashAttention-2", algorithm 1; the running maximum and sum of Milakov and Gimelshein
2018. What it saves is traffic: scores and weights would be written and read at 4 * heads *
query_len * key_len elements, here q, k, v and the result move once or a few times. What bounds
it then is 4 * heads * query_len * key_len * head_dim FLOPs, half of that when causal, and an
exponential per score.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.devices import device_of
from kernels.flash_attention_problem import (
    Launch,
    Problem,
    aot_cases,
    dtype_name,
    padded_head_dim,
)
from kernels.flash_attention_tiles import (
    LN_2,
    LOG2_E,
    full_key_range,
    is_visible,
    key_range,
    load_rows,
    place_of_program,
    sequence,
    store_rows,
)
from kernels.hyperbolic import tanh


@triton.jit
def _attend(
    q, k_base, v_base, result, total, highest,
    begin, end, first, query_len, key_len, stride_kt, stride_vt,
    scale, softcap, window,
    ROWS: tl.constexpr, KEYS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """One pass over tiles of keys; scores are in units of log 2, so that exp2 serves."""
    query = first + tl.arange(0, ROWS)[:, None]
    for start in tl.range(begin, end, KEYS):
        k = load_rows(k_base, start, stride_kt, key_len, KEYS, HEAD_DIM, PADDED_DIM, MASKED)
        score = tl.dot(q, tl.trans(k), input_precision="ieee")
        if HAS_SOFTCAP:
            score = tanh(score * (scale / softcap), q.dtype == tl.float32) * (softcap * LOG2_E)
            factor = 1.0
        else:
            factor = scale * LOG2_E
        if MASKED:
            key = start + tl.arange(0, KEYS)[None, :]
            visible = is_visible(query, key, query_len, key_len, window, CAUSAL, HAS_WINDOW)
            score = tl.where(visible, score * factor, float("-inf"))
            new_highest = tl.maximum(highest, tl.max(score, 1))
            # A row that has seen nothing yet: -inf less -inf would be NaN.
            finite_highest = tl.where(new_highest == float("-inf"), 0.0, new_highest)
            weight = tl.exp2(score - finite_highest[:, None])
        else:
            new_highest = tl.maximum(highest, tl.max(score, 1) * factor)
            finite_highest = new_highest
            weight = tl.exp2(score * factor - finite_highest[:, None])
        rescale = tl.exp2(highest - finite_highest)
        total = total * rescale + tl.sum(weight, 1)
        v = load_rows(v_base, start, stride_vt, key_len, KEYS, HEAD_DIM, PADDED_DIM, MASKED)
        result = tl.dot(weight.to(v.dtype), v, result * rescale[:, None], input_precision="ieee")
        highest = new_highest
    return result, total, highest


# Lengths change from call to call, and nothing is gained by compiling for one of them.
@triton.jit(do_not_specialize=["query_len", "key_len", "tiles", "window"])
def flash_forward_kernel(
    q, k, v, out, rest, lse, query_starts, key_starts,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh,
    stride_vb, stride_vt, stride_vh, stride_ob, stride_ot, stride_oh, stride_lb, stride_lh,
    query_len, key_len, tiles, heads, group, scale, softcap, window,
    ROWS: tl.constexpr, KEYS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    NEGATIVE: tl.constexpr, VARLEN: tl.constexpr,
):  # fmt: skip
    """One program does ROWS queries of one head. `scale` is taken without its sign, which
    NEGATIVE gives to q: the largest score is then the largest product. `rest`, unless it is
    None, is like `out` and gets what rounding took from it.
    """
    tile, head, batch = place_of_program(tiles, heads, CAUSAL)
    query_start, query_len = sequence(query_starts, batch, query_len, VARLEN)
    key_start, key_len = sequence(key_starts, batch, key_len, VARLEN)
    first = tile * ROWS
    if first >= query_len:
        return
    q_base = q + batch * stride_qb + query_start * stride_qt + head.to(tl.int64) * stride_qh
    kv_head = (head // group).to(tl.int64)
    k_base = k + batch * stride_kb + key_start * stride_kt + kv_head * stride_kh
    v_base = v + batch * stride_vb + key_start * stride_vt + kv_head * stride_vh
    queries = load_rows(q_base, first, stride_qt, query_len, ROWS, HEAD_DIM, PADDED_DIM, True)
    if NEGATIVE:
        queries = -queries
    begin, end = key_range(first, query_len, key_len, window, ROWS, KEYS, CAUSAL, HAS_WINDOW)
    full_begin, full_end = full_key_range(
        first, end, query_len, key_len, window, ROWS, KEYS, CAUSAL, HAS_WINDOW
    )
    result = tl.zeros((ROWS, PADDED_DIM), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    highest = tl.full((ROWS,), float("-inf"), tl.float32)
    # The parts are: the window's edge, what all rows see, the causal or the ragged edge.
    bounds = (begin, full_begin, full_end, end)
    for part in tl.static_range(0 if HAS_WINDOW else 1, 3):
        result, total, highest = _attend(
            queries, k_base, v_base, result, total, highest,
            bounds[part], bounds[part + 1], first, query_len, key_len, stride_kt, stride_vt,
            scale, softcap, window,
            ROWS, KEYS, HEAD_DIM, PADDED_DIM, CAUSAL, HAS_WINDOW, HAS_SOFTCAP,
            MASKED=part != 1,
        )  # fmt: skip
    # Nothing to attend: 0, and the logarithm of an empty sum.
    safe_total = tl.where(total == 0.0, 1.0, total)
    result = result / safe_total[:, None]
    out_offset = batch * stride_ob + query_start * stride_ot + head.to(tl.int64) * stride_oh
    store_rows(
        out + out_offset, first, stride_ot, query_len, result, ROWS, HEAD_DIM, PADDED_DIM
    )  # fmt: skip
    if rest is not None:
        result -= result.to(out.dtype.element_ty).to(tl.float32)
        store_rows(
            rest + out_offset, first, stride_ot, query_len, result, ROWS, HEAD_DIM, PADDED_DIM
        )  # fmt: skip
    row = first + tl.arange(0, ROWS)
    lse_base = lse + batch * stride_lb + head.to(tl.int64) * stride_lh + query_start
    log_sum = (highest + tl.log2(safe_total)) * LN_2
    tl.store(lse_base + row, log_sum, mask=row < query_len)


def choose_launch(arch: str, head_dim: int, dtype: str) -> Launch:
    """The largest tiles whose machine code spills nothing; among those, the best occupancy.

    dtype: "fp16", "bf16" or "fp32", which no matrix instruction multiplies in full.
    """
    padded = padded_head_dim(head_dim)
    if dtype == "fp32":
        return Launch(32 if padded <= 64 else 16, 32, 8, 1)
    if padded <= 64:
        return {
            "sm_80": Launch(128, 128, 8, 3),
            "sm_89": Launch(128, 128, 8, 3),
            "gfx942": Launch(128, 32, 4, 3),
        }.get(arch, Launch(128, 64, 8, 3))  # 128 registers: two programs overlap
    if padded == 128:
        if arch == "gfx942":
            return Launch(128, 32, 8, 2)
        # Four warps would spill 100 bytes and more; two stages spill on sm_80, three do on sm_89
        # with a window.
        return Launch(128, 64, 8, 2 if arch == "sm_89" else 3)
    return Launch(64, 32, 8, 2)


def forward(
    problem: Problem,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    keeps_rest: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The result like q, the natural-log fp32 LSE [batch, heads, query_len], and the rest.

    q, k, v: [batch, tokens, heads, head_dim], checked; packed sequences are one of the batch.
    keeps_rest: whether to give, for a result of 16 bits, what rounding took from it, like it.
    """
    heads, head_dim = q.shape[2:]
    rows = (q.shape[0], heads, q.shape[1])
    if problem.is_packed:  # tokens that belong to no sequence are written by no program
        out = q.new_zeros(q.shape)
        lse = q.new_full(rows, float("-inf"), dtype=torch.float32)
    else:
        out, lse = q.new_empty(q.shape), q.new_empty(rows, dtype=torch.float32)
    rest = torch.empty_like(out) if keeps_rest and q.dtype != torch.float32 else None
    if not out.numel():
        return out, lse, rest
    launch = choose_launch(device_of(q).arch, head_dim, dtype_name(q.dtype))
    tiles = triton.cdiv(problem.query_len, launch.rows)
    flash_forward_kernel[problem.grid(tiles, heads)](
        q, k, v, out, rest, lse, problem.query_starts, problem.key_starts,
        *problem.strides(q, k, v, out), *problem.row_strides(lse),
        problem.query_len, problem.key_len, tiles, heads, heads // k.shape[2],
        abs(problem.scale), problem.softcap, problem.window or 0,
        ROWS=launch.rows, KEYS=launch.keys, NEGATIVE=problem.scale < 0,
        **problem.constants(head_dim),
        num_warps=launch.num_warps, num_stages=launch.num_stages,
    )  # fmt: skip
    return out, lse, rest


AOT_CASES = (
    *aot_cases(flash_forward_kernel, choose_launch, "bf16", 64),
    *aot_cases(flash_forward_kernel, choose_launch, "bf16", 96),
    *aot_cases(flash_forward_kernel, choose_launch, "bf16", 128),
    *aot_cases(flash_forward_kernel, choose_launch, "fp16", 128),
    *aot_cases(flash_forward_kernel, choose_launch, "bf16", 256),
    *aot_cases(flash_forward_kernel, choose_launch, "bf16", 128, CAUSAL=False),
    *aot_cases(flash_forward_kernel, choose_launch, "bf16", 128, VARLEN=True),
    *aot_cases(
        flash_forward_kernel, choose_launch, "bf16", 128, {"gfx942": 92},
        HAS_WINDOW=True, HAS_SOFTCAP=True, VARLEN=True,
    ),
    *aot_cases(flash_forward_kernel, choose_launch, "bf16", 64, keeps_rest=True),
    *aot_cases(flash_forward_kernel, choose_launch, "bf16", 128, keeps_rest=True),
    *aot_cases(flash_forward_kernel, choose_launch, "fp32", 64),
)  # fmt: skip
