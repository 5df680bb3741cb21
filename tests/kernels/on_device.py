"""Tensors on the device under test, and the sanitizer where that device is the interpreter.

A test that takes its tensors from here runs interpreted on a CPU and compiled on a GPU
(KERNEL_TEST_DEVICE=cuda): there the hardware runs what the sanitizer checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import torch

from kernels.testing.interpreter import use_faithful_interpreter
from kernels.testing.observer import LaunchObserver
from kernels.testing.sanitizer import sanitize
from tests.kernels.strategies import rows_of


def rows_on(
    device: str,
    shape: Sequence[int],
    dtype: torch.dtype,
    seed: int,
    *,
    padding: int = 0,
    scale: float = 1.0,
) -> torch.Tensor:
    """`rows_of` on `device`, with NaN in the same gaps."""
    values = rows_of(shape, dtype, seed, scale=scale)
    return spread(values.to(device), padding)


def spread(values: torch.Tensor, padding: int, fill: float = float("nan")) -> torch.Tensor:
    """The same rows with `padding` elements of `fill` between one and the next."""
    shape = (*values.shape[:-1], values.shape[-1] + padding)
    buffer = torch.full(shape, fill, dtype=values.dtype, device=values.device)
    view = buffer[..., : values.shape[-1]]
    view.copy_(values)
    return view


def on(device: str, tensor: torch.Tensor) -> torch.Tensor:
    """A copy of `tensor` on the device; a view stays one, with what lies between its elements."""
    whole = tensor if tensor._base is None else tensor._base
    placed = whole.to(device, copy=True)
    return placed.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, on the CPU: what is equal there is equal with NaN and signs too."""
    return tensor.contiguous().cpu().view(torch.uint8)


class Watch(Protocol):
    """What a test may ask about the stores of the kernels that it ran."""

    def require_written(self, **outputs: torch.Tensor) -> None: ...


class _Nobody:
    def require_written(self, **outputs: torch.Tensor) -> None:
        """A GPU does not tell; what was not written shows as a wrong value."""


@contextmanager
def watched(device: str, *, reachable: Sequence[torch.Tensor] = ()) -> Iterator[Watch]:
    """`sanitize()` where kernels are interpreted; on a GPU they run as they are."""
    if device != "cpu":
        yield _Nobody()
        return
    with sanitize(reachable=reachable) as sanitizer:
        yield sanitizer


class _LaunchedError(Exception):
    pass


class _FirstLaunch(LaunchObserver):
    grid = (0, 0, 0)

    def begin_launch(
        self, kernel: str, grid: tuple[int, int, int], arguments: Mapping[str, Any]
    ) -> None:
        self.grid = grid
        raise _LaunchedError


def first_grid(call: Callable[[], object]) -> tuple[int, int, int]:
    """The grid of the first kernel that `call`, on CPU tensors, launches; none is run.

    A grid that CUDA would refuse is an error.
    """
    first = _FirstLaunch()
    with use_faithful_interpreter(first), suppress(_LaunchedError):
        call()
    return first.grid
