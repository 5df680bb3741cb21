"""The int8 product: exact in integers, then as accurate as torch, under the sanitizer."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.devices import Device
from kernels.errors import KernelInputError
from kernels.quantize_int8 import quantize_per_token
from kernels.testing.accuracy import assert_as_accurate_as_torch
from kernels.testing.architectures import ARCHITECTURES
from kernels.testing.sanitizer import sanitize
from kernels.w8a8_gemm import choose_launch, w8a8_gemm, w8a8_gemm_kernel, w8a8_gemm_reference
from tests.kernels.gemm_helpers import mean_relative_error
from tests.kernels.on_device import rows_on, watched
from tests.kernels.strategies import DTYPES, SEEDS

M = st.sampled_from([1, 2, 3, 8, 16, 24, 33])
N = st.sampled_from([1, 64, 80, 257])
K = st.sampled_from([1, 64, 100, 128, 320, 512])


def integers_on(
    device: str, shape: tuple[int, int], seed: int, *, padding: int = 0, low: int = -128
) -> torch.Tensor:
    """Rows of int8 as a view, with what would spoil any sum between them."""
    generator = torch.Generator().manual_seed(seed)
    buffer = torch.full((shape[0], shape[1] + padding), 77, dtype=torch.int8, device=device)
    view = buffer[:, : shape[1]]
    view.copy_(torch.randint(low, 128, shape, generator=generator))
    return view


def exact_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """In int64, on the CPU: CUDA has no such product."""
    return (x.cpu().long() @ weight.cpu().long().t()).to(x.device)


@settings(max_examples=15)
@given(rows=M, outputs=N, inputs=K, seed=SEEDS, padding=st.sampled_from([0, 3, 16]))
def test_the_product_is_exact_in_integers(
    device: str, rows: int, outputs: int, inputs: int, seed: int, padding: int
) -> None:
    """Bit for bit with int64, by the kernel's own path without scales."""
    x = integers_on(device, (rows, inputs), seed, padding=padding)
    weight = integers_on(device, (outputs, inputs), seed + 1, padding=padding)
    launch = choose_launch(rows, outputs, inputs, Device("sm_80", (8, 0), 108, has_fp8=False))
    out = torch.empty(rows, outputs, dtype=torch.int32, device=device)
    with watched(device):
        w8a8_gemm_kernel[(launch.tiles(rows, outputs), 1)](
            x, weight, None, None, None, out, rows, outputs, inputs, x.stride(0),
            weight.stride(0), outputs, 0, launch.splits.steps, BAND=8, **launch.blocks,
            **launch.options,
        )  # fmt: skip
    assert torch.equal(out.long(), exact_product(x, weight))


@pytest.mark.parametrize("inputs", [1024, 2000])
def test_the_largest_sums_are_rounded_once_to_fp32(device: str, inputs: int) -> None:
    """-128 * -128 * K passes 2^24; K is split over programs, their sums are merged in int32."""
    x = torch.full((3, inputs), -128, dtype=torch.int8, device=device)
    x[1, ::2] = 127
    x[2, 5] = 1
    weight = integers_on(device, (40, inputs), 0)
    weight[7] = -128
    ones = torch.ones(40, device=device)
    with watched(device) as watch:
        out = w8a8_gemm(x, weight, ones[:3], ones, dtype=torch.float32)
        watch.require_written(out=out)
    assert torch.equal(out, exact_product(x, weight).float())
    assert torch.equal(out, w8a8_gemm(x, weight, ones[:3], ones, dtype=torch.float32))


@settings(max_examples=25)
@given(
    rows=M, outputs=N, inputs=K, dtype=DTYPES, seed=SEEDS,
    padding=st.sampled_from([0, 3]), bias=st.booleans(),
)  # fmt: skip
def test_any_shape_is_as_accurate_as_torch(
    device: str, rows: int, outputs: int, inputs: int, dtype: torch.dtype, seed: int,
    padding: int, bias: bool,
) -> None:  # fmt: skip
    check(device, rows, outputs, inputs, dtype, seed, padding, bias)


@pytest.mark.slow
@settings(max_examples=300)
@given(
    rows=st.integers(1, 300), outputs=st.integers(1, 300), inputs=st.integers(1, 2200),
    dtype=DTYPES, seed=SEEDS, bias=st.booleans(),
)  # fmt: skip
def test_every_shape_up_to_some_tiles_is_as_accurate_as_torch(
    device: str, rows: int, outputs: int, inputs: int, dtype: torch.dtype, seed: int, bias: bool
) -> None:
    check(device, rows, outputs, inputs, dtype, seed, 0, bias)


def check(
    device: str, rows: int, outputs: int, inputs: int, dtype: torch.dtype, seed: int,
    padding: int, bias: bool,
) -> None:  # fmt: skip
    x = integers_on(device, (rows, inputs), seed, padding=padding)
    weight = integers_on(device, (outputs, inputs), seed + 1, padding=padding)
    x_scales = rows_on(device, (rows,), torch.float32, seed).abs() / 64
    weight_scales = rows_on(device, (outputs,), torch.float32, seed + 1).abs() / 64
    addend = rows_on(device, (outputs,), dtype, seed + 2) if bias else None
    arguments = (x, weight, x_scales, weight_scales, addend)
    with watched(device) as watch:
        out = w8a8_gemm(*arguments, dtype)
        watch.require_written(out=out)
    truth = w8a8_gemm_reference(*arguments, torch.float64)
    assert_as_accurate_as_torch(out, truth, w8a8_gemm_reference(*arguments, dtype))
    if dtype != torch.bfloat16 and outputs > 1:
        assert mean_relative_error(out, truth) < 1e-3


