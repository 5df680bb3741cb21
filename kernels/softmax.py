"""Softmax and log-softmax over the last dimension, of rows short (attention) and long (vocabulary).

softmax(x)_i = exp(x_i - m) / sum_j exp(x_j - m), with m = max(x): subtracting the maximum changes
nothing in the quotient and keeps exp from overflowing. The work is moving bytes.

A row of up to 16,384 elements stays in the registers of one program: read once, written once. A
longer one (a vocabulary of 151,936) is cut into chunks, each with a program of its own, so that
one row of a decode batch keeps many processors busy: a first launch leaves every chunk's maximum
and sum, a second merges them and writes: two reads and one write. The merge is that of online
softmax (Milakov and Gimelshein 2018, theorem 1, associative): two parts (m1, s1) and (m2, s2) of
a row make m = max(m1, m2), s = s1 exp(m1 - m) + s2 exp(m2 - m). Answers "why does softmax need
three passes, and how does FlashAttention get by with one?".
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.checks import FLOATS, as_rows, require_dtype, require_runnable
from kernels.errors import KernelInputError
from kernels.testing.cases import AotCase

LOG2_E = tl.constexpr(1.4426950408889634)
MAX_REGISTER_COLUMNS = 16384
CHUNK = 8192  # 19 programs for one row of 151,936; 32 elements a thread still fit 48 registers
MAX_COLUMNS = 2**23  # the partial results of a row fit in one tile


@triton.jit
def exponentials(values, largest):
    """exp(values - largest) along dimension 1, 0 for -inf even where nothing is larger."""
    safe = tl.where(largest == float("-inf"), 0.0, largest)
    return tl.exp2((values - safe[:, None]) * LOG2_E)


@triton.jit
def normalised(values, largest, total, LOG: tl.constexpr):
    """Softmax or its logarithm of a part of rows, given the whole rows' maximum and sum."""
    if LOG:
        safe = tl.where(largest == float("-inf"), 0.0, largest)
        return (values - safe[:, None]) - tl.log(tl.where(total == 0.0, 1.0, total))[:, None]
    return exponentials(values, largest) / tl.where(total == 0.0, 1.0, total)[:, None]


