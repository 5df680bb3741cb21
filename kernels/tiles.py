"""What the quantized matrix products share: the order of tiles, and splitting K.

Why does the order of tiles matter, and what is split-K for? Tiles that run at the same time
should share operands, so that these come from L2: programs walk down a band of rows before they
go on to the next columns. And a product with few rows has few tiles: to fill the GPU, several
programs share one tile, each takes a part of K and stores its sum; `add_splits` adds the sums,
always in the same order, so that a result is the same every time.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.devices import Device
from kernels.testing.architectures import ARCHITECTURES
from kernels.testing.cases import AotCase, by_launch

BAND = 8  # tiles of rows in a band: with 128 x 128 tiles about 1 MiB of x at K=4096
MERGE_BLOCK = 1024
MERGE_WARPS = 4
MAX_SPLITS = 16
MIN_STEPS = 4  # of K to a program: fewer would not fill its pipeline


@dataclass(frozen=True)
class Splits:
    """count: programs that share a tile. steps: of K to each of them, the last may have fewer."""

    count: int
    steps: int


@dataclass(frozen=True)
class Launch:
    """The tile of a program, its warps and pipeline stages, and how K is split."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    splits: Splits

    def tiles(self, M: int, N: int) -> int:
        """How many tiles cover the result: the grid's x, which CUDA lets be long."""
        return -(-M // self.block_m) * -(-N // self.block_n)

    @property
    def blocks(self) -> dict[str, int]:
        """The constants of a kernel that it decides."""
        return {"BLOCK_M": self.block_m, "BLOCK_N": self.block_n, "BLOCK_K": self.block_k}

    @property
    def options(self) -> dict[str, int]:
        """What the compiler is told of it."""
        return {"num_warps": self.num_warps, "num_stages": self.num_stages}

    def __str__(self) -> str:
        split = " split" if self.splits.count > 1 else ""
        return f"tile={self.block_m}x{self.block_n}x{self.block_k}{split}"


def choose_splits(tiles: int, steps: int, places: int) -> Splits:
    """As many splits as find room at once, each with at least MIN_STEPS of the `steps` of K.

    places: how many programs the GPU holds. More would start a second wave that is mostly empty.
    """
    count = max(1, min(places // max(tiles, 1), steps // MIN_STEPS, MAX_SPLITS))
    each = -(-steps // count)
    return Splits(-(-steps // each), each)


def launches_by_arch(
    choose: Callable[[Device], Launch], archs: Iterable[str] = ARCHITECTURES
) -> dict[Launch, tuple[str, ...]]:
    """What `choose` gives for GPUs of 132 processors, and the kinds that it gives it for."""
    return by_launch(lambda arch: choose(Device(arch, (0, 0), 132, has_fp8=True)), archs)


@triton.jit
def tile_of(program, tiles_m, tiles_n, BAND: tl.constexpr):
    """The tile (row, column) of a program: bands of BAND rows, down each column of a band first."""
    in_band = BAND * tiles_n
    first = program // in_band * BAND
    height = tl.minimum(tiles_m - first, BAND)
    place = program % in_band
    return first + place % height, place // height


@triton.jit(do_not_specialize=["splits"])
def add_splits_kernel(
    sums,
    x_scales,
    weight_scales,
    bias,
    out,
    N,
    split_stride,
    out_stride,
    splits,
    BLOCK: tl.constexpr,
):
    """One program adds the sums of BLOCK columns of one row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < N
    place = sums + row * N + column
    total = tl.load(place, mask=mask, other=0)
    for _ in range(1, splits):
        place += split_stride
        total += tl.load(place, mask=mask, other=0)
    total = total.to(tl.float32)
    if x_scales is not None:
        total *= tl.load(x_scales + row)
    if weight_scales is not None:
        total *= tl.load(weight_scales + column, mask=mask, other=0.0)
    if bias is not None:
        total += tl.load(bias + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + column, total.to(out.dtype.element_ty), mask=mask)


def room_for_sums(
    out: torch.Tensor, splits: Splits, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Where the programs of a product [M, N] store: [splits, M, N], or `out` where none share."""
    if splits.count == 1:
        return out
    return torch.empty((splits.count, *out.shape), dtype=dtype, device=out.device)


def add_splits(
    sums: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None,
    x_scales: torch.Tensor | None = None,
    weight_scales: torch.Tensor | None = None,
) -> None:
    """out = sums over their first dimension, times scales, plus bias.

    sums: [splits, M, N] fp32 or int32, contiguous. out: [M, N]. bias: [N]. x_scales: [M] fp32,
    weight_scales: [N] fp32.
    """
    splits, rows, columns = sums.shape
    add_splits_kernel[(rows, triton.cdiv(columns, MERGE_BLOCK))](
        sums,
        x_scales,
        weight_scales,
        bias,
        out,
        columns,
        rows * columns,
        out.stride(0),
        splits,
        BLOCK=MERGE_BLOCK,
        num_warps=MERGE_WARPS,
    )


def _case(sums: str, out: str, scaled: bool) -> AotCase:
    scales = ("x_scales", "weight_scales")
    return AotCase(
        kernel="add_splits",
        config=f"{sums} to {out}{' scaled' if scaled else ''}",
        function=add_splits_kernel,
        arguments={
            "sums": f"*{sums}",
            "bias": f"*{out}",
            "out": f"*{out}",
            **dict.fromkeys(scales if scaled else (), "*fp32"),
            **dict.fromkeys(("N", "split_stride", "out_stride", "splits"), "i32"),
        },
        constants={"BLOCK": MERGE_BLOCK, **dict.fromkeys(() if scaled else scales)},
        num_warps=MERGE_WARPS,
        any_alignment=frozenset({"splits"}),
    )


AOT_CASES = (_case("fp32", "bf16", scaled=False), _case("i32", "bf16", scaled=True))