def test_a_quantized_layer_stays_near_the_layer(device: str) -> None:
    """Both halves of W8A8 together: about one part in a hundred for normal values."""
    x = rows_on(device, (24, 512), torch.bfloat16, 0)
    dense = rows_on(device, (80, 512), torch.bfloat16, 1)
    (codes, scales), (weight, weight_scales) = quantize_per_token(x), quantize_per_token(dense)
    out = w8a8_gemm(codes, weight, scales, weight_scales, dtype=torch.float32)
    assert mean_relative_error(out, x.double() @ dense.double().t()) < 0.02


def test_a_zero_channel_is_zero_and_a_spoiled_row_spoils_no_other(device: str) -> None:
    x, dense = (
        rows_on(device, (4, 64), torch.float32, 0),
        rows_on(device, (8, 64), torch.float32, 1),
    )
    dense[5] = 0
    weight, weight_scales = quantize_per_token(dense)
    clean = w8a8_gemm(*quantize_per_token(x)[:1], weight, quantize_per_token(x)[1], weight_scales)
    assert clean[:, 5].eq(0).all()
    x[2, 3] = float("nan")
    codes, scales = quantize_per_token(x)
    out = w8a8_gemm(codes, weight, scales, weight_scales)
    others = torch.tensor([0, 1, 3], device=device)
    assert bool(out[2].isnan().all())
    assert torch.equal(out[others], clean[others])


def test_many_rows_take_several_tiles_each_way(device: str) -> None:
    check(device, 130, 129, 64, torch.bfloat16, 0, 0, True)


def test_leading_dimensions_are_rows_and_an_empty_batch_launches_nothing(device: str) -> None:
    x, weight = integers_on(device, (6, 64), 0), integers_on(device, (80, 64), 1)
    scales, weight_scales = torch.rand(6, device=device), torch.rand(80, device=device)
    out = w8a8_gemm(x.view(2, 3, 64), weight, scales.view(2, 3), weight_scales)
    assert torch.equal(out.view(6, 80), w8a8_gemm(x, weight, scales, weight_scales))
    assert w8a8_gemm(x[:0], weight, scales[:0], weight_scales).shape == (0, 80)
    assert w8a8_gemm(x, weight[:0], scales, weight_scales[:0]).shape == (6, 0)


def test_row_offsets_are_64_bit() -> None:
    x, out = integers_on("cpu", (1, 64), 0), torch.zeros(1, 1, dtype=torch.int32)
    with sanitize():
        w8a8_gemm_kernel[(1, 1)](
            x, x, None, None, None, out, 1, 1, 64, 2**30, 2**30, 2**30, 0, 1,
            BLOCK_M=16, BLOCK_N=16, BLOCK_K=64, BAND=8,
        )  # fmt: skip
    assert torch.equal(out.long(), exact_product(x, x))


@given(
    rows=st.integers(1, 5000), outputs=st.integers(1, 30000), inputs=st.integers(1, 30000),
    arch=st.sampled_from(list(ARCHITECTURES)),
)  # fmt: skip
def test_a_launch_takes_all_of_k_once(rows: int, outputs: int, inputs: int, arch: str) -> None:
    launch = choose_launch(rows, outputs, inputs, Device(arch, (0, 0), 132, has_fp8=True))
    splits, steps = launch.splits, -(-inputs // launch.block_k)
    assert (splits.count - 1) * splits.steps < steps <= splits.count * splits.steps


def test_wrong_tensors_are_refused_with_what_was_wanted() -> None:
    x, scales = torch.zeros(2, 64, dtype=torch.int8), torch.ones(2)
    with pytest.raises(KernelInputError, match="x is uint8, wanted int8"):
        w8a8_gemm(x.to(torch.uint8), x, scales, scales)
    with pytest.raises(KernelInputError, match=r"weight has shape \(2, 32\), wanted \[N, 64\]"):
        w8a8_gemm(x, x[:, :32], scales, scales)
    with pytest.raises(KernelInputError, match=r"x_scales has shape \(1,\), wanted \(2,\)"):
        w8a8_gemm(x, x, scales[:1], scales)
    with pytest.raises(KernelInputError, match="weight_scales is float16, wanted float32"):
        w8a8_gemm(x, x, scales, scales.half())
    with pytest.raises(KernelInputError, match=r"dtype torch\.int8, wanted float16"):
        w8a8_gemm(x, x, scales, scales, dtype=torch.int8)
    with pytest.raises(KernelInputError, match="x has rows of 131072, wanted 1 to 131071"):
        w8a8_gemm(x[:, :1].expand(2, 131072).contiguous(), x, scales, scales)
    with pytest.raises(KernelInputError, match=r"must be adjacent.*contiguous\(\)"):
        w8a8_gemm(x, torch.zeros(64, 2, dtype=torch.int8).t(), scales, scales)
    with pytest.raises(KernelInputError, match=r"bias has shape \(3,\), wanted \(2,\)"):
        w8a8_gemm(x, x, scales, scales, torch.ones(3))
    with pytest.raises(KernelInputError, match="x is on meta, a Triton kernel needs a GPU"):
        w8a8_gemm(*(tensor.to("meta") for tensor in (x, x, scales, scales)))