@triton.jit(do_not_specialize=["rows"])
def softmax_kernel(
    x,
    out,
    x_stride,
    out_stride,
    rows,
    columns,
    scale,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    LOG: tl.constexpr,
):
    """One program does ROWS whole rows; COLUMNS is `columns` rounded up to a power of two."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    mask = (row < rows) & (column < columns)
    values = tl.load(x + row * x_stride + column, mask=mask, other=float("-inf"))
    values = tl.where(mask, values.to(tl.float32) * scale, float("-inf"))
    largest = tl.max(values, 1)
    total = tl.sum(exponentials(values, largest), 1)
    result = normalised(values, largest, total, LOG).to(out.dtype.element_ty)
    tl.store(out + row * out_stride + column, result, mask=mask)


@triton.jit
def softmax_parts_kernel(
    x, largest_parts, total_parts, x_stride, chunks, columns, scale, CHUNK: tl.constexpr
):
    """One program leaves the maximum and the sum of one chunk of one row."""
    part = tl.program_id(0)
    row = (part // chunks).to(tl.int64)
    column = ((part % chunks) * CHUNK + tl.arange(0, CHUNK))[None, :]
    mask = column < columns
    values = tl.load(x + row * x_stride + column, mask=mask, other=float("-inf"))
    values = tl.where(mask, values.to(tl.float32) * scale, float("-inf"))
    largest = tl.max(values, 1)
    here = part + tl.arange(0, 1)
    tl.store(largest_parts + here, largest)
    tl.store(total_parts + here, tl.sum(exponentials(values, largest), 1))


@triton.jit
def softmax_merge_kernel(
    x,
    largest_parts,
    total_parts,
    out,
    x_stride,
    out_stride,
    chunks,
    columns,
    scale,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    LOG: tl.constexpr,
):
    """One program merges the parts of a row, and writes one chunk of it."""
    part = tl.program_id(0)
    row = (part // chunks).to(tl.int64)
    other = tl.arange(0, CHUNKS)[None, :]
    parts = row * chunks + other
    maxima = tl.load(largest_parts + parts, mask=other < chunks, other=float("-inf"))
    totals = tl.load(total_parts + parts, mask=other < chunks, other=0.0)
    largest = tl.max(maxima, 1)
    total = tl.sum(totals * exponentials(maxima, largest), 1)
    column = ((part % chunks) * CHUNK + tl.arange(0, CHUNK))[None, :]
    mask = column < columns
    values = tl.load(x + row * x_stride + column, mask=mask, other=float("-inf"))
    values = values.to(tl.float32) * scale
    result = normalised(values, largest, total, LOG).to(out.dtype.element_ty)
    tl.store(out + row * out_stride + column, result, mask=mask)


@dataclass(frozen=True)
class Launch:
    """columns: of a tile, a power of two. chunks: tiles that a row is cut into; 1 for a row in
    registers, of which a program takes `rows`.
    """

    rows: int
    columns: int
    chunks: int
    num_warps: int


def choose_launch(columns: int) -> Launch:
    """About 16 elements a thread; short rows are taken several at a time, long ones in chunks."""
    if columns > MAX_REGISTER_COLUMNS:
        return Launch(1, CHUNK, triton.cdiv(columns, CHUNK), num_warps=8)
    padded = triton.next_power_of_2(columns)
    rows = max(1, 1024 // padded)
    return Launch(rows, padded, 1, num_warps=min(16, max(2, rows * padded // 512)))


def softmax(
    x: torch.Tensor,
    *,
    scale: float = 1.0,
    log: bool = False,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """softmax(scale * x) over the last dimension, or its logarithm; fp32 inside.

    x: [..., columns] fp16, bf16 or fp32 of at most 2^23 columns, the elements of a row adjacent,
    rows at any one distance. scale: any finite number; negative turns the order round. Masked
    elements are -inf and get 0 (log: -inf); a row of nothing but -inf is all 0 (log: all -inf),
    attention's convention, where torch gives NaN. A NaN or +inf makes its whole row NaN, as in
    torch. dtype: of the result, that of x unless given. Returns a new contiguous tensor.
    Raises KernelInputError for tensors that do not fit.
    """
    require_dtype("softmax", "x", x, FLOATS)
    x_rows = as_rows("softmax", "x", x)
    rows, columns = x_rows.shape
    if columns > MAX_COLUMNS:
        raise KernelInputError(f"softmax: x has rows of {columns}, wanted at most {MAX_COLUMNS}")
    if not math.isfinite(scale):
        raise KernelInputError(f"softmax: scale is {scale}, wanted a finite number")
    require_runnable("softmax", x=x)
    out = torch.empty(x.shape, dtype=dtype or x.dtype, device=x.device)
    require_dtype("softmax", "the result", out, FLOATS)
    if out.numel() == 0:
        return out
    launch = choose_launch(columns)
    tile = {"num_warps": launch.num_warps}
    if launch.chunks == 1:
        softmax_kernel[(triton.cdiv(rows, launch.rows),)](
            x_rows,
            out,
            x_rows.stride(0),
            columns,
            rows,
            columns,
            scale,
            ROWS=launch.rows,
            COLUMNS=launch.columns,
            LOG=log,
            **tile,
        )
        return out
    grid = (rows * launch.chunks,)
    largest_parts = torch.empty(grid, dtype=torch.float32, device=x.device)
    total_parts = torch.empty_like(largest_parts)
    softmax_parts_kernel[grid](
        x_rows,
        largest_parts,
        total_parts,
        x_rows.stride(0),
        launch.chunks,
        columns,
        scale,
        CHUNK=launch.columns,
        **tile,
    )
    softmax_merge_kernel[grid](
        x_rows,
        largest_parts,
        total_parts,
        out,
        x_rows.stride(0),
        columns,
        launch.chunks,
        columns,
        scale,
        CHUNK=launch.columns,
        CHUNKS=triton.next_power_of_2(launch.chunks),
        LOG=log,
        **tile,
    )
    return out


def softmax_reference(x: torch.Tensor, *, scale: float = 1.0, log: bool = False) -> torch.Tensor:
    """The formula in the dtype of x: the truth in float64, a peer to be measured with in bf16."""
    scaled = x * scale
    largest = scaled.amax(-1, keepdim=True)
    shifted = scaled - torch.where(largest == float("-inf"), 0.0, largest)
    total = shifted.exp().sum(-1, keepdim=True)
    total = torch.where(total == 0, 1.0, total)
    return shifted - total.log() if log else shifted.exp() / total


def _register_case(dtype: str, columns: int, log: bool = False) -> AotCase:
    launch = choose_launch(columns)
    arguments = {"x": f"*{dtype}", "out": f"*{dtype}", "x_stride": "i32", "out_stride": "i32"}
    return AotCase(
        kernel="log_softmax" if log else "softmax",
        config=f"{dtype} columns={columns} block={launch.rows}x{launch.columns}",
        function=softmax_kernel,
        arguments={**arguments, "rows": "i32", "columns": "i32", "scale": "fp32"},
        constants={"ROWS": launch.rows, "COLUMNS": launch.columns, "LOG": log},
        num_warps=launch.num_warps,
        any_alignment=frozenset({"rows"}),
    )


def _chunk_cases(dtype: str, columns: int, log: bool = False) -> tuple[AotCase, AotCase]:
    launch = choose_launch(columns)
    sizes = {"chunks": "i32", "columns": "i32", "scale": "fp32"}
    parts = {"x": f"*{dtype}", "largest_parts": "*fp32", "total_parts": "*fp32"}
    config = f"{dtype} columns={columns} chunk={launch.columns}"
    first = AotCase(
        kernel="softmax_parts",
        config=config,
        function=softmax_parts_kernel,
        arguments={**parts, "x_stride": "i32", **sizes},
        constants={"CHUNK": launch.columns},
        num_warps=launch.num_warps,
        any_alignment=frozenset({"chunks"}),
    )
    second = AotCase(
        kernel="log_softmax_merge" if log else "softmax_merge",
        config=config,
        function=softmax_merge_kernel,
        arguments={**parts, "out": f"*{dtype}", "x_stride": "i32", "out_stride": "i32", **sizes},
        constants={
            "CHUNK": launch.columns,
            "CHUNKS": triton.next_power_of_2(launch.chunks),
            "LOG": log,
        },
        num_warps=launch.num_warps,
        any_alignment=frozenset({"chunks"}),
    )
    return first, second


# Attention rows, the longest row in registers; the vocabularies of Qwen (bf16) and Llama (fp32).
AOT_CASES = (
    _register_case("bf16", 128),
    _register_case("fp16", 4096),
    _register_case("fp32", MAX_REGISTER_COLUMNS),
    _register_case("bf16", MAX_REGISTER_COLUMNS, log=True),
    *_chunk_cases("bf16", 151_936),
    *_chunk_cases("fp32", 128_256, log=True),
)
