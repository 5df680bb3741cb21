"""The same numbers through packages that others wrote: torchao and bitsandbytes, on the CPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.mxfp4 import dequantize_mxfp4
from kernels.quantize_fp8 import quantize_fp8_groups, quantize_fp8_per_tensor
from kernels.quantize_int8 import quantize_per_token
from kernels.testing.accuracy import assert_as_accurate_as_torch
from kernels.w4_packing import pack_int4
from kernels.w4a16_gemm import w4a16_gemm
from kernels.w8a8_gemm import w8a8_gemm
from tests.kernels.strategies import SEEDS

torchao = pytest.importorskip("torchao.quantization.quant_primitives")
bitsandbytes = pytest.importorskip("bitsandbytes.functional")

E4M3 = torch.float8_e4m3fn


def numbers(seed: int, *shape: int, spread: float = 1.0) -> torch.Tensor:
    """Rows of very different sizes."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(shape[0], 1, generator=generator).mul(spread).exp()
    return torch.randn(*shape, generator=generator) * rows


@given(SEEDS)
def test_int8_codes_of_tokens_are_those_of_bitsandbytes(device: str, seed: int) -> None:
    x = numbers(seed, 5, 96, spread=3.0).clamp(-6e4, 6e4).half()  # infinity has no scale
    codes, scales = quantize_per_token(x.to(device))
    theirs, largest, _ = bitsandbytes.int8_vectorwise_quant(x)
    torch.testing.assert_close(scales.cpu() * 127, largest, rtol=2**-22, atol=0)
    # Only at a tie may the two round to different sides: x / scale, or x * (127 / largest).
    difference = (codes.cpu().int() - theirs.int()).abs()
    exact = x.double() * 127 / largest.double()[:, None]
    from_tie = (exact % 1.0 - 0.5).abs()
    assert difference.max() <= 1
    assert bool((from_tie[difference == 1] < 1e-5).all())


@given(SEEDS)
def test_an_int8_product_is_that_of_bitsandbytes(device: str, seed: int) -> None:
    x, weight = numbers(seed, 5, 96).half(), numbers(seed + 1, 40, 96).half()
    x_codes, x_largest, _ = bitsandbytes.int8_vectorwise_quant(x)
    codes, largest, _ = bitsandbytes.int8_vectorwise_quant(weight)
    sums = bitsandbytes.int8_linear_matmul(x_codes, codes)
    theirs = bitsandbytes.int8_mm_dequant(sums, x_largest, largest)
    given_ = (x_codes, codes, x_largest / 127, largest / 127)
    ours = w8a8_gemm(*(tensor.to(device) for tensor in given_), dtype=torch.float16)
    torch.testing.assert_close(ours.cpu(), theirs, rtol=2**-10, atol=1e-6)


@given(SEEDS, st.sampled_from([torch.float32, torch.bfloat16]))
def test_mxfp4_blocks_are_read_as_torchao_reads_them(
    device: str, seed: int, dtype: torch.dtype
) -> None:
    mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    theirs = mx.MXTensor.to_mx(numbers(seed, 6, 96, spread=8.0), torch.float4_e2m1fn_x2, 32)
    scales, codes = theirs.scale, theirs.qdata
    ours = dequantize_mxfp4(codes.to(device), scales.to(device), dtype)
    assert torch.equal(ours.cpu(), theirs.dequantize(dtype))


@given(SEEDS, st.booleans())
def test_fp8_codes_are_those_of_torchao(device: str, seed: int, of_groups: bool) -> None:
    x = numbers(seed, 4, 256, spread=3.0)
    if of_groups:
        codes, scales = quantize_fp8_groups(x.to(device))
        block, scales = (1, 128), scales.cpu()
    else:
        codes, scale = quantize_fp8_per_tensor(x.to(device))
        block, scales = tuple(x.shape), scale.cpu().view(1, 1)
    theirs = torchao._choose_scale_float8(x, block_size=block, float8_dtype=E4M3)
    torch.testing.assert_close(scales, theirs, rtol=2**-22, atol=0)
    expected = torchao._quantize_affine_float8(x, scales, E4M3)
    assert torch.equal(codes.cpu().float(), expected.float())


@given(SEEDS, st.sampled_from([32, 64, 128]), st.booleans())
def test_4_bit_weights_of_torchao_multiply_as_it_reads_them(
    device: str, seed: int, group: int, symmetric: bool
) -> None:
    weight = numbers(seed, 48, 256)
    block, limits = (1, group), (-8, 7) if symmetric else (0, 15)
    kind = torchao.MappingType.SYMMETRIC if symmetric else torchao.MappingType.ASYMMETRIC
    scales, zeros = torchao.choose_qparams_affine(
        weight, kind, block, torch.int8, *limits, scale_dtype=torch.bfloat16
    )
    codes = torchao.quantize_affine(weight, block, scales, zeros, torch.int8, *limits)
    read = torchao.dequantize_affine(
        codes, block, scales, zeros, torch.int8, *limits, output_dtype=torch.float32
    )
    packed = pack_int4(
        (codes + (8 if symmetric else 0)).t().contiguous().to(device),
        scales.t().to(device),
        None if symmetric else zeros.int().t().to(device),
        group,
    )
    x = numbers(seed + 1, 3, 256).bfloat16()
    ours = w4a16_gemm(x.to(device), packed)
    truth = x.double() @ read.double().t()
    assert_as_accurate_as_torch(ours.cpu(), truth, x @ read.bfloat16().t())
