"""tanh, as exact as the scores that it caps need it."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from kernels.hyperbolic import tanh


@triton.jit
def tanh_kernel(x, out, COUNT: tl.constexpr, PRECISE: tl.constexpr):
    place = tl.arange(0, COUNT)
    tl.store(out + place, tanh(tl.load(x + place), PRECISE))


@pytest.mark.parametrize(("precise", "relative", "absolute"), [(True, 3e-7, 0), (False, 0, 2e-7)])
def test_tanh_has_the_digits_of_fp32_where_these_count(
    device: str, precise: bool, relative: float, absolute: float
) -> None:
    sizes = torch.cat([torch.logspace(-8, 2, 4096), torch.linspace(0, 2, 4096)])
    x = torch.cat([sizes, -sizes]).to(device)
    out = torch.empty_like(x)
    tanh_kernel[(1,)](x, out, COUNT=x.numel(), PRECISE=precise)
    torch.testing.assert_close(out.double(), x.double().tanh(), rtol=relative, atol=absolute)
