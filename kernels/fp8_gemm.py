"""Matrix products of fp8 (e4m3) activations and weights: one scale a tensor, or scales a block.

How does DeepSeek-V3 multiply in fp8 without losing the sum? Its activations have a scale for
each 1 x 128 of a token, its weights one for each 128 x 128 block (2024, arXiv:2412.19437,
section 3.3), so every 128 of K the partial sum must be scaled before it is added, on the fp32
units. That also cures Hopper's tensor cores, which keep some 14 bits of an fp8 sum: no sum is
left to them for more than 128 products. With one scale a tensor the compiler is asked for the
same promotion. Decoding is bound by the N * K bytes of the weight, prefill by 2 * M * N * K
FLOPs at twice the rate of fp16.

Only for GPUs that multiply float8_e4m3fn: compute capability 8.9 and later. gfx942 multiplies
e4m3fnuz, another format; converting in the kernel to fp16 spills and gains nothing over it.
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
from kernels.e4m3 import E4M3_ARCHITECTURES
from kernels.errors import KernelInputError
from kernels.quantize_fp8 import require_fp8
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

SCALE_BLOCK = 128  # outputs, and inputs, that share a scale of the weight


@triton.jit(do_not_specialize=["M", "steps"])
def fp8_gemm_kernel(
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
    x_scales_stride,
    x_scales_step,
    weight_scales_stride,
    out_stride,
    split_stride,
    steps,
    SCALED_BLOCKS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BAND: tl.constexpr,
):
    """One program computes a tile of out over `steps` tiles of K, each as long as a scale's reach.

    With SCALED_BLOCKS there is a scale for each step, of each row of x and of each BLOCK_K
    outputs; without, one of x and one of the weight.
    """
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
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    if SCALED_BLOCKS:
        x_scales += m.to(tl.int64) * x_scales_stride + first.to(tl.int64) * x_scales_step
        weight_scales += tile_n * BLOCK_N // BLOCK_K * weight_scales_stride + first
    for step in range(first, last):
        in_k = step * BLOCK_K + k < K
        left = tl.load(x, mask=in_m[:, None] & in_k[None, :], other=0.0)
        right = tl.load(weight, mask=in_n[None, :] & in_k[:, None], other=0.0)
        if SCALED_BLOCKS:
            scale = tl.load(x_scales, mask=in_m, other=0.0) * tl.load(weight_scales)
            total += tl.dot(left, right) * scale[:, None]
            x_scales += x_scales_step
            weight_scales += 1
        else:
            total = tl.dot(left, right, total, max_num_imprecise_acc=BLOCK_K)
        x += BLOCK_K
        weight += BLOCK_K
    if not SCALED_BLOCKS:
        total *= tl.load(x_scales) * tl.load(weight_scales)
    if bias is not None:
        total += tl.load(bias + n, mask=in_n, other=0.0).to(tl.float32)[None, :]
    out += split.to(tl.int64) * split_stride + m.to(tl.int64)[:, None] * out_stride
    tl.store(out + n[None, :], total.to(out.dtype.element_ty), mask=in_m[:, None] & in_n[None, :])


def choose_launch(M: int, N: int, K: int, device: Device) -> Launch:
    """Tiles by M, and as many splits of K as the GPU has room for at once.

    Found with the compiler. BLOCK_K is the reach of a scale. x is the left operand: a thread then
    holds few rows of a tile, and few scales. With the weight on the left, as in `w4a16_gemm`,
    128 x 128 spilled 128 bytes on sm_90 and 1,156 on sm_100. Scales are not loaded a step ahead:
    that takes 255 registers on sm_89, and a row's next scale is in L1 already. Small tiles take
    30 to 64 KiB of shared memory, two or three on a processor with 99 KiB.
    """
    if M <= 64:
        block_m, block_n, num_warps, num_stages = max(16, triton.next_power_of_2(M)), 64, 4, 4
        resident = 3 if M <= 16 else 2
    else:
        block_m, block_n, num_warps, num_stages, resident = 128, 128, 8, 3, 1
    tiles = triton.cdiv(M, block_m) * triton.cdiv(N, block_n)
    splits = choose_splits(tiles, triton.cdiv(K, SCALE_BLOCK), resident * device.processors)
    return Launch(block_m, block_n, SCALE_BLOCK, num_warps, num_stages, splits)


def fp8_gemm(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scale: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """x_scale * weight_scale * (x @ weight.T) + bias, in fp32, rounded once.

    x: float8_e4m3fn [..., K], the elements of a row adjacent, rows at any one distance. weight:
    float8_e4m3fn [N, K], likewise. x_scale, weight_scale: fp32, one element each, on the device.
    bias: [N] of a float type. Returns [..., N] in `dtype`: fp16, bf16 or fp32.
    Raises KernelInputError for tensors that do not fit, and on GPUs without e4m3fn.
    """
    name = "fp8_gemm"
    for scale, value in (("x_scale", x_scale), ("weight_scale", weight_scale)):
        require_dtype(name, scale, value, (torch.float32,))
        if value.numel() != 1:
            raise KernelInputError(
                f"{name}: {scale} has shape {tuple(value.shape)}, wanted one element: for scales "
                "of blocks call fp8_block_gemm"
            )
    return _launch(name, x, weight, x_scale, weight_scale, bias, dtype, blocks=False)


def fp8_block_gemm(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scales: torch.Tensor,
    weight_scale_inv: torch.Tensor,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """The product of x and weight.T, each times the scales of its blocks; + bias; rounded once.

    x, weight, bias, dtype: as for `fp8_gemm`. x_scales: fp32 [..., ceil(K / 128)], as
    `quantize_fp8_groups` gives them. weight_scale_inv: fp32 [ceil(N / 128), ceil(K / 128)], one
    for each 128 x 128 block, ragged at the edges; the name is that of DeepSeek's checkpoints, and
    despite it they are multiplied with.
    Raises KernelInputError for tensors that do not fit, and on GPUs without e4m3fn.
    """
    name = "fp8_block_gemm"
    require_dtype(name, "x_scales", x_scales, (torch.float32,))
    require_dtype(name, "weight_scale_inv", weight_scale_inv, (torch.float32,))
    if x.dim() and weight.dim() == 2:
        steps = triton.cdiv(x.shape[-1], SCALE_BLOCK)
        require_shape(name, "x_scales", x_scales, (*x.shape[:-1], steps))
        wanted = (triton.cdiv(weight.shape[0], SCALE_BLOCK), steps)
        require_shape(name, "weight_scale_inv", weight_scale_inv, wanted)
    return _launch(name, x, weight, x_scales, weight_scale_inv, bias, dtype, blocks=True)


def _launch(
    name: str,
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scales: torch.Tensor,
    weight_scales: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    *,
    blocks: bool,
) -> torch.Tensor:
    require_dtype(name, "x", x, (torch.float8_e4m3fn,))
    require_dtype(name, "weight", weight, (torch.float8_e4m3fn,))
    require_result_dtype(name, dtype)
    x_rows = as_rows(name, "x", x)
    M, K = x_rows.shape
    if weight.dim() != 2 or weight.shape[1] != K or K == 0:
        raise KernelInputError(
            f"{name}: weight has shape {tuple(weight.shape)} and x rows of {K}, wanted [N, K] and "
            "rows of K, at least 1"
        )
    N = weight.shape[0]
    weight_rows = as_rows(name, "weight", weight)
    tensors = {"x": x, "weight": weight, "x_scales": x_scales, "weight_scales": weight_scales}
    if bias is not None:
        require_dtype(name, "bias", bias, FLOATS)
        require_shape(name, "bias", bias, (N,))
        tensors["bias"] = bias = bias.contiguous()
    require_runnable(name, **tensors)
    require_fp8(name, x)
    out = torch.empty((*x.shape[:-1], N), dtype=dtype, device=x.device)
    if out.numel() == 0:
        return out
    x_scales = x_scales.reshape(M if blocks else 1, -1)
    weight_scales = weight_scales.reshape(-1, x_scales.shape[1]).contiguous()
    launch = choose_launch(M, N, K, device_of(x))
    out_rows = out.view(M, N)
    sums = room_for_sums(out_rows, launch.splits)
    whole = sums is out_rows
    fp8_gemm_kernel[(launch.tiles(M, N), launch.splits.count)](
        x_rows,
        weight_rows,
        x_scales,
        weight_scales,
        bias if whole else None,
        sums,
        M,
        N,
        K,
        x_rows.stride(0),
        weight_rows.stride(0),
        *x_scales.stride(),
        weight_scales.stride(0),
        N,
        M * N,
        launch.splits.steps,
        SCALED_BLOCKS=blocks,
        BAND=BAND,
        **launch.blocks,
        **launch.options,
    )
    if not whole:
        add_splits(sums, out_rows, bias)
    return out


def fp8_gemm_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scales: torch.Tensor,
    weight_scales: torch.Tensor,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """The product of dequantized factors in `dtype`: the truth in float64, a peer in bf16.

    x: [M, K]. Scales of one element, or of blocks as for `fp8_block_gemm`.
    """
    (N, K), left_scales, right_scales = weight.shape, x_scales.double(), weight_scales.double()
    if weight_scales.numel() > 1 or x_scales.numel() > 1:
        left_scales = left_scales.repeat_interleave(SCALE_BLOCK, -1)[..., :K]
        right_scales = right_scales.repeat_interleave(SCALE_BLOCK, 0)[:N]
        right_scales = right_scales.repeat_interleave(SCALE_BLOCK, 1)[:, :K]
    left = (x.double() * left_scales).to(dtype)
    out = left @ (weight.double() * right_scales).to(dtype).t()
    return out if bias is None else out + bias.to(dtype)


def _case(M: int, launch: Launch, architectures: tuple[str, ...], blocks: bool) -> AotCase:
    whole = launch.splits.count == 1
    pointers = {"x": "*fp8e4nv", "weight": "*fp8e4nv"}
    scales = ("x_scales_stride", "x_scales_step", "weight_scales_stride")
    sizes = ("N", "K", "x_stride", "weight_stride", "out_stride", "split_stride")
    return AotCase(
        kernel="fp8_block_gemm" if blocks else "fp8_gemm",
        config=f"M={M} to {'bf16' if whole else 'fp32'} {launch}",
        function=fp8_gemm_kernel,
        arguments={
            **pointers,
            **dict.fromkeys(("x_scales", "weight_scales"), "*fp32"),
            **({"bias": "*bf16"} if whole else {}),
            "out": "*bf16" if whole else "*fp32",
            **dict.fromkeys((*sizes, *scales, "M", "steps"), "i32"),
        },
        constants={
            **({} if whole else {"bias": None}),
            "SCALED_BLOCKS": blocks,
            "BAND": BAND,
            **launch.blocks,
        },
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        any_alignment=frozenset({"M", "steps", *scales}),
        matrix=True,
        architectures=architectures,
    )


# Llama-3 8B: decoding (up and down projection), small batches, prefill.
AOT_CASES = tuple(
    _case(M, launch, architectures, blocks)
    for blocks in (False, True)
    for M, N, K in (
        (16, 14336, 4096),
        (16, 4096, 14336),
        (32, 14336, 4096),
        (64, 14336, 4096),
        (128, 14336, 4096),
    )
    for launch, architectures in launches_by_arch(
        partial(choose_launch, M, N, K), E4M3_ARCHITECTURES
    ).items()
)
