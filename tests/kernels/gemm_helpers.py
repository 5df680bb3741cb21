"""What the tests of the matrix products share: devices, and rows with NaN between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from kernels.testing.sanitizer import sanitize
from tests.kernels.strategies import rows_of


@contextmanager
def sanitized(device: str) -> Iterator[dict[str, torch.Tensor]]:
    """Sanitizes what runs within, and that what is put into the dict was written all over.

    On a GPU the kernels run as they are.
    """
    results: dict[str, torch.Tensor] = {}
    if device != "cpu":
        yield results
        return
    with sanitize() as sanitizer:
        yield results
        sanitizer.require_written(**results)


def rows_on(
    device: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    seed: int,
    *,
    padding: int = 0,
    scale: float = 1.0,
) -> torch.Tensor:
    """`rows_of` on a device, with the same strides and padding."""
    rows = rows_of(shape, dtype, seed, padding=padding, scale=scale)
    if device == "cpu" or not padding:
        return rows.to(device)
    buffer = rows.new_full((*shape[:-1], shape[-1] + padding), float("nan"), device=device)
    view = buffer[..., : shape[-1]]
    view.copy_(rows)
    return view


def mean_relative_error(out: torch.Tensor, truth: torch.Tensor) -> float:
    """mean |out - truth| / mean |truth|, as Marlin's tests measure it."""
    difference = (out.double() - truth).abs().mean()
    return float(difference / truth.abs().mean())
