"""Tensors as fp8 (e4m3), with one fp32 scale for all, or one for every group of a row.

Why does DeepSeek scale groups of 128? With scale = max |x| / 448 the largest magnitude becomes
the largest number of e4m3 (Micikevicius et al. 2022, "FP8 Formats for Deep Learning"), and one
outlier pushes all others towards its smallest. DeepSeek-V3 (2024, section 3.3) gives 128
neighbours of a row a scale each: an outlier then costs 127 others only. Conversion rounds to
nearest even and saturates (PTX `cvt.rn.satfinite.e4m3x2.f32`): infinities count as the largest
finite value of their group, NaN stays NaN. The work is moving bytes.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.checks import FLOATS, MAX_GRID_Y, as_rows, require_dtype, require_runnable
from kernels.devices import device_of
from kernels.e4m3 import E4M3_ARCHITECTURES
from kernels.errors import KernelInputError
from kernels.testing.cases import AotCase

LARGEST = 448.0
BLOCK = 4096
NUM_WARPS = 8
MAX_MAXIMA = 256  # of the parts of a tensor, each by one program
GROUP_ROWS = 16
GROUP_WARPS = 4


@triton.jit
def finite_magnitude(values):
    """|values|, and 0 for infinities and NaN."""
    magnitudes = tl.abs(values)
    return tl.where(magnitudes < float("inf"), magnitudes, 0.0)


@triton.jit
def as_e4m3(values, scale):
    """values / scale, where a scale of zero stands for one."""
    ratio = tl.div_rn(values, tl.where(scale > 0.0, scale, 1.0))
    kept = tl.clamp(ratio, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
    return kept.to(tl.float8e4nv)


@triton.jit(do_not_specialize=["rows"])
def fp8_maxima_kernel(x, maxima, x_stride, rows, columns, BLOCK: tl.constexpr):
    """One program finds the largest magnitude of every num_programs-th row."""
    largest = tl.zeros((BLOCK,), tl.float32)
    x += tl.program_id(0).to(tl.int64) * x_stride
    for _ in range(tl.program_id(0), rows, tl.num_programs(0)):
        for start in range(0, columns, BLOCK):
            column = start + tl.arange(0, BLOCK)
            values = tl.load(x + column, mask=column < columns, other=0.0).to(tl.float32)
            largest = tl.maximum(largest, finite_magnitude(values))
        x += tl.num_programs(0).to(tl.int64) * x_stride
    tl.store(maxima + tl.program_id(0), tl.max(largest, 0))


@triton.jit(do_not_specialize=["parts"])
def quantize_fp8_per_tensor_kernel(
    x, maxima, codes, scale, x_stride, columns, parts, PARTS: tl.constexpr, BLOCK: tl.constexpr
):
    """One program quantizes BLOCK columns of a row; all find the same scale."""
    part = tl.arange(0, PARTS)
    largest = tl.max(tl.load(maxima + part, mask=part < parts, other=0.0), 0)
    divisor = tl.div_rn(largest, 448.0)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < columns
    values = tl.load(x + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(codes + row * columns + column, as_e4m3(values, divisor), mask=mask)
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(scale, divisor)


@triton.jit(do_not_specialize=["rows"])
def quantize_fp8_groups_kernel(
    x,
    codes,
    scales,
    x_stride,
    rows,
    columns,
    groups,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    POWER_OF_TWO: tl.constexpr,
):
    """One program quantizes a group of each of ROWS rows."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    group = tl.program_id(1)
    column = group * GROUP + tl.arange(0, GROUP)[None, :]
    mask = (row[:, None] < rows) & (column < columns)
    place = x + row[:, None] * x_stride + column
    values = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    scale = tl.div_rn(tl.max(finite_magnitude(values), 1), 448.0)
    if POWER_OF_TWO:  # rounded up: the exponent, one more unless it is exact already
        bits = scale.to(tl.int32, bitcast=True)
        exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(tl.int32)
        scale = (exponent << 23).to(tl.float32, bitcast=True)
    tl.store(codes + row[:, None] * columns + column, as_e4m3(values, scale[:, None]), mask=mask)
    tl.store(scales + row * groups + group, scale, mask=row < rows)


def require_fp8(kernel: str, tensor: torch.Tensor) -> None:
    """Refuses GPUs that do not compute with e4m3fn."""
    device = device_of(tensor)
    if not device.has_fp8:
        major, minor = device.capability
        raise KernelInputError(
            f"{kernel}: compute capability {major}.{minor} has no fp8, 8.9 and later have: use "
            "int8 (quantize_per_token, w8a8_gemm)"
        )
    if device.arch == "gfx942":
        raise KernelInputError(
            f"{kernel}: gfx942 multiplies float8_e4m3fnuz, whose codes mean half as much as those "
            "of float8_e4m3fn: use int8 (quantize_per_token, w8a8_gemm)"
        )


