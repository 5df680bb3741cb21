"""What RMSNorm and LayerNorm share: how rows are cut into programs, read, and checked.

Both read a row once into registers, add the residual stream where that is asked for, and write
the row once. They differ only in what they do in between.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.checks import FLOATS, as_rows, require_dtype, require_runnable, require_shape
from kernels.errors import KernelInputError

MAX_COLUMNS = 16384  # a row lives in the registers of one program; twice as much spills


@triton.jit
def load_rows(
    x, residual, x_stride, residual_stride, rows, columns, row, column, ADD: tl.constexpr
):
    """The values to be normalised, in fp32, 0 beyond the edges; with ADD the sum, kept too."""
    mask = (row < rows) & (column < columns)
    values = tl.load(x + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        place = residual + row * residual_stride + column
        values += tl.load(place, mask=mask, other=0.0).to(tl.float32)
        # What is normalised is what is kept: the sum as rounded to the stream's type.
        total = values.to(residual.dtype.element_ty)
        tl.store(place, total, mask=mask)
        values = total.to(tl.float32)
    return values, mask


@dataclass(frozen=True)
class Launch:
    """Rows and padded columns of one program, and its warps."""

    rows: int
    columns: int
    num_warps: int

    def grid(self, rows: int) -> tuple[int]:
        return (triton.cdiv(rows, self.rows),)


def choose_launch(columns: int) -> Launch:
    """About 16 elements a thread; short rows (heads) are taken several at a time."""
    padded = triton.next_power_of_2(columns)
    rows = max(1, 1024 // padded)
    return Launch(rows, padded, num_warps=min(16, max(2, rows * padded // 512)))


@dataclass(frozen=True)
class NormRows:
    """Checked tensors as [rows, columns]. Without a residual, x stands in for it: it is not
    touched then.
    """

    x: torch.Tensor
    residual: torch.Tensor
    out: torch.Tensor

    @property
    def rows(self) -> int:
        return self.x.shape[0]

    @property
    def columns(self) -> int:
        return self.x.shape[1]


def checked_rows(
    name: str,
    x: torch.Tensor,
    residual: torch.Tensor | None,
    factors: Mapping[str, torch.Tensor | None],
) -> NormRows:
    """The tensors of a norm, or KernelInputError; factors: what is [columns], weight and bias."""
    if residual is not None:
        require_shape(name, "residual", residual, x.shape)
        require_dtype(name, "residual", residual, (x.dtype,))
    present = {key: factor for key, factor in factors.items() if factor is not None}
    require_dtype(name, "x", x, FLOATS)
    for key, factor in present.items():
        require_dtype(name, key, factor, FLOATS)
    x_rows = as_rows(name, "x", x)
    columns = x_rows.shape[1]
    for key, factor in present.items():
        require_shape(name, key, factor, (columns,))
    if not 1 <= columns <= MAX_COLUMNS:
        raise KernelInputError(f"{name}: x has rows of {columns}, wanted 1 to {MAX_COLUMNS}")
    for key, factor in present.items():
        if columns > 1 and factor.stride(0) != 1:
            raise KernelInputError(f"{name}: {key} must be contiguous")
    residual_rows = x_rows if residual is None else as_rows(name, "residual", residual)
    require_runnable(name, x=x, residual=residual_rows, **present)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    return NormRows(x_rows, residual_rows, out)
