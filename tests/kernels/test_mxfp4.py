"""MXFP4 as ml_dtypes and gguf read it, bit for bit, under the sanitizer."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import KernelInputError
from kernels.mxfp4 import (
    E2M1_VALUES,
    dequantize_mxfp4,
    dequantize_mxfp4_kernel,
    dequantize_mxfp4_reference,
    from_gguf_mxfp4,
)
from kernels.testing.builder import FaithfulBuilder
from kernels.testing.sanitizer import sanitize
from tests.kernels.on_device import first_grid, rows_on, watched
from tests.kernels.strategies import DTYPES, SEEDS


def bytes_on(device: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, generator=generator).to(torch.uint8).to(device)


def assert_same_bits(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Equal with the signs of zeros, NaN in the same places."""
    assert got.dtype == wanted.dtype
    torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)
    numbers = ~wanted.isnan()
    assert torch.equal(got.signbit()[numbers], wanted.signbit()[numbers])


@settings(max_examples=30)
@given(shape=st.sampled_from([(1,), (3,), (2, 5), (70,), (2, 3, 2)]), dtype=DTYPES, seed=SEEDS)
def test_any_bytes_are_the_numbers_they_stand_for(
    device: str, shape: tuple[int, ...], dtype: torch.dtype, seed: int
) -> None:
    codes = bytes_on(device, (*shape[:-1], 16 * shape[-1]), seed)
    scales = bytes_on(device, shape, seed + 1)
    with watched(device) as watch:
        out = dequantize_mxfp4(codes, scales, dtype)
        watch.require_written(out=out)
    assert_same_bits(out, dequantize_mxfp4_reference(codes, scales).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_scale_of_every_code_is_as_in_ml_dtypes(device: str, dtype: torch.dtype) -> None:
    """2^-127 is no normal fp32, 255 is NaN, 6 * 2^127 is infinite; the low nibble comes first."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    codes = torch.arange(256, dtype=torch.uint8).view(1, 256).repeat(256, 1)
    scales = torch.arange(256, dtype=torch.uint8).view(256, 1).repeat(1, 16)
    nibbles = torch.stack((codes & 15, codes >> 4), -1).flatten(1)
    values = nibbles.numpy().view(ml_dtypes.float4_e2m1fn).astype("f8")
    factors = scales.repeat_interleave(32, 1).numpy().view(ml_dtypes.float8_e8m0fnu).astype("f8")
    wanted = torch.from_numpy(values * factors).to(dtype)
    out = dequantize_mxfp4(codes.to(device), scales.to(device), dtype).cpu()
    assert_same_bits(out, wanted)
    assert out[255].isnan().all()
    if dtype != torch.float16:
        assert float(out[0, 2].abs()) == 2.0**-128  # byte 1: code 1 is a half


def test_bf16_holds_every_number_exactly(device: str) -> None:
    codes = torch.arange(256, dtype=torch.uint8, device=device).view(1, 256).repeat(255, 1)
    scales = torch.arange(255, dtype=torch.uint8, device=device).view(255, 1).repeat(1, 16)
    exact = dequantize_mxfp4_reference(codes, scales)
    held = exact.abs() <= torch.finfo(torch.bfloat16).max
    out = dequantize_mxfp4(codes, scales)
    assert torch.equal(out.double()[held], exact[held])
    assert bool(out[~held].isinf().all())


def test_gguf_blocks_are_read_as_by_gguf(device: str) -> None:
    """Quantized and dequantized by gguf, whose high nibbles are the second half of a block."""
    gguf = pytest.importorskip("gguf")
    kind = gguf.GGMLQuantizationType.MXFP4
    dense = torch.cat((rows_on("cpu", (6, 96), torch.float32, 0), torch.zeros(1, 96)))
    data = gguf.quants.quantize(dense.numpy(), kind)
    wanted = torch.from_numpy(gguf.quants.dequantize(data, kind))
    codes, scales = from_gguf_mxfp4(torch.from_numpy(data))
    assert codes.shape == (7, 48)
    assert scales.shape == (7, 3)
    out = dequantize_mxfp4(codes.to(device), scales.to(device), torch.float32)
    assert torch.equal(out.cpu(), wanted)


def test_codes_are_the_table_and_then_the_table_with_a_sign(device: str) -> None:
    """Scale 127 is one."""
    codes = torch.arange(16, dtype=torch.uint8, device=device)
    codes = (codes[::2] | codes[1::2] << 4).repeat(2)
    out = dequantize_mxfp4(codes, codes.new_full((1,), 127), torch.float32)
    assert out[:8].tolist() == list(E2M1_VALUES)
    assert out[8:16].tolist() == [-value for value in E2M1_VALUES]
    assert bool(out[8].signbit())


def test_scales_may_have_their_own_type_and_codes_any_strides(device: str) -> None:
    codes, scales = bytes_on(device, (4, 32), 0), bytes_on(device, (4, 2), 1)
    out = dequantize_mxfp4(codes, scales)
    assert_same_bits(dequantize_mxfp4(codes, scales.view(torch.float8_e8m0fnu)), out)
    turned = dequantize_mxfp4(codes.t().contiguous().t(), scales.t().contiguous().t())
    assert_same_bits(turned, out)


def test_more_than_65535_programs_fit_the_grid() -> None:
    """They lie along its x axis: y and z end at 65,535."""
    codes = torch.zeros(65_537 * 64, 16, dtype=torch.uint8)
    assert first_grid(lambda: dequantize_mxfp4(codes, codes[:, :1])) == (65_537, 1, 1)


def test_block_offsets_are_64_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program far along, all of it masked off: numbers beyond 2^31 have no place in int32."""
    far = (2**25, 0, 0)
    monkeypatch.setattr(
        FaithfulBuilder, "set_grid_idx", lambda self, *place: setattr(self, "grid_idx", far)
    )
    byte = torch.zeros(16, dtype=torch.uint8)
    with sanitize():
        dequantize_mxfp4_kernel[(1,)](byte, byte, torch.zeros(1), 0, BLOCKS=64)


def test_an_empty_tensor_launches_nothing(device: str) -> None:
    codes = torch.zeros(0, 16, dtype=torch.uint8, device=device)
    assert dequantize_mxfp4(codes, codes[:, :1]).shape == (0, 32)
    assert dequantize_mxfp4(codes.new_zeros(3, 0), codes.new_zeros(3, 0)).shape == (3, 0)


def test_wrong_tensors_are_refused_with_what_was_wanted() -> None:
    codes, scales = torch.zeros(2, 32, dtype=torch.uint8), torch.zeros(2, 2, dtype=torch.uint8)
    with pytest.raises(KernelInputError, match="codes is int8, wanted uint8"):
        dequantize_mxfp4(codes.to(torch.int8), scales)
    with pytest.raises(KernelInputError, match="scales is float32, wanted uint8 or float8_e8m0fnu"):
        dequantize_mxfp4(codes, scales.float())
    with pytest.raises(KernelInputError, match=r"codes have shape \(2, 17\), wanted \[\.\.\., K/2"):
        dequantize_mxfp4(codes[:, :17], scales)
    with pytest.raises(KernelInputError, match=r"scales has shape \(2, 1\), wanted \(2, 2\)"):
        dequantize_mxfp4(codes, scales[:, :1])
    with pytest.raises(KernelInputError, match=r"dtype torch\.float64, wanted float16"):
        dequantize_mxfp4(codes, scales, torch.float64)
    with pytest.raises(KernelInputError, match="codes is on meta, a Triton kernel needs a GPU"):
        dequantize_mxfp4(codes.to("meta"), scales.to("meta"))
    with pytest.raises(KernelInputError, match="rows of a multiple of 17 bytes"):
        from_gguf_mxfp4(codes)
