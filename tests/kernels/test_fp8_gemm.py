"""The fp8 products against float64 on exactly dequantized factors, under the sanitizer."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kernels.quantize_fp8
from kernels.devices import Device
from kernels.e4m3 import E4M3_ARCHITECTURES
from kernels.errors import KernelInputError
from kernels.fp8_gemm import (
    choose_launch,
    fp8_block_gemm,
    fp8_gemm,
    fp8_gemm_kernel,
    fp8_gemm_reference,
)
from kernels.quantize_fp8 import quantize_fp8_groups, quantize_fp8_per_tensor
from kernels.testing.accuracy import assert_as_accurate_as_torch
from kernels.testing.sanitizer import sanitize
from tests.kernels.gemm_helpers import mean_relative_error
from tests.kernels.on_device import rows_on, watched
from tests.kernels.strategies import DTYPES, SEEDS

M = st.sampled_from([1, 2, 3, 8, 16, 24, 33])
N = st.sampled_from([1, 64, 80, 257])
K = st.sampled_from([1, 64, 100, 128, 320, 512])
NAN = 0x7F


def fp8_on(device: str, shape: tuple[int, int], seed: int, *, padding: int = 0) -> torch.Tensor:
    """Rows of normal values as a view, with NaN between them."""
    values = rows_on("cpu", shape, torch.float32, seed).to(torch.float8_e4m3fn)
    buffer = torch.full((shape[0], shape[1] + padding), NAN, dtype=torch.uint8, device=device)
    view = buffer[:, : shape[1]]
    view.copy_(values.view(torch.uint8))
    return view.view(torch.float8_e4m3fn)


def scales_on(device: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return ((torch.rand(shape, generator=generator) + 0.5) / 16).to(device)


def check(
    device: str, rows: int, outputs: int, inputs: int, dtype: torch.dtype, seed: int,
    *, blocks: bool, padding: int = 0, bias: bool = True,
) -> None:  # fmt: skip
    x = fp8_on(device, (rows, inputs), seed, padding=padding)
    weight = fp8_on(device, (outputs, inputs), seed + 1, padding=padding)
    steps = -(-inputs // 128)
    x_scales = scales_on(device, (rows, steps) if blocks else (1,), seed)
    weight_scales = scales_on(device, (-(-outputs // 128), steps) if blocks else (1,), seed + 1)
    addend = rows_on(device, (outputs,), dtype, seed + 2) if bias else None
    arguments = (x, weight, x_scales, weight_scales, addend)
    with watched(device) as watch:
        out = (fp8_block_gemm if blocks else fp8_gemm)(*arguments, dtype)
        watch.require_written(out=out)
    truth = fp8_gemm_reference(*arguments, torch.float64)
    assert_as_accurate_as_torch(out, truth, fp8_gemm_reference(*arguments, dtype))
    if dtype != torch.bfloat16 and outputs > 1:
        assert mean_relative_error(out, truth) < 1e-3


@settings(max_examples=30)
@given(
    rows=M, outputs=N, inputs=K, dtype=DTYPES, seed=SEEDS, blocks=st.booleans(),
    padding=st.sampled_from([0, 3, 16]), bias=st.booleans(),
)  # fmt: skip
def test_any_shape_is_as_accurate_as_torch(
    device: str, rows: int, outputs: int, inputs: int, dtype: torch.dtype, seed: int,
    blocks: bool, padding: int, bias: bool,
) -> None:  # fmt: skip
    """Blocks are ragged at both edges; NaN lies between the rows of both factors."""
    check(device, rows, outputs, inputs, dtype, seed, blocks=blocks, padding=padding, bias=bias)


@pytest.mark.slow
@settings(max_examples=300)
@given(
    rows=st.integers(1, 300), outputs=st.integers(1, 300), inputs=st.integers(1, 2200),
    dtype=DTYPES, seed=SEEDS, blocks=st.booleans(), bias=st.booleans(),
)  # fmt: skip
def test_every_shape_up_to_some_tiles_is_as_accurate_as_torch(
    device: str, rows: int, outputs: int, inputs: int, dtype: torch.dtype, seed: int,
    blocks: bool, bias: bool,
) -> None:  # fmt: skip
    check(device, rows, outputs, inputs, dtype, seed, blocks=blocks, bias=bias)


@pytest.mark.parametrize("blocks", [False, True])
def test_long_rows_are_split_and_merged_the_same_way_every_time(device: str, blocks: bool) -> None:
    inputs = 9 * 128 + 1
    gpu = Device("sm_90", (9, 0), 132, has_fp8=True)
    assert choose_launch(3, 80, inputs, gpu).splits.count > 1
    check(device, 3, 80, inputs, torch.float16, 0, blocks=blocks)
    x, weight = fp8_on(device, (3, inputs), 0), fp8_on(device, (80, inputs), 1)
    one = torch.ones(1, device=device)
    assert torch.equal(fp8_gemm(x, weight, one, one), fp8_gemm(x, weight, one, one))


def test_each_block_has_its_own_scale(device: str) -> None:
    """Ones throughout: an output is the sum of its blocks' scales times their lengths."""
    x = torch.ones(2, 200, device=device).to(torch.float8_e4m3fn)
    weight = torch.ones(130, 200, device=device).to(torch.float8_e4m3fn)
    x_scales = torch.tensor([[1.0, 2.0], [4.0, 8.0]], device=device)
    weight_scales = torch.tensor([[1.0, 16.0], [0.5, 0.25]], device=device)
    out = fp8_block_gemm(x, weight, x_scales, weight_scales, dtype=torch.float32)
    first = [128 * 1 + 72 * 2 * 16, 128 * 4 + 72 * 8 * 16]
    second = [128 * 0.5 + 72 * 2 * 0.25, 128 * 4 * 0.5 + 72 * 8 * 0.25]
    assert out[:, 127].tolist() == first
    assert out[:, 128].tolist() == second


