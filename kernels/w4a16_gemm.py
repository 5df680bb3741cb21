"""Matrix product of 16-bit activations and 4-bit weights: out = x @ (scale * (code - zero)) + bias.

Why do 4-bit weights make decoding four times faster, and prefill hardly? A decoding step reads
every weight once for a handful of rows: K * N / 2 bytes bound it, a quarter of what fp16 weights
have. From some hundred rows on the same 2 * M * N * K FLOPs bound both, and unpacking comes on
top.

The method is that of Marlin (Frantar et al. 2024, arXiv:2408.11743): stream the codes through
shared memory asynchronously, and unpack them in registers, where the matrix instruction wants
them. Three things make that possible here:

- the weight is the left operand (out^T = W x^T), which every GPU's matrix instruction may take
  from registers, Hopper's wgmma and Blackwell's tcgen05 only this one;
- the layout (see `w4_packing`) gives low and high nibbles as plain tiles, so unpacking is
  elementwise, and loads are 16 bytes wide;
- code - zero is exact in fp16 and bf16, so the scale can wait: it multiplies the sum of a group
  in fp32. That costs M instead of K operations an output, and no rounding.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl

from kernels.checks import FLOATS, as_rows, require_dtype, require_runnable, require_shape
from kernels.devices import Device, device_of
from kernels.errors import KernelInputError
from kernels.testing.cases import AotCase
from kernels.tiles import (
    BAND,
    Launch,
    add_splits,
    choose_splits,
    launches_by_arch,
    room_for_sums,
    tile_of,
)
from kernels.w4_packing import HALF, PackedW4

ALL_OF_K = 1 << 30  # a group longer than any K: one compiled kernel for all single groups


@triton.jit
def as_float(code, dtype: tl.constexpr):
    """Codes 0 to 15 as 1024 + code in fp16, 128 + code in bf16: the last bits of such a number.

    One `or` instead of a conversion, which GPUs do at a quarter of the speed; a difference of
    two such numbers is exact.
    """
    if dtype == tl.float16:
        return (code.to(tl.uint16) | 0x6400).to(dtype, bitcast=True)
    return (code.to(tl.uint16) | 0x4300).to(dtype, bitcast=True)


@triton.jit
def scale_and_zero(word, dtype: tl.constexpr):
    """The fp32 scale of a word, and its zero as `as_float` gives it (see `w4_packing`)."""
    return (word & -16).to(tl.float32, bitcast=True), as_float(word & 15, dtype)


@triton.jit(do_not_specialize=["M", "steps"])
def w4a16_gemm_kernel(
    x,
    codes,
    words,
    bias,
    out,
    M,
    N,
    K,
    x_stride,
    codes_stride,
    words_stride,
    out_stride,
    split_stride,
    steps,
    GROUP: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BAND: tl.constexpr,
):
    """One program computes BLOCK_N x BLOCK_M of out^T over `steps` tiles of K."""
    tile_m, tile_n = tile_of(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), BAND)
    split = tl.program_id(1)
    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    in_m, in_n = m < M, n < N
    byte = tl.arange(0, BLOCK_K // 2)
    low_k = byte // HALF * (2 * HALF) + byte % HALF
    first = split * steps
    last = tl.minimum(first + steps, tl.cdiv(K, BLOCK_K))
    codes += n.to(tl.int64)[:, None] * codes_stride + byte[None, :] + first * (BLOCK_K // 2)
    x += m.to(tl.int64)[None, :] * x_stride + low_k[:, None] + first * BLOCK_K
    words += n
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for step in range(first, last):
        k = step * BLOCK_K
        code = tl.load(codes, mask=in_n[:, None], other=0)
        low_x = tl.load(x, mask=in_m[None, :] & (k + low_k < K)[:, None], other=0.0)
        high_x = tl.load(x + HALF, mask=in_m[None, :] & (k + HALF + low_k < K)[:, None], other=0.0)
        word = tl.load(words + k // GROUP * words_stride, mask=in_n, other=0)
        scale, zero = scale_and_zero(word, x.dtype.element_ty)
        low = as_float(code & 15, x.dtype.element_ty)
        high = as_float(code >> 4, x.dtype.element_ty)
        part = tl.dot(low - zero[:, None], low_x)
        if GROUP % (2 * HALF) == 0:
            part = tl.dot(high - zero[:, None], high_x, part)
        else:  # BLOCK_K is one block, and its high nibbles belong to another group
            total += part * scale[:, None]
            place = words + (k + HALF) // GROUP * words_stride
            word = tl.load(place, mask=in_n & (k + HALF < K), other=0)
            scale, zero = scale_and_zero(word, x.dtype.element_ty)
            part = tl.dot(high - zero[:, None], high_x)
        total += part * scale[:, None]
        codes += BLOCK_K // 2
        x += BLOCK_K
    if bias is not None:
        total += tl.load(bias + n, mask=in_n, other=0.0).to(tl.float32)[:, None]
    out += split.to(tl.int64) * split_stride + m.to(tl.int64)[None, :] * out_stride
    tl.store(out + n[:, None], total.to(out.dtype.element_ty), mask=in_n[:, None] & in_m[None, :])


def choose_launch(M: int, N: int, K: int, group: int, device: Device) -> Launch:
    """Tiles by M, and as many splits of K as the GPU has room for at once.

    Found with the compiler for sm_80 to gfx942. Up to 64 rows, 64 outputs a block: at most 146
    registers (160 on gfx942) and 45 KiB of shared memory, so that 3 or 4 blocks share a
    processor, each with 6 to 12 KiB of codes on their way; 128 outputs with 4 warps double the
    registers. From 33 rows on BLOCK_K 128 costs a block of occupancy, and spills on sm_80 at
    128 x 128; more than 64 outputs at 64 rows spill with groups of 32.
    """
    # Rows of codes are padded to whole tiles (w4_packing.PADDED_TO).
    block_k = 128 if group % 128 == 0 and M <= 32 else 2 * HALF
    if M <= 64:
        block_m, block_n, num_warps, num_stages = max(16, triton.next_power_of_2(M)), 64, 4, 4
        resident = 4 if M <= 32 else 3
        if device.arch == "sm_89":  # 99 KiB
            resident = 2 if block_m == 32 else 3
    else:
        block_m, block_n, num_warps, num_stages, resident = 128, 128, 8, 3, 1
    tiles = triton.cdiv(M, block_m) * triton.cdiv(N, block_n)
    splits = choose_splits(tiles, triton.cdiv(K, block_k), resident * device.processors)
    return Launch(block_m, block_n, block_k, num_warps, num_stages, splits)


def w4a16_gemm(x: torch.Tensor, weight: PackedW4, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x @ weight + bias, in fp32, rounded once.

    x: [..., K] fp16 or bf16, the elements of a row adjacent, rows at any one distance. weight:
    see `w4_packing`. bias: [N] of a float type. Returns a new [..., N] of the dtype of x. The
    same inputs on the same kind of GPU give the same bits.
    Raises KernelInputError for tensors that do not fit.
    """
    name = "w4a16_gemm"
    require_dtype(name, "x", x, (torch.float16, torch.bfloat16))
    rows = as_rows(name, "x", x)
    M, K = rows.shape
    N = weight.out_features
    if weight.in_features != K:
        raise KernelInputError(
            f"{name}: x has rows of {K}, the weight takes {weight.in_features} inputs"
        )
    tensors = {"x": x, "codes": weight.codes, "words": weight.words}
    if bias is not None:
        require_dtype(name, "bias", bias, FLOATS)
        require_shape(name, "bias", bias, (N,))
        bias = bias.contiguous()
        tensors["bias"] = bias
    if weight.permutation is not None:
        tensors["permutation"] = weight.permutation
    require_runnable(name, **tensors)
    out = torch.empty((*x.shape[:-1], N), dtype=x.dtype, device=x.device)
    if M == 0:
        return out
    if weight.permutation is not None:
        rows = rows.index_select(1, weight.permutation)
    group = weight.group if weight.groups > 1 else ALL_OF_K
    launch = choose_launch(M, N, K, group, device_of(x))
    out_rows = out.view(M, N)
    sums = room_for_sums(out_rows, launch.splits)
    whole = sums is out_rows
    w4a16_gemm_kernel[(launch.tiles(M, N), launch.splits.count)](
        rows,
        weight.codes,
        weight.words,
        bias if whole else None,
        sums,
        M,
        N,
        K,
        rows.stride(0),
        weight.codes.stride(0),
        weight.words.stride(0),
        N,
        M * N,
        launch.splits.steps,
        GROUP=group,
        HALF=HALF,
        BAND=BAND,
        **launch.blocks,
        **launch.options,
    )
    if not whole:
        add_splits(sums, out_rows, bias)
    return out