def quantize_fp8_per_tensor(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and the scale of x: x is about codes.float() * scale.

    x: [..., columns] fp16, bf16 or fp32, the elements of a row adjacent, rows at any one
    distance. Returns float8_e4m3fn of the shape of x, and fp32 [1], the largest finite magnitude
    / 448; 0 if there is none but 0. No value is fetched to the host.
    Raises KernelInputError for tensors that do not fit, and on GPUs without e4m3fn.
    """
    name = "quantize_fp8_per_tensor"
    require_dtype(name, "x", x, FLOATS)
    rows = as_rows(name, "x", x)
    require_runnable(name, x=x)
    require_fp8(name, x)
    count, columns = rows.shape
    if columns > MAX_GRID_Y * BLOCK:
        raise KernelInputError(
            f"{name}: x has rows of {columns}, wanted at most {MAX_GRID_Y * BLOCK}"
        )
    codes = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    if codes.numel() == 0:
        return codes, torch.zeros(1, device=x.device)
    scale = torch.empty(1, dtype=torch.float32, device=x.device)
    parts = min(count, MAX_MAXIMA)
    maxima = torch.empty(parts, dtype=torch.float32, device=x.device)
    stride = rows.stride(0)
    options = {"BLOCK": BLOCK, "num_warps": NUM_WARPS}
    fp8_maxima_kernel[(parts,)](rows, maxima, stride, count, columns, **options)
    quantize_fp8_per_tensor_kernel[(count, triton.cdiv(columns, BLOCK))](
        rows, maxima, codes, scale, stride, columns, parts, PARTS=MAX_MAXIMA, **options
    )
    return codes, scale


def quantize_fp8_groups(
    x: torch.Tensor, group: int = 128, *, power_of_two: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of x, and a scale for every `group` neighbours of a row; the last may be fewer.

    x: [..., columns] fp16, bf16 or fp32, the elements of a row adjacent, rows at any one
    distance. group: a power of two from 16 to 1024. power_of_two: scales are rounded up to
    powers of two, as E8M0 holds them; those that are stay. Returns float8_e4m3fn of the shape of
    x, and fp32 [..., ceil(columns / group)], the largest finite magnitude / 448; 0 for zeros.
    Raises KernelInputError for tensors that do not fit, and on GPUs without e4m3fn.
    """
    name = "quantize_fp8_groups"
    require_dtype(name, "x", x, FLOATS)
    if not 16 <= group <= 1024 or group & (group - 1):
        raise KernelInputError(f"{name}: group {group}, wanted a power of two from 16 to 1024")
    rows = as_rows(name, "x", x)
    count, columns = rows.shape
    groups = triton.cdiv(columns, group)
    if groups > MAX_GRID_Y:
        raise KernelInputError(f"{name}: {groups} groups in a row, wanted at most {MAX_GRID_Y}")
    require_runnable(name, x=x)
    require_fp8(name, x)
    codes = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty((*x.shape[:-1], groups), dtype=torch.float32, device=x.device)
    if codes.numel() == 0:
        return codes, scales
    quantize_fp8_groups_kernel[(triton.cdiv(count, GROUP_ROWS), groups)](
        rows,
        codes,
        scales,
        rows.stride(0),
        count,
        columns,
        groups,
        GROUP=group,
        ROWS=GROUP_ROWS,
        POWER_OF_TWO=power_of_two,
        num_warps=GROUP_WARPS,
    )
    return codes, scales


def quantize_fp8_reference(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales [..., 1] of the last dimension of fp32 `values`, in torch, bit for bit."""
    magnitudes = torch.where(values.isfinite(), values.abs(), 0.0)
    scales = magnitudes.amax(-1, keepdim=True) / LARGEST
    ratio = values / torch.where(scales > 0, scales, 1.0)
    return ratio.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn), scales


def _sizes(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "i32")


AOT_CASES = (
    AotCase(
        kernel="fp8_maxima",
        config=f"bf16 block={BLOCK}",
        function=fp8_maxima_kernel,
        arguments={
            "x": "*bf16",
            "maxima": "*fp32",
            **_sizes("x_stride", "rows", "columns"),
        },
        constants={"BLOCK": BLOCK},
        num_warps=NUM_WARPS,
        any_alignment=frozenset({"rows"}),
    ),
    AotCase(
        kernel="quantize_fp8_per_tensor",
        config=f"bf16 block={BLOCK}",
        function=quantize_fp8_per_tensor_kernel,
        arguments={
            "x": "*bf16",
            "maxima": "*fp32",
            "codes": "*fp8e4nv",
            "scale": "*fp32",
            **_sizes("x_stride", "columns", "parts"),
        },
        constants={"PARTS": MAX_MAXIMA, "BLOCK": BLOCK},
        num_warps=NUM_WARPS,
        any_alignment=frozenset({"parts"}),
        architectures=E4M3_ARCHITECTURES,
    ),
    *(
        AotCase(
            kernel="quantize_fp8_groups",
            config=f"{dtype} group=128{' power of two' if power_of_two else ''}",
            function=quantize_fp8_groups_kernel,
            arguments={
                "x": f"*{dtype}",
                "codes": "*fp8e4nv",
                "scales": "*fp32",
                **_sizes("x_stride", "rows", "columns", "groups"),
            },
            constants={"GROUP": 128, "ROWS": GROUP_ROWS, "POWER_OF_TWO": power_of_two},
            num_warps=GROUP_WARPS,
            any_alignment=frozenset({"rows"}),
            architectures=E4M3_ARCHITECTURES,
        )
        for dtype, power_of_two in (("bf16", False), ("fp32", True))
    ),
)