def test_scales_may_lie_in_any_order(device: str) -> None:
    """Column by column, as TMA kernels want them."""
    x, weight = fp8_on(device, (5, 300), 0), fp8_on(device, (80, 300), 1)
    scales, weight_scales = scales_on(device, (5, 3), 0), scales_on(device, (1, 3), 1)
    turned = scales.t().contiguous().t()
    assert turned.stride() == (1, 5)
    out = fp8_block_gemm(x, weight, turned, weight_scales)
    assert torch.equal(out, fp8_block_gemm(x, weight, scales, weight_scales))


def test_an_outlier_costs_its_block_and_not_the_tensor(device: str) -> None:
    """Why DeepSeek scales blocks: one value of 10,000 takes small ones below e4m3's least."""
    x, dense = (
        rows_on(device, (4, 256), torch.float32, 0),
        rows_on(device, (80, 256), torch.float32, 1),
    )
    x /= 64
    x[0, 0] = 1e4
    truth = (x.double() @ dense.double().t())[1:]
    weight, weight_scale = quantize_fp8_per_tensor(dense)
    codes, scale = quantize_fp8_per_tensor(x)
    whole = fp8_gemm(codes, weight, scale, weight_scale, dtype=torch.float32)[1:]
    codes, scales = quantize_fp8_groups(x)
    inverse = weight_scale.expand(1, 2)
    blocks = fp8_block_gemm(codes, weight, scales, inverse, dtype=torch.float32)[1:]
    assert mean_relative_error(blocks, truth) < 0.05 < 0.2 < mean_relative_error(whole, truth)


def test_zeros_stay_zero_and_a_spoiled_row_spoils_no_other(device: str) -> None:
    x, dense = (
        rows_on(device, (4, 128), torch.float32, 0),
        rows_on(device, (8, 128), torch.float32, 1),
    )
    x[1] = 0
    weight, weight_scale = quantize_fp8_per_tensor(dense)
    clean = fp8_block_gemm(*_quantized(x, weight, weight_scale))
    assert clean[1].eq(0).all()
    x[2, 3] = float("nan")
    out = fp8_block_gemm(*_quantized(x, weight, weight_scale))
    others = torch.tensor([0, 1, 3], device=device)
    assert bool(out[2].isnan().all())
    assert torch.equal(out[others], clean[others])


