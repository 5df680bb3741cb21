"""LayerNorm, alone and fused with the addition to the residual stream.

Ba, Kiros and Hinton 2016, eq. 3: y = (x - mean) / sqrt(variance + eps) * weight + bias, as in
GPT-2 and OPT, and without bias in later models. The work is moving bytes: each row is read once
and written once.

Answers "why not variance = mean(x^2) - mean^2, which needs one pass?": both terms are rounded to
24 bits, and where the mean is large their difference is what was lost (a row of 10,000 +- 1 in
fp32 comes out with a variance of about 0 or even below it). Here the row stays in registers, so
the second pass over it, for the centred squares, costs no memory traffic.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.norm_rows import MAX_COLUMNS, checked_rows, choose_launch, load_rows
from kernels.testing.cases import AotCase


@triton.jit(do_not_specialize=["rows"])
def layer_norm_kernel(
    x,
    residual,
    weight,
    bias,
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
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """One program normalises ROWS rows; COLUMNS is `columns` rounded up to a power of two."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    values, mask = load_rows(
        x, residual, x_stride, residual_stride, rows, columns, row, column, ADD
    )
    mean = tl.sum(values, 1) / columns
    centred = tl.where(mask, values - mean[:, None], 0.0)
    variance = tl.sum(centred * centred, 1) / columns
    result = centred * tl.rsqrt(variance + eps)[:, None]
    if HAS_WEIGHT:
        result *= tl.load(weight + column, mask=column < columns, other=0.0).to(tl.float32)
    if HAS_BIAS:
        result += tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + column, result.to(out.dtype.element_ty), mask=mask)


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """Normalises the last dimension of x.

    x: [..., columns] fp16, bf16 or fp32, the elements of a row adjacent, rows at any one
    distance. weight, bias: [columns], of a float type, or None. Returns a new tensor like x.
    Raises KernelInputError for tensors that do not fit.
    """
    return _launch("layer_norm", x, None, weight, bias, eps)


def add_layer_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """Adds x to the residual stream in place, and returns the stream normalised.

    residual: of the shape and dtype of x. The result equals `layer_norm(residual + x, ...)`.
    Raises KernelInputError as layer_norm does.
    """
    return _launch("add_layer_norm", x, residual, weight, bias, eps)


def _launch(
    name: str,
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    given = checked_rows(name, x, residual, {"weight": weight, "bias": bias})
    if given.rows == 0:
        return given.out
    launch = choose_launch(given.columns)
    layer_norm_kernel[launch.grid(given.rows)](
        given.x,
        given.residual,
        given.x if weight is None else weight,  # a stand-in, not read
        given.x if bias is None else bias,
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
        HAS_WEIGHT=weight is not None,
        HAS_BIAS=bias is not None,
        num_warps=launch.num_warps,
    )
    return given.out


def layer_norm_reference(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """The formula in the dtype of x: the truth in float64, a peer to be measured with in bf16."""
    centred = x - x.mean(-1, keepdim=True)
    result = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        result = result * weight
    return result if bias is None else result + bias


def _case(dtype: str, columns: int, add: bool) -> AotCase:
    launch = choose_launch(columns)
    pointers = dict.fromkeys(("x", "residual", "weight", "bias", "out"), f"*{dtype}")
    strides = dict.fromkeys(("x_stride", "residual_stride", "out_stride"), "i32")
    return AotCase(
        kernel="add_layer_norm" if add else "layer_norm",
        config=f"{dtype} columns={columns} block={launch.rows}x{launch.columns}",
        function=layer_norm_kernel,
        arguments={**pointers, **strides, "rows": "i32", "columns": "i32", "eps": "fp32"},
        constants={
            "ROWS": launch.rows,
            "COLUMNS": launch.columns,
            "ADD": add,
            "HAS_WEIGHT": True,
            "HAS_BIAS": True,
        },
        num_warps=launch.num_warps,
        any_alignment=frozenset({"rows"}),
    )


# Short rows (128), GPT-2 (768), OPT-6.7B (4096), GPT-3 (12,288), the longest row.
AOT_CASES = (
    _case("bf16", 128, add=False),
    _case("bf16", 768, add=True),
    _case("bf16", 4096, add=True),
    _case("fp16", 12288, add=True),
    _case("fp32", 4096, add=False),
    _case("fp32", MAX_COLUMNS, add=True),
)
