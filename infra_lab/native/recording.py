"""Records a sequence of kernel calls, to run it again and again as one call: what a CUDA graph is
for, on a CPU. Answers "why do engines capture their decode steps?": a step of a small model is
hundreds of calls of microseconds, and what starts them takes as long as they do.

A CUDA graph is captured for one size of batch, or for several, and smaller batches are padded. Here
a call's number of rows is given when it is replayed: one recording serves every size up to its own.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from enum import IntEnum
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode

from infra_lab.native.library import load_library
from infra_lab.native.memory import Workspace


class Kernel(IntEnum):
    """As replay.c numbers them."""

    LINEAR = 0
    RMS_NORM = 1
    SILU_AND_MUL = 2
    ROTATE = 3
    PAGED_ATTENTION = 4
    QUANTIZED_LINEAR = 5
    ROUND_ROWS = 6
    INT8_LINEAR = 7


class _Call(ctypes.Structure):
    """The C struct of the same name, field for field."""

    _fields_ = (
        ("kernel", ctypes.c_int64),
        ("pointers", ctypes.c_void_p * 5),
        ("sizes", ctypes.c_int64 * 4),
        ("factor", ctypes.c_float),
    )


class Recording:
    """As a context manager: the kernels that `ops` is asked for in this thread inside the block
    are recorded, and not run. Inputs change by being overwritten where they lie.

    What is made inside the block lies in `workspace`, its place free for the next as soon as it
    is gone: who wants to read it after a replay must keep it. Other tensors are kept here.

    Attributes:
        foreign: what a replay would leave out: an operation of torch inside the block that
            computes, or a kernel whose rows do not follow the recording's; None if there was
            nothing, and only then may it be replayed.
    """

    def __init__(self, rows: int, workspace: Workspace) -> None:
        """rows: of every tensor that is computed on; a replay computes on the first of them."""
        self.foreign: str | None = None
        self.rows = rows
        self.workspace = workspace
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

    def replay(self, rows: int) -> None:
        """Runs the calls on the first `rows` rows, at most the recording's."""
        assert self.foreign is None
        assert self._array is not None
        assert rows <= self.rows
        load_library().replay(self._array, len(self._array), rows, torch.get_num_threads())

    def add(
        self,
        kernel: Kernel,
        pointers: Sequence[int],
        sizes: Sequence[int],
        tensors: Sequence[object],
        factor: float = 0.0,
    ) -> None:
        """sizes: the number of rows first, but for attention, whose step knows it."""
        if kernel is not Kernel.PAGED_ATTENTION and sizes[0] != self.rows:
            self.foreign = f"{kernel.name} of {sizes[0]} rows"
        filled = (*pointers, *[None] * (5 - len(pointers)))
        self._calls.append(_Call(kernel, filled, (*sizes, *[0] * (4 - len(sizes))), factor))
        self._kept += [
            one
            for one in tensors
            if not (isinstance(one, torch.Tensor) and self.workspace.owns(one))
        ]


class _Active(threading.local):
    recording: Recording | None = None


_active = _Active()


def active() -> Recording | None:
    """This thread's recording, within its block."""
    return _active.recording


def run(
    kernel: Kernel,
    function: Callable[..., None],
    pointers: Sequence[int],
    sizes: Sequence[int],
    tensors: Sequence[object],
    factor: float | None = None,
) -> None:
    """Calls a kernel; where this thread records, writes down the call instead.

    sizes: the number of rows first. tensors: what the pointers point into. factor: the one number
    of a kernel that takes one.
    """
    if _active.recording is not None:
        _active.recording.add(kernel, pointers, sizes, tensors, factor or 0.0)
        return
    options = () if factor is None else (factor,)
    function(*pointers, *sizes, *options, torch.get_num_threads())


HARMLESS = {
    *("empty", "empty_like", "view"),
    *("__get__", "__len__", "data_ptr", "dim", "is_contiguous", "numel", "size", "stride"),
}


class _Watcher(TorchFunctionMode):
    """Sees every use of torch. What only makes, views or asks a tensor leaves nothing out.

    Not a TorchDispatchMode: its first use imports torch's compiler, which takes a second.
    """

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = func.__name__
        if not _is_harmless(name, args):
            self._recording.foreign = name
        made = None
        if name == "empty":
            dtype = kwargs.get("dtype") or torch.get_default_dtype()
            made = self._recording.workspace.empty(*args, dtype=dtype)
        elif name == "empty_like" and _becomes_contiguous(args[0], kwargs.get("memory_format")):
            made = self._recording.workspace.empty(*args[0].shape, dtype=args[0].dtype)
        return func(*args, **kwargs) if made is None else made


def _is_harmless(name: str, args: tuple[Any, ...]) -> bool:
    if name == "contiguous":
        return bool(args[0].is_contiguous())
    if name == "__getitem__":
        parts = args[1] if isinstance(args[1], tuple) else (args[1],)
        return all(part is None or isinstance(part, int | slice) for part in parts)
    return name in HARMLESS


def _becomes_contiguous(like: torch.Tensor, memory_format: torch.memory_format | None) -> bool:
    return like.is_contiguous() or memory_format is torch.contiguous_format