def _quantized(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    codes, scales = quantize_fp8_groups(x)
    return codes, weight, scales, scale.view(1, 1)


def test_many_rows_take_several_tiles_each_way(device: str) -> None:
    check(device, 130, 129, 64, torch.bfloat16, 0, blocks=True)


def test_leading_dimensions_are_rows_and_an_empty_batch_launches_nothing(device: str) -> None:
    x, weight = fp8_on(device, (6, 64), 0), fp8_on(device, (80, 64), 1)
    scales, weight_scales = scales_on(device, (6, 1), 0), scales_on(device, (1, 1), 1)
    out = fp8_block_gemm(x.view(2, 3, 64), weight, scales.view(2, 3, 1), weight_scales)
    assert torch.equal(out.view(6, 80), fp8_block_gemm(x, weight, scales, weight_scales))
    assert fp8_block_gemm(x[:0], weight, scales[:0], weight_scales).shape == (0, 80)
    assert fp8_gemm(x[:0], weight, weight_scales, weight_scales).shape == (0, 80)


def test_row_offsets_are_64_bit() -> None:
    x, out, one = fp8_on("cpu", (1, 128), 0), torch.zeros(1, 1), torch.ones(1)
    with sanitize():
        fp8_gemm_kernel[(1, 1)](
            x, x, one, one, None, out, 1, 1, 128, 2**30, 2**30, 2**30, 1, 1, 2**30, 0, 1,
            SCALED_BLOCKS=True, BLOCK_M=16, BLOCK_N=16, BLOCK_K=128, BAND=8,
        )  # fmt: skip
    assert torch.allclose(out[0, 0], x.float().square().sum())


@given(
    rows=st.integers(1, 5000), outputs=st.integers(1, 30000), inputs=st.integers(1, 30000),
    arch=st.sampled_from(E4M3_ARCHITECTURES),
)  # fmt: skip
def test_a_launch_takes_all_of_k_once_and_no_tile_crosses_a_scale(
    rows: int, outputs: int, inputs: int, arch: str
) -> None:
    launch = choose_launch(rows, outputs, inputs, Device(arch, (0, 0), 132, has_fp8=True))
    splits, steps = launch.splits, -(-inputs // 128)
    assert (splits.count - 1) * splits.steps < steps <= splits.count * splits.steps
    assert launch.block_k == 128
    assert 128 % launch.block_n == 0


def test_gpus_without_this_fp8_are_refused(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    gpu = Device("sm_80", (8, 0), 108, has_fp8=False)
    monkeypatch.setattr(kernels.quantize_fp8, "device_of", lambda tensor: gpu)
    x, one = fp8_on(device, (2, 64), 0), torch.ones(1, device=device)
    with pytest.raises(KernelInputError, match=r"fp8_gemm: compute capability 8\.0 has no fp8"):
        fp8_gemm(x, x, one, one)


def test_wrong_tensors_are_refused_with_what_was_wanted() -> None:
    x, one = fp8_on("cpu", (2, 64), 0), torch.ones(1)
    block = torch.ones(1, 1)
    with pytest.raises(KernelInputError, match="x is float16, wanted float8_e4m3fn"):
        fp8_gemm(x.half(), x, one, one)
    with pytest.raises(KernelInputError, match="weight is float8_e5m2, wanted float8_e4m3fn"):
        fp8_gemm(x, x.float().to(torch.float8_e5m2), one, one)
    with pytest.raises(KernelInputError, match=r"weight has shape \(2, 32\) and x rows of 64"):
        fp8_gemm(x, x[:, :32], one, one)
    with pytest.raises(KernelInputError, match=r"x_scale has shape \(2,\), wanted one element: "):
        fp8_gemm(x, x, torch.ones(2), one)
    with pytest.raises(KernelInputError, match="weight_scale is float64, wanted float32"):
        fp8_gemm(x, x, one, one.double())
    with pytest.raises(KernelInputError, match=r"x_scales has shape \(1, 1\), wanted \(2, 1\)"):
        fp8_block_gemm(x, x, block, block)
    with pytest.raises(KernelInputError, match=r"weight_scale_inv has shape \(2, 1\), wanted \(1"):
        fp8_block_gemm(x, x, block.expand(2, 1), block.expand(2, 1))
    with pytest.raises(KernelInputError, match=r"dtype torch\.int8, wanted float16"):
        fp8_gemm(x, x, one, one, dtype=torch.int8)
    with pytest.raises(KernelInputError, match=r"bias has shape \(3,\), wanted \(2,\)"):
        fp8_gemm(x, x, one, one, torch.ones(3))
    with pytest.raises(KernelInputError, match="x is on meta, a Triton kernel needs a GPU"):
        fp8_gemm(*(tensor.to("meta") for tensor in (x, x, one, one)))
