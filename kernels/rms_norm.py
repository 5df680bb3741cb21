"""RMSNorm, alone and fused with the addition to the residual stream.

Zhang and Sennrich 2019, eq. 4: y = x / sqrt(mean(x^2) + eps) * weight. The work is moving bytes:
each row is read once and written once, and the sum of squares is kept in fp32. Fusing the
addition saves one pass over the residual stream.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.checks import FLOATS, as_rows, require_dtype, require_runnable, require_shape
from kernels.errors import KernelInputError
from kernels.testing.cases import AotCase

MAX_COLUMNS = 16384  # a row lives in the registers of one program; twice as much spills


@triton.jit
def rms_norm_kernel(
    x,
    residual,
    weight,
    out,
    x_stride,
    residual_stride,
    out_stride,
    rows,
    columns,
    eps,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ADD: tl.constexpr,
):
    """One program normalises ROWS rows; COLUMNS is `columns` rounded up to a power of two."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    mask = (row < rows) & (column < columns)
    values = tl.load(x + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        place = residual + row * residual_stride + column
        values += tl.load(place, mask=mask, other=0.0).to(tl.float32)
        # What is normalised is what is kept: the sum as rounded to the stream's type.
        total = values.to(residual.dtype.element_ty)
        tl.store(place, total, mask=mask)
        values = total.to(tl.float32)
    mean_square = tl.sum(values * values, 1) / columns
    scale = tl.rsqrt(mean_square + eps)[:, None]
    factors = tl.load(weight + column, mask=column < columns, other=0.0).to(tl.float32)
    result = (values * scale * factors).to(out.dtype.element_ty)
    tl.store(out + row * out_stride + column, result, mask=mask)


@dataclass(frozen=True)
class Launch:
    """Rows and padded columns of one program, and its warps."""

    rows: int
    columns: int
    num_warps: int


def choose_launch(columns: int) -> Launch:
    """About 16 elements a thread; short rows (heads) are taken several at a time."""
    padded = triton.next_power_of_2(columns)
    rows = max(1, 1024 // padded)
    return Launch(rows, padded, num_warps=min(16, max(2, rows * padded // 512)))


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Normalises the last dimension of x.

    x: [..., columns] fp16, bf16 or fp32, the elements of a row adjacent, rows at any one
    distance. weight: [columns], of a float type. Returns a new tensor like x.
    Raises KernelInputError for tensors that do not fit.
    """
    return _launch("rms_norm", x, None, weight, eps)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """Adds x to the residual stream in place, and returns the stream normalised.

    residual: of the shape and dtype of x. The result equals `rms_norm(residual + x, ...)`.
    """
    require_shape("add_rms_norm", "residual", residual, x.shape)
    require_dtype("add_rms_norm", "residual", residual, (x.dtype,))
    return _launch("add_rms_norm", x, residual, weight, eps)


def _launch(
    name: str, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    require_dtype(name, "x", x, FLOATS)
    require_dtype(name, "weight", weight, FLOATS)
    x_rows = as_rows(name, "x", x)
    columns = x_rows.shape[1]
    require_shape(name, "weight", weight, (columns,))
    if not 1 <= columns <= MAX_COLUMNS:
        raise KernelInputError(f"{name}: x has rows of {columns}, wanted 1 to {MAX_COLUMNS}")
    if columns > 1 and weight.stride(0) != 1:
        raise KernelInputError(f"{name}: weight must be contiguous")
    # The residual is written: without one, x stands in for it and is left alone.
    residual_rows = x_rows if residual is None else as_rows(name, "residual", residual)
    require_runnable(name, x=x, residual=residual_rows, weight=weight)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    rows = x_rows.shape[0]
    if rows == 0:
        return out
    out_rows = out.view(rows, columns)
    launch = choose_launch(columns)
    rms_norm_kernel[(triton.cdiv(rows, launch.rows),)](
        x_rows,
        residual_rows,
        weight,
        out_rows,
        x_rows.stride(0),
        residual_rows.stride(0),
        out_rows.stride(0),
        rows,
        columns,
        eps,
        ROWS=launch.rows,
        COLUMNS=launch.columns,
        ADD=residual is not None,
        num_warps=launch.num_warps,
    )
    return out


def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The formula in the dtype of x: the truth in float64, a peer to be measured with in bf16."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def _case(dtype: str, columns: int, add: bool) -> AotCase:
    launch = choose_launch(columns)
    pointers = dict.fromkeys(("x", "residual", "weight", "out"), f"*{dtype}")
    strides = dict.fromkeys(("x_stride", "residual_stride", "out_stride"), "i32")
    return AotCase(
        kernel="add_rms_norm" if add else "rms_norm",
        config=f"{dtype} columns={columns} block={launch.rows}x{launch.columns}",
        function=rms_norm_kernel,
        arguments={**pointers, **strides, "rows": "i32", "columns": "i32", "eps": "fp32"},
        constants={"ROWS": launch.rows, "COLUMNS": launch.columns, "ADD": add},
        num_warps=launch.num_warps,
        any_alignment=frozenset({"rows"}),
    )


# Head norms (128), the default model (576), Llama-3 8B (4096) and 70B (8192), the longest row.
AOT_CASES = (
    _case("bf16", 128, add=False),
    _case("bf16", 576, add=True),
    _case("bf16", 4096, add=True),
    _case("fp16", 8192, add=True),
    _case("fp32", 4096, add=False),
    _case("fp32", MAX_COLUMNS, add=True),
)
