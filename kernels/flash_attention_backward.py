"""Flash attention's backward pass: the weights are made again from the LSE, tile by tile.

Dao 2023, "FlashAttention-2", algorithm 2. With P the weights and dS the scores' gradient:
dV = P^T dO, dP = dO V^T, dS = P * (dP - rowsum(O * dO)), dQ = scale dS K, dK = scale dS^T Q.
Here as three kernels: the row sums; dk and dv; dq. The weights are computed twice (7 products of
a tile for 5), and in return nothing is added atomically: gradients are the same in every run.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.flash_attention_dk_dv import key_gradients
from kernels.flash_attention_dq import query_gradient
from kernels.flash_attention_problem import Launch, Problem, aot_cases
from kernels.flash_attention_tiles import load_rows, place_of_program, sequence

# Sixteen rows are the least that a matrix product takes. Three tiles of them in flight, times the
# programs that the registers leave room for, are 86 KB a multiprocessor: more than hides latency.
DELTA = Launch(rows=16, keys=0, num_warps=4, num_stages=1)


@triton.jit(do_not_specialize=["query_len", "tiles"])
def flash_delta_kernel(
    out, rest, d_out, delta, query_starts,
    stride_ob, stride_ot, stride_oh, stride_gb, stride_gt, stride_gh, stride_lb, stride_lh,
    query_len, tiles, heads,
    ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, VARLEN: tl.constexpr,
):  # fmt: skip
    """delta = rowsum(out * d_out): what the weights' gradients have in common in a row.

    Taken from the diagonal of the matrix product that also gives dP: where one key has all the
    weight, out is its value, and dP - delta cancels whole instead of leaving the difference
    of two orders of summing. Where a few keys share it, rounding `out` to 16 bits would cost
    more than all else: `rest` brings back what that took.
    """
    tile, head, batch = place_of_program(tiles, heads, False)
    query_start, query_len = sequence(query_starts, batch, query_len, VARLEN)
    first = tile * ROWS
    if first >= query_len:
        return
    head = head.to(tl.int64)
    out_offset = batch * stride_ob + query_start * stride_ot + head * stride_oh
    d_out_base = d_out + batch * stride_gb + query_start * stride_gt + head * stride_gh
    o = load_rows(out + out_offset, first, stride_ot, query_len, ROWS, HEAD_DIM, PADDED_DIM, True)
    g = load_rows(d_out_base, first, stride_gt, query_len, ROWS, HEAD_DIM, PADDED_DIM, True)
    lane = tl.arange(0, ROWS)
    row = first + lane
    products = tl.dot(g, tl.trans(o), input_precision="ieee")
    if rest is not None:
        r = load_rows(
            rest + out_offset, first, stride_ot, query_len, ROWS, HEAD_DIM, PADDED_DIM, True
        )  # fmt: skip
        products = tl.dot(g, tl.trans(r), products, input_precision="ieee")
    sums = tl.sum(tl.where(lane[:, None] == lane[None, :], products, 0.0), 1)
    delta_base = delta + batch * stride_lb + head * stride_lh + query_start
    tl.store(delta_base + row, sums, mask=row < query_len)


def row_sums(
    problem: Problem,
    out: torch.Tensor,
    rest: torch.Tensor | None,
    d_out: torch.Tensor,
    lse: torch.Tensor,
) -> torch.Tensor:
    """rowsum((out + rest) * d_out), laid out like lse."""
    delta = torch.empty_like(lse)
    if not out.numel():
        return delta
    heads, head_dim = out.shape[2:]
    constants = problem.constants(head_dim)
    tiles = triton.cdiv(problem.query_len, DELTA.rows)
    flash_delta_kernel[problem.grid(tiles, heads)](
        out, rest, d_out, delta, problem.query_starts,
        *problem.strides(out, d_out), *problem.row_strides(delta),
        problem.query_len, tiles, heads, ROWS=DELTA.rows,
        **{name: constants[name] for name in ("HEAD_DIM", "PADDED_DIM", "VARLEN")},
        num_warps=DELTA.num_warps, num_stages=DELTA.num_stages,
    )  # fmt: skip
    return delta


def backward(
    problem: Problem,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    rest: torch.Tensor | None,
    lse: torch.Tensor,
    d_out: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of q, k and v, contiguous and in their dtypes; `out`, `rest` and `lse` as
    `forward` gave them."""
    delta = row_sums(problem, out, rest, d_out, lse)
    dk, dv = key_gradients(problem, q, k, v, d_out, lse, delta)
    return query_gradient(problem, q, k, v, d_out, lse, delta), dk, dv


AOT_CASES = (
    *aot_cases(flash_delta_kernel, lambda *_: DELTA, "bf16", 64, keeps_rest=True, CAUSAL=False),
    *aot_cases(flash_delta_kernel, lambda *_: DELTA, "bf16", 128, keeps_rest=True, CAUSAL=False),
    *aot_cases(flash_delta_kernel, lambda *_: DELTA, "fp32", 64, CAUSAL=False),
)
