"""Weights and inputs that every test of the methods draws from."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from infra_lab.quantization.integer import IntegerScheme

SEEDS = st.integers(0, 2**31 - 1)


def random_weight(
    out_features: int, in_features: int, seed: int = 0, dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(out_features, in_features, generator=generator, dtype=torch.float64).to(
        dtype
    )


def correlated_inputs(
    count: int, in_features: int, seed: int = 0, shared: float = 1.0
) -> torch.Tensor:
    """fp64 [count, in_features] that go together: a few directions that all features share, as in
    a transformer, beside noise of each feature's own."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    directions = max(in_features // 8, 1)
    common = normal(count, directions) @ normal(directions, in_features)
    return shared * common + 0.3 * normal(count, in_features)


def hessian_of(inputs: torch.Tensor) -> torch.Tensor:
    return inputs.T @ inputs * (2 / inputs.shape[0])


@st.composite
def schemes(draw: st.DrawFn, scale_dtype: torch.dtype | None = torch.float32) -> IntegerScheme:
    symmetric = draw(st.booleans())
    if scale_dtype is None:
        scale_dtype = draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
    return IntegerScheme(
        bits=draw(st.integers(2, 8)),
        symmetric=symmetric,
        granularity=draw(st.sampled_from(["tensor", "channel", 1, 5, 8, 16, 20, 50])),
        narrow=symmetric and draw(st.booleans()),
        scale_dtype=scale_dtype,
    )
