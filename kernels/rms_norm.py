"""RMSNorm, alone and fused with the addition to the residual stream.

Zhang and Sennrich 2019, eq. 4: y = x / sqrt(mean(x^2) + eps) * weight. The work is moving bytes:
each row is read once and written once, and the sum of squares is kept in fp32. Fusing the
addition saves one pass over the residual stream.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.norm_rows import MAX_COLUMNS, checked_rows, choose_launch, load_rows
from kernels.testing.cases import AotCase


@triton.jit(do_not_specialize=["rows"])
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
    values, mask = load_rows(
        x, residual, x_stride, residual_stride, rows, columns, row, column, ADD
    )
    mean_square = tl.sum(values * values, 1) / columns
    scale = tl.rsqrt(mean_square + eps)[:, None]
    factors = tl.load(weight + column, mask=column < columns, other=0.0).to(tl.float32)
    result = (values * scale * factors).to(out.dtype.element_ty)
    tl.store(out + row * out_stride + column, result, mask=mask)


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
    Raises KernelInputError as rms_norm does.
    """
    return _launch("add_rms_norm", x, residual, weight, eps)


def _launch(
    name: str, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    given = checked_rows(name, x, residual, {"weight": weight})
    if given.rows == 0:
        return given.out
    launch = choose_launch(given.columns)
    rms_norm_kernel[launch.grid(given.rows)](
        given.x,
        given.residual,
        weight,
        given.out,
        given.x.stride(0),
        given.residual.stride(0),
        given.columns,
        given.rows,
        given.columns,
        eps,
        ROWS=launch.rows,
        COLUMNS=launch.columns,
        ADD=residual is not None,
        num_warps=launch.num_warps,
    )
    return given.out


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
