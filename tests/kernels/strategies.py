"""Tensors that break kernels: odd sizes, rows of a wider buffer with NaN between them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import strategies as st

DTYPES = st.sampled_from([torch.bfloat16, torch.float16, torch.float32])
# Around powers of two, blocks and vectors; one; and the default model's sizes.
COLUMNS = st.sampled_from([1, 2, 3, 7, 16, 31, 64, 65, 127, 128, 192, 255, 257, 576, 1023, 1025])
ROWS = st.sampled_from([0, 1, 2, 3, 5, 9])
SEEDS = st.integers(0, 2**32 - 1)


def rows_of(
    shape: Sequence[int], dtype: torch.dtype, seed: int, *, padding: int = 0, scale: float = 1.0
) -> torch.Tensor:
    """Normal values; with `padding`, a view of rows that far apart, NaN in between."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(*shape, generator=generator, dtype=torch.float64) * scale
    buffer = torch.full((*shape[:-1], shape[-1] + padding), float("nan"), dtype=dtype)
    view = buffer[..., : shape[-1]]
    view.copy_(values)
    return view
