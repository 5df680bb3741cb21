"""Measurements of the quantized matrix products: a decode, bound by the weight's bytes, and a
prefill, held against torch's own product of the same types, or of bf16 where it has none."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F

from kernels.bench_case import Case, Run, Sizes
from kernels.fp8_gemm import fp8_block_gemm, fp8_gemm
from kernels.mxfp4 import dequantize_mxfp4
from kernels.w4_packing import pack_int4
from kernels.w4a16_gemm import w4a16_gemm
from kernels.w8a8_gemm import w8a8_gemm

GROUP = 128


def products(sizes: Sizes, device: str) -> Iterator[Case]:
    """The up projection of a layer, [tokens, hidden] by [hidden, intermediate], all in bf16 out."""
    for tokens in (1, sizes.decodes, sizes.tokens):
        x = torch.randn(tokens, sizes.hidden, device=device, dtype=torch.bfloat16)
        yield from _products(x, sizes, tokens == sizes.tokens)
    rows, columns = sizes.intermediate, sizes.hidden
    codes = torch.randint(0, 256, (rows, columns // 2), device=device).byte()
    scales = torch.full((rows, columns // 32), 127, device=device).byte()
    moved = rows * columns * (0.5 + 1 / 32 + 2)
    run = partial(dequantize_mxfp4, codes, scales)
    yield Case("dequantize_mxfp4", f"bf16 {rows}x{columns}", run, bytes=moved)


def _products(x: torch.Tensor, sizes: Sizes, is_prefill: bool) -> Iterator[Case]:
    (M, K), N = x.shape, sizes.intermediate
    weight = torch.randn(N, K, device=x.device, dtype=torch.bfloat16)
    shape = f"{M}x{K} by {K}x{N}"
    outside = M * N * 2

    def case(name: str, run: Run, moved: float, **peers: Run) -> Case:
        if is_prefill:
            return Case(name, shape, run, flops=2.0 * M * N * K, peers=peers)
        return Case(name, shape, run, bytes=moved + outside)

    in_bf16 = partial(F.linear, x, weight)
    codes = torch.randint(0, 16, (K, N), device=x.device)
    scales = torch.rand(-(-K // GROUP), N, device=x.device).bfloat16()
    packed = pack_int4(codes, scales, None, GROUP)
    run = partial(w4a16_gemm, x, packed)
    moved = packed.codes.nbytes + packed.words.nbytes + x.nbytes
    yield case("w4a16_gemm", run, moved, **{"torch bf16": in_bf16})

    x_8, weight_8 = (torch.randint(-127, 128, (rows, K), device=x.device).char() for rows in (M, N))
    x_scales, weight_scales = torch.rand(M, device=x.device), torch.rand(N, device=x.device)
    run = partial(w8a8_gemm, x_8, weight_8, x_scales, weight_scales)
    peer = partial(torch._int_mm, x_8, weight_8.t())
    yield case("w8a8_gemm", run, weight_8.nbytes + x_8.nbytes, **{"torch int8": peer})

    x_8, weight_8 = x.to(torch.float8_e4m3fn), weight.to(torch.float8_e4m3fn)
    scale = torch.ones(1, device=x.device)
    run = partial(fp8_gemm, x_8, weight_8, scale, scale)
    peer = partial(
        torch._scaled_mm, x_8, weight_8.t(), scale.view(()), scale.view(()),
        out_dtype=torch.bfloat16,
    )  # fmt: skip
    yield case("fp8_gemm", run, weight_8.nbytes + x_8.nbytes, **{"torch fp8": peer})

    x_scales = torch.rand(M, -(-K // GROUP), device=x.device)
    blocks = torch.rand(-(-N // GROUP), -(-K // GROUP), device=x.device)
    run = partial(fp8_block_gemm, x_8, weight_8, x_scales, blocks)
    moved = weight_8.nbytes + x_8.nbytes + x_scales.nbytes
    yield case("fp8_block_gemm", run, moved, **{"torch bf16": in_bf16})
