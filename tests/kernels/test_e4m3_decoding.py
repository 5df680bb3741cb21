"""e4m3 codes by integer operations: all of them."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from kernels.e4m3_decoding import e4m3_values


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
