"""SwiGLU's gate: silu(gate) * up, in one pass.

Shazeer 2020, "GLU Variants Improve Transformer", eq. 6 (without the projections, which are
matrix products). In plain torch the same takes two passes over memory and a rounding in between.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.checks import (
    FLOATS,
    MAX_GRID_Y,
    as_rows,
    require_dtype,
    require_runnable,
    require_shape,
)
from kernels.errors import KernelInputError
from kernels.testing.cases import AotCase

BLOCK = 1024
NUM_WARPS = 4
MAX_COLUMNS = MAX_GRID_Y * BLOCK  # blocks of a row lie along the grid's second axis


@triton.jit
def swiglu_kernel(gate, up, out, gate_stride, up_stride, out_stride, columns, BLOCK: tl.constexpr):
    """One program does BLOCK elements of one row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < columns
    g = tl.load(gate + row * gate_stride + column, mask=mask, other=0.0).to(tl.float32)
    u = tl.load(up + row * up_stride + column, mask=mask, other=0.0).to(tl.float32)
    result = g * tl.sigmoid(g) * u
    tl.store(out + row * out_stride + column, result.to(out.dtype.element_ty), mask=mask)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, rounded once.

    gate, up: [..., columns] of one shape and of fp16, bf16 or fp32; the elements of a row
    adjacent, rows at any one distance: the two halves of a fused projection,
    `packed.chunk(2, dim=-1)`, are taken as they are. Returns a new contiguous tensor.
    Raises KernelInputError for tensors that do not fit.
    """
    require_dtype("swiglu", "gate", gate, FLOATS)
    require_dtype("swiglu", "up", up, (gate.dtype,))
    require_shape("swiglu", "up", up, gate.shape)
    gate_rows, up_rows = as_rows("swiglu", "gate", gate), as_rows("swiglu", "up", up)
    rows, columns = gate_rows.shape
    if columns > MAX_COLUMNS:
        raise KernelInputError(f"swiglu: gate has rows of {columns}, wanted at most {MAX_COLUMNS}")
    require_runnable("swiglu", gate=gate, up=up)
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    if out.numel() == 0:
        return out
    swiglu_kernel[(rows, triton.cdiv(columns, BLOCK))](
        gate_rows,
        up_rows,
        out,
        gate_rows.stride(0),
        up_rows.stride(0),
        columns,
        columns,
        BLOCK=BLOCK,
        num_warps=NUM_WARPS,
    )
    return out


def swiglu_reference(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The formula in the dtype of its arguments: the truth in float64."""
    return gate * torch.sigmoid(gate) * up


def _case(dtype: str) -> AotCase:
    pointers = dict.fromkeys(("gate", "up", "out"), f"*{dtype}")
    strides = dict.fromkeys(("gate_stride", "up_stride", "out_stride"), "i32")
    return AotCase(
        kernel="swiglu",
        config=f"{dtype} block={BLOCK}",
        function=swiglu_kernel,
        arguments={**pointers, **strides, "columns": "i32"},
        constants={"BLOCK": BLOCK},
        num_warps=NUM_WARPS,
    )


AOT_CASES = (_case("bf16"), _case("fp16"), _case("fp32"))
