"""Matrix product of int8 activations and int8 weights, exact in int32, scaled once at the end.

out = x_scales * weight_scales * (x @ weight^T) + bias. Why is W8A8 faster than W8A16 in prefill
too? Because the product itself runs in int8: twice the FLOPs of fp16 on A100 and H100, and half
the bytes; and a scale for each token and each output channel factors out of the sum (Xiao et al.
2023, SmoothQuant); a scale for each input would not. Decoding is bound by the N * K bytes of the
weight, prefill by 2 * M * N * K operations.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl

from kernels.checks import (
    FLOATS,
    as_rows,
    require_dtype,
    require_result_dtype,
    require_runnable,
    require_shape,
)
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

MAX_K = (2**31 - 1) // (128 * 128)  # longer sums of products could pass int32


@triton.jit(do_not_specialize=["M", "steps"])
def w8a8_gemm_kernel(
    x,
    weight,
    x_scales,
    weight_scales,
    bias,
    out,
    M,
    N,
    K,
    x_stride,
    weight_stride,
    out_stride,
    split_stride,
    steps,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BAND: tl.constexpr,
):
    """One program computes a tile of out over `steps` tiles of K; without scales, the int32 sum."""
    tile_m, tile_n = tile_of(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), BAND)
    split = tl.program_id(1)
    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    in_m, in_n = m < M, n < N
    first = split * steps
    last = tl.minimum(first + steps, tl.cdiv(K, BLOCK_K))
    x += m.to(tl.int64)[:, None] * x_stride + k[None, :] + first * BLOCK_K
    weight += n.to(tl.int64)[None, :] * weight_stride + k[:, None] + first * BLOCK_K
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.int32)
    for step in range(first, last):
        in_k = step * BLOCK_K + k < K
        left = tl.load(x, mask=in_m[:, None] & in_k[None, :], other=0)
        right = tl.load(weight, mask=in_n[None, :] & in_k[:, None], other=0)
        total = tl.dot(left, right, total, out_dtype=tl.int32)
        x += BLOCK_K
        weight += BLOCK_K
    place = out + split.to(tl.int64) * split_stride + m.to(tl.int64)[:, None] * out_stride
    mask = in_m[:, None] & in_n[None, :]
    if x_scales is None:
        tl.store(place + n[None, :], total, mask=mask)
    else:
        scaled = total.to(tl.float32) * tl.load(x_scales + m, mask=in_m, other=0.0)[:, None]
        scaled *= tl.load(weight_scales + n, mask=in_n, other=0.0)[None, :]
        if bias is not None:
            scaled += tl.load(bias + n, mask=in_n, other=0.0).to(tl.float32)[None, :]
        tl.store(place + n[None, :], scaled.to(out.dtype.element_ty), mask=mask)


def choose_launch(M: int, N: int, K: int, device: Device) -> Launch:
    """Tiles by M, and as many splits of K as the GPU has room for at once.

    Found with the compiler. Decoding: 48 to 56 registers and 30 KiB of shared memory, three
    blocks at least on a processor with 99 KiB, 24 KiB of weights of each on their way. Prefill:
    at 128 x 128, BLOCK_K 64 leaves room for a second block (128 registers, 64 KiB) everywhere;
    128 costs it on sm_80 and sm_89, but not on sm_90, whose wgmma reads its operands from shared
    memory. 256 outputs take 240 registers on sm_80.
    """
    block_k, num_stages = 128, 4
    if M <= 64:
        block_m, block_n, num_warps = max(16, triton.next_power_of_2(M)), 64, 4
        resident = 3 if M <= 16 else 2
    else:
        block_m, block_n, num_warps, resident = 128, 128, 8, 1
        block_k, num_stages = (128, 3) if device.arch == "sm_90" else (64, 4)
    if device.arch == "gfx942":  # 64 KiB of LDS: two buffers leave room for another block
        num_stages = 2
    tiles = triton.cdiv(M, block_m) * triton.cdiv(N, block_n)
    splits = choose_splits(tiles, triton.cdiv(K, block_k), resident * device.processors)
    return Launch(block_m, block_n, block_k, num_warps, num_stages, splits)


def w8a8_gemm(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scales: torch.Tensor,
    weight_scales: torch.Tensor,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """x_scales[:, None] * weight_scales * (x @ weight.T) + bias; the product exact, the rest fp32.

    x: int8 [..., K], the elements of a row adjacent, rows at any one distance, as
    `quantize_per_token` gives it. weight: int8 [N, K], likewise. x_scales: fp32 [...], one a row.
    weight_scales: fp32 [N]. bias: [N] of a float type. Returns [..., N] in `dtype`: fp16, bf16 or
    fp32. K is at most 131,071, so that no sum can pass int32.
    Raises KernelInputError for tensors that do not fit.
    """
    name = "w8a8_gemm"
    require_dtype(name, "x", x, (torch.int8,))
    require_dtype(name, "weight", weight, (torch.int8,))
    require_result_dtype(name, dtype)
    x_rows = as_rows(name, "x", x)
    M, K = x_rows.shape
    if not 1 <= K <= MAX_K:
        raise KernelInputError(f"{name}: x has rows of {K}, wanted 1 to {MAX_K}")
    if weight.dim() != 2 or weight.shape[1] != K:
        raise KernelInputError(
            f"{name}: weight has shape {tuple(weight.shape)}, wanted [N, {K}] for rows of {K}"
        )
    N = weight.shape[0]
    weight_rows = as_rows(name, "weight", weight)
    tensors = {"x": x, "weight": weight, "x_scales": x_scales, "weight_scales": weight_scales}
    for scales, shape in (("x_scales", x.shape[:-1]), ("weight_scales", (N,))):
        require_dtype(name, scales, tensors[scales], (torch.float32,))
        require_shape(name, scales, tensors[scales], shape)
    if bias is not None:
        require_dtype(name, "bias", bias, FLOATS)
        require_shape(name, "bias", bias, (N,))
        tensors["bias"] = bias = bias.contiguous()
    require_runnable(name, **tensors)
    out = torch.empty((*x.shape[:-1], N), dtype=dtype, device=x.device)
    if out.numel() == 0:
        return out
    x_scales, weight_scales = x_scales.contiguous(), weight_scales.contiguous()
    launch = choose_launch(M, N, K, device_of(x))
    out_rows = out.view(M, N)
    sums = room_for_sums(out_rows, launch.splits, torch.int32)
    whole = sums is out_rows
    w8a8_gemm_kernel[(launch.tiles(M, N), launch.splits.count)](
        x_rows,
        weight_rows,
        x_scales if whole else None,
        weight_scales if whole else None,
        bias if whole else None,
        sums,
        M,
        N,
        K,
        x_rows.stride(0),
        weight_rows.stride(0),
        N,
        M * N,
        launch.splits.steps,
        BAND=BAND,
        **launch.blocks,
        **launch.options,
    )
    if not whole:
        add_splits(sums, out_rows, bias, x_scales, weight_scales)
    return out


def w8a8_gemm_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scales: torch.Tensor,
    weight_scales: torch.Tensor,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """The product of dequantized factors in `dtype`: the truth in float64, a peer in bf16."""
    left = (x.double() * x_scales.double().unsqueeze(-1)).to(dtype)
    right = (weight.double() * weight_scales.double().unsqueeze(-1)).to(dtype)
    out = left @ right.t()
    return out if bias is None else out + bias.to(dtype)


def _case(M: int, launch: Launch, dtype: str, architectures: tuple[str, ...]) -> AotCase:
    whole = launch.splits.count == 1
    scales = dict.fromkeys(("x_scales", "weight_scales"), "*fp32")
    sizes = ("M", "N", "K", "x_stride", "weight_stride", "out_stride", "split_stride", "steps")
    return AotCase(
        kernel="w8a8_gemm",
        config=f"M={M} to {dtype if whole else 'i32'} {launch} stages={launch.num_stages}",
        function=w8a8_gemm_kernel,
        arguments={
            "x": "*i8",
            "weight": "*i8",
            **({**scales, "bias": f"*{dtype}"} if whole else {}),
            "out": f"*{dtype}" if whole else "*i32",
            **dict.fromkeys(sizes, "i32"),
        },
        constants={
            **({} if whole else dict.fromkeys((*scales, "bias"))),
            "BAND": BAND,
            **launch.blocks,
        },
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        any_alignment=frozenset({"M", "steps"}),
        matrix=True,
        architectures=architectures,
    )


# Llama-3 8B: decoding (up and down projection), small batches, prefill.
AOT_CASES = tuple(
    _case(M, launch, dtype, architectures)
    for M, N, K, dtype in (
        (16, 14336, 4096, "bf16"),
        (16, 4096, 14336, "bf16"),
        (32, 14336, 4096, "fp32"),
        (64, 14336, 4096, "fp16"),
        (128, 14336, 4096, "bf16"),
    )
    for launch, architectures in launches_by_arch(partial(choose_launch, M, N, K)).items()
)
