"""Records a sequence of kernel calls once, to run it again as one call: a CUDA graph's idea, on a
CPU. Answers "why do engines capture their decode steps?": a step of a small model is hundreds of
calls of microseconds, and what starts them takes as long as they do.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from enum import IntEnum
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from infra_lab.native.library import load_library


class Kernel(IntEnum):
    """As replay.c numbers them."""

    LINEAR = 0
    RMS_NORM = 1
    SILU_AND_MUL = 2
    ROTATE = 3
    PAGED_ATTENTION = 4


class _Call(ctypes.Structure):
    """The C struct of the same name, field for field."""

    _fields_ = (
        ("kernel", ctypes.c_int64),
        ("pointers", ctypes.c_void_p * 5),
        ("sizes", ctypes.c_int64 * 4),
        ("eps", ctypes.c_float),
    )


class Recording:
    """As a context manager: every kernel that `ops` runs in this thread inside the block is run
    and recorded. Inputs change by being overwritten where they lie; all tensors that the calls
    read or write are kept.

    Attributes:
        foreign: a torch operation inside the block that computes, and that a replay would leave
            out; None if there was none, and only then may it be replayed.
    """

    def __init__(self) -> None:
        self.foreign: str | None = None
        self._calls: list[_Call] = []
        self._kept: list[object] = []
        self._array: ctypes.Array[_Call] | None = None
        self._watching = ExitStack()

    def __enter__(self) -> Self:
        self._watching.enter_context(_Watcher(self))
        _active.recording = self
        return self

    def __exit__(self, *_: object) -> None:
        _active.recording = None
        self._watching.close()
        self._array = (_Call * len(self._calls))(*self._calls)

    def replay(self) -> None:
        assert self.foreign is None
        assert self._array is not None
        load_library().replay(self._array, len(self._array), torch.get_num_threads())

    def add(
        self,
        kernel: Kernel,
        pointers: Sequence[int],
        sizes: Sequence[int],
        eps: float,
        kept: Sequence[object],
    ) -> None:
        filled = (*pointers, *[None] * (5 - len(pointers)))
        call = _Call(kernel, filled, (*sizes, *[0] * (4 - len(sizes))), eps)
        self._calls.append(call)
        self._kept += kept


class _Active(threading.local):
    recording: Recording | None = None


_active = _Active()


def record(
    kernel: Kernel,
    pointers: Sequence[int],
    sizes: Sequence[int],
    kept: Sequence[object],
    eps: float = 0.0,
) -> None:
    """Tells this thread's recording, if there is one, of a call that was just run."""
    if _active.recording is not None:
        _active.recording.add(kernel, pointers, sizes, eps, kept)


class _Watcher(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every torch operation. Those that only make or view a tensor leave nothing out."""

    HARMLESS = ("empty", "empty_like", "view", "slice", "detach", "alias", "as_strided")

    def __init__(self, recording: Recording) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recording = recording

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = func.overloadpacket.__name__
        if name not in self.HARMLESS:
            self._recording.foreign = name
        return func(*args, **(kwargs or {}))
