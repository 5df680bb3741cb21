"""fp32 to e4m3 by integer operations, against the reference codec and ml_dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings

from kernels.e4m3 import convert_to_e4m3, e4m3_values
from kernels.testing.float_codecs import encode, float_format
from tests.kernels.strategies import SEEDS

E4M3 = float_format("fp8e4nv")


@triton.jit
def convert_kernel(source, target, count, BLOCK: tl.constexpr, NATIVE: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = place < count
    values = tl.load(source + place, mask=mask, other=0.0)
    tl.store(target + place, convert_to_e4m3(values, NATIVE), mask=mask)


def codes_of(values: torch.Tensor, device: str, *, native: bool = False) -> np.ndarray:
    target = torch.zeros(values.numel(), dtype=torch.uint8, device=device)
    grid = (triton.cdiv(values.numel(), 65536),)
    convert_kernel[grid](
        values.float().to(device), target, values.numel(), BLOCK=65536, NATIVE=native
    )
    return target.cpu().numpy()


def bit_patterns(seed: int, count: int) -> torch.Tensor:
    """fp32 of every exponent and sign, NaN and subnormals among them."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(-(2**31), 2**31, (count,), generator=generator)
    return numbers.to(torch.int32).view(torch.float32)


@pytest.mark.parametrize("native", [False, True])
def test_every_half_precision_number_gets_its_nearest_code(device: str, native: bool) -> None:
    every = torch.arange(65536).to(torch.int16).view(torch.float16)
    codes = codes_of(every, device, native=native)
    wanted = encode(every.float().numpy(), E4M3)
    number = ~every.isnan().numpy()
    assert np.array_equal(codes[number], wanted[number])
    assert ((codes[~number] & 0x7F) == 0x7F).all()  # NaN stays NaN, of either sign


@settings(max_examples=20)
@given(seed=SEEDS)
def test_every_float32_gets_its_nearest_code(device: str, seed: int) -> None:
    values = bit_patterns(seed, 65536)
    codes, wanted = codes_of(values, device), encode(values.numpy(), E4M3)
    number = ~values.isnan().numpy()
    assert np.array_equal(codes[number], wanted[number])
    assert ((codes[~number] & 0x7F) == 0x7F).all()


@settings(max_examples=20)
@given(seed=SEEDS)
def test_numbers_in_range_are_rounded_as_ml_dtypes_rounds_them(device: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.empty(4096).uniform_(-13, 8.8, generator=generator)
    values = exponents.exp2() * torch.randn(4096, generator=generator).sign()
    values = values.clamp(-464, 464)
    wanted = values.numpy().astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    assert np.array_equal(codes_of(values, device), wanted)


def test_ties_go_to_the_even_code_and_their_neighbours_to_the_nearer(device: str) -> None:
    """Between each two of the 127 finite magnitudes, subnormals included, and zero."""
    magnitudes = np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    ties = (magnitudes[1:] + magnitudes[:-1]) / 2
    below, above = np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(1e9))
    lower = np.arange(126, dtype=np.uint8)
    for values, wanted in ((below, lower), (ties, lower + lower % 2), (above, lower + 1)):
        assert np.array_equal(codes_of(torch.from_numpy(values), device), wanted)
        assert np.array_equal(codes_of(torch.from_numpy(-values), device), wanted | 0x80)


def test_what_is_too_large_saturates(device: str) -> None:
    """ml_dtypes gives NaN beyond 464; a GPU's conversion gives 448, and so do we."""
    values = torch.tensor([448.0, 464.0, 465.0, 480.0, 1e9, float("inf"), 0.0, -0.0])
    wanted = [0x7E] * 6 + [0x00, 0x80]
    assert codes_of(values, device).tolist() == wanted
    assert codes_of(-values, device).tolist() == [code ^ 0x80 for code in wanted]


@pytest.mark.slow
@settings(max_examples=300)
@given(seed=SEEDS)
def test_nearest_codes_widely(device: str, seed: int) -> None:
    values = bit_patterns(seed, 2**20)
    codes, wanted = codes_of(values, device), encode(values.numpy(), E4M3)
    number = ~values.isnan().numpy()
    assert np.array_equal(codes[number], wanted[number])


@triton.jit
def decode_kernel(codes, out, COUNT: tl.constexpr):
    place = tl.arange(0, COUNT)
    tl.store(out + place, e4m3_values(tl.load(codes + place)).to(out.dtype.element_ty))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_all_256_codes_are_the_numbers_that_torch_reads(device: str, dtype: torch.dtype) -> None:
    """Subnormals, both zeros and both NaN among them; every one has its place in bf16 too."""
    codes = torch.arange(256, dtype=torch.uint8, device=device)
    out = torch.empty(256, dtype=dtype, device=device)
    decode_kernel[(1,)](codes, out, COUNT=256)
    wanted = codes.view(torch.float8_e4m3fn).to(dtype)
    torch.testing.assert_close(out, wanted, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(out.signbit()[:127], wanted.signbit()[:127])
    assert torch.equal(out.signbit()[128:255], wanted.signbit()[128:255])
    assert out.isnan().nonzero().flatten().tolist() == [0x7F, 0xFF]
