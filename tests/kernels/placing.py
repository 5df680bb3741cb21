"""Runs one test in both places: tensors where the kernels run, the sanitizer where it can."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from kernels.testing.sanitizer import Sanitizer, sanitize


def on(device: str, tensor: torch.Tensor) -> torch.Tensor:
    """A copy of `tensor` on the device; a view stays one, with what lies between its elements."""
    whole = tensor if tensor._base is None else tensor._base
    placed = whole.to(device, copy=True)
    return placed.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


@contextmanager
def watched(device: str, *, reachable: Sequence[torch.Tensor] = ()) -> Iterator[Sanitizer]:
    """`sanitize()` where kernels are interpreted; on a GPU they run as they are."""
    if device == "cpu":
        with sanitize(reachable=reachable) as sanitizer:
            yield sanitizer
    else:
        yield _Unwatched()


class _Unwatched(Sanitizer):
    def __init__(self) -> None:
        super().__init__(whole_storages=True, ordered_by_atomics=True)

    def require_written(self, **outputs: torch.Tensor) -> None:
        pass


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, on the CPU: what is equal there is equal with NaN and signs too."""
    return tensor.contiguous().cpu().view(torch.uint8)
