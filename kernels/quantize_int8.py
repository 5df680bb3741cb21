"""Rows of activations as int8 with one scale each: the first half of a W8A8 product.

What does "dynamic, per token" cost? One pass: symmetric, scale = max |row| / 127, computed anew
for every token (Dettmers et al. 2022, LLM.int8(); Xiao et al. 2023, SmoothQuant). The work is
moving bytes: each row is read once, and half or a quarter of it is written.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.checks import FLOATS, as_rows, require_dtype, require_runnable
from kernels.errors import KernelInputError
from kernels.testing.cases import AotCase

MAX_COLUMNS = 32768  # a row lives in the registers of one program; twice as much spills
LARGEST = 127.0


@triton.jit(do_not_specialize=["rows"])
def quantize_per_token_kernel(
    x,
    codes,
    scales,
    x_stride,
    codes_stride,
    rows,
    columns,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One program quantizes ROWS rows; COLUMNS is `columns` rounded up to a power of two."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.arange(0, COLUMNS)[None, :]
    mask = (row[:, None] < rows) & (column < columns)
    place = x + row[:, None] * x_stride + column
    values = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    # tl.max passes over NaN: it counts as infinite, and spoils the scale of its row.
    magnitudes = tl.where(values != values, float("inf"), tl.abs(values))
    largest = tl.max(magnitudes, 1)
    finite = largest < float("inf")
    scale = tl.div_rn(largest, 127.0)
    usable = finite & (scale > 0.0)
    ratio = tl.div_rn(values, tl.where(usable, scale, 1.0)[:, None])
    # Adding 1.5 * 2^23 leaves no bits after the point: the GPU's rounding to nearest even.
    nearest = (ratio + 12582912.0) - 12582912.0
    clamped = tl.minimum(tl.maximum(nearest, -127.0), 127.0)
    result = tl.where(usable[:, None], clamped, 0.0).to(tl.int8)
    tl.store(codes + row[:, None] * codes_stride + column, result, mask=mask)
    tl.store(scales + row, tl.where(finite, scale, float("nan")), mask=row < rows)


@dataclass(frozen=True)
class Launch:
    """Rows and padded columns of one program, and its warps."""

    rows: int
    columns: int
    num_warps: int


def choose_launch(columns: int) -> Launch:
    """About 16 elements a thread; short rows are taken several at a time."""
    padded = triton.next_power_of_2(columns)
    rows = max(1, 1024 // padded)
    return Launch(rows, padded, num_warps=min(32, max(2, rows * padded // 512)))


def quantize_per_token(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of the rows of x: x is about codes * scales[..., None].

    x: [..., columns] fp16, bf16 or fp32, the elements of a row adjacent, rows at any one
    distance. Returns int8 [..., columns] of -127 to 127, rounded to nearest even, and fp32
    [...], max |row| / 127. A row of zeros has scale 0 and codes 0. A row with NaN or infinity has
    scale NaN and codes 0: so its products are NaN, and no other row's.
    Raises KernelInputError for tensors that do not fit.
    """
    name = "quantize_per_token"
    require_dtype(name, "x", x, FLOATS)
    rows = as_rows(name, "x", x)
    count, columns = rows.shape
    if not 1 <= columns <= MAX_COLUMNS:
        raise KernelInputError(f"{name}: x has rows of {columns}, wanted 1 to {MAX_COLUMNS}")
    require_runnable(name, x=x)
    codes = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    scales = torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)
    if count == 0:
        return codes, scales
    launch = choose_launch(columns)
    quantize_per_token_kernel[(triton.cdiv(count, launch.rows),)](
        rows,
        codes,
        scales,
        rows.stride(0),
        columns,
        count,
        columns,
        ROWS=launch.rows,
        COLUMNS=launch.columns,
        num_warps=launch.num_warps,
    )
    return codes, scales


def quantize_per_token_reference(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in torch, bit for bit."""
    values = x.float()
    largest = values.abs().amax(-1)  # NaN wins
    scales = torch.where(largest.isfinite(), largest / LARGEST, float("nan"))
    usable = scales > 0
    ratio = values / torch.where(usable, scales, 1.0).unsqueeze(-1)
    codes = torch.where(usable.unsqueeze(-1), ratio.round().clamp(-LARGEST, LARGEST), 0.0)
    return codes.to(torch.int8), scales


def _case(dtype: str, columns: int) -> AotCase:
    launch = choose_launch(columns)
    return AotCase(
        kernel="quantize_per_token",
        config=f"{dtype} columns={columns} block={launch.rows}x{launch.columns}",
        function=quantize_per_token_kernel,
        arguments={
            "x": f"*{dtype}",
            "codes": "*i8",
            "scales": "*fp32",
            **dict.fromkeys(("x_stride", "codes_stride", "rows", "columns"), "i32"),
        },
        constants={"ROWS": launch.rows, "COLUMNS": launch.columns},
        num_warps=launch.num_warps,
        any_alignment=frozenset({"rows"}),
    )


# The default model (576), Llama-3 8B (4096 and 14336), the longest row.
AOT_CASES = (
    _case("bf16", 576),
    _case("bf16", 4096),
    _case("fp16", 14336),
    _case("fp32", MAX_COLUMNS),
)