def w4a16_gemm_reference(
    x: torch.Tensor, weight: PackedW4, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """The product in the dtype of x: the truth in float64, a peer to be measured with in bf16."""
    out = x @ weight.dequantized(torch.float64).to(x.dtype)
    return out if bias is None else out + bias.to(x.dtype)


def _case(
    dtype: str, M: int, group: int, launch: Launch, architectures: tuple[str, ...]
) -> AotCase:
    pointers = {"x": f"*{dtype}", "codes": "*u8", "words": "*i32"}
    strides = ("x_stride", "codes_stride", "words_stride", "out_stride", "split_stride")
    whole = launch.splits.count == 1
    return AotCase(
        kernel="w4a16_gemm",
        config=f"{dtype} M={M} group={'K' if group == ALL_OF_K else group} {launch}",
        function=w4a16_gemm_kernel,
        arguments={
            **pointers,
            "out": f"*{dtype}" if whole else "*fp32",
            **({"bias": f"*{dtype}"} if whole else {}),
            **dict.fromkeys((*strides, "M", "N", "K", "steps"), "i32"),
        },
        constants={
            **({} if whole else {"bias": None}),
            "GROUP": group,
            "HALF": HALF,
            "BAND": BAND,
            **launch.blocks,
        },
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        any_alignment=frozenset({"M", "steps"}),
        matrix=True,
        architectures=architectures,
    )


# Llama-3 8B's MLP, decoding to prefill; groups of 32 take another path; a group of all of K.
AOT_CASES = tuple(
    _case(dtype, M, group, launch, architectures)
    for dtype, M, group in (
        ("bf16", 16, 128),
        ("fp16", 16, 128),
        ("bf16", 16, 32),
        ("fp16", 16, 64),
        ("bf16", 32, ALL_OF_K),
        ("bf16", 64, 128),
        ("fp16", 64, 32),
        ("fp16", 128, 128),
        ("bf16", 128, 128),
        ("bf16", 128, 32),
    )
    for launch, architectures in launches_by_arch(
        partial(choose_launch, M, 14336, 4096, group)
    ).items()
)
