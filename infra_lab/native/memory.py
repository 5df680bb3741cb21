"""Memory in huge pages, for what a step reads from end to end: weights and the KV cache.

A page of 4 KiB costs a page fault at its first write and a walk of the page tables whenever a
stream comes to it. Linux gives pages of 2 MiB to those who ask; elsewhere this is plain memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
import weakref

import numpy as np
import torch

HUGE_PAGE = 2 << 20
CHUNK = 64 << 20  # bytes that an Arena asks for at a time
ALIGNMENT = 64  # a cache line

# glibc's numbers for mallopt, and what they are set to here: the largest that it takes, and more
# than one step's activations.
M_TRIM_THRESHOLD, KEPT = -1, 256 << 20
M_MMAP_THRESHOLD, IN_HEAP = -3, 32 << 20
MALLOC_VARIABLES = ("GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Zeros on the CPU, at a huge page's start, that take memory only where they are written.

    torch.zeros writes every page. Anonymous memory is zero already and becomes resident at the
    first write, so that a large pool costs what its used blocks cost.
    """
    size = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(_aligned_bytes(size)).view(dtype).view(shape)


class Arena:
    """Many tensors in few regions: each in huge pages of its own would waste half a page, and
    hundreds of weights of a megabyte would waste hundreds of them. A region lives as long as
    any of its tensors."""

    def __init__(self) -> None:
        self._left = np.empty(0, dtype=np.uint8)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        size = math.prod(shape) * dtype.itemsize
        taken = -(-size // ALIGNMENT) * ALIGNMENT
        if taken > self._left.size:
            self._left = _aligned_bytes(max(taken, CHUNK))
        raw, self._left = self._left[:size], self._left[taken:]
        return torch.from_numpy(raw).view(dtype).view(shape)


class Scratch:
    """One piece of memory, lent again and again: thousands of allocations that come and go
    between those that stay leave holes, which were seen to take half as much as the weights."""

    def __init__(self) -> None:
        self._raw = torch.empty(0, dtype=torch.uint8)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A tensor that is good until the next one is asked for."""
        size = math.prod(shape) * dtype.itemsize
        if size > self._raw.numel():
            self._raw = torch.empty(0, dtype=torch.uint8)  # gone before its successor comes
            self._raw = torch.empty(size, dtype=torch.uint8)
        return self._raw[:size].view(dtype).view(shape)


class Workspace:
    """A region in which a tensor's place is free again as soon as the tensor is gone.

    What a sequence of kernels writes and reads then lies in as little memory as lives at one time,
    and the places are as good for running the sequence again.
    """

    def __init__(self, size: int) -> None:
        self._raw = _aligned_bytes(size)
        self._taken: list[tuple[int, int, weakref.ref[np.ndarray]]] = []  # begin, end, whose

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor | None:
        """None where no gap is large enough."""
        size = math.prod(shape) * dtype.itemsize
        self._taken = [one for one in self._taken if one[2]() is not None]
        gaps = zip(
            [0, *(end for _, end, _ in self._taken)],
            [*(begin for begin, _, _ in self._taken), self._raw.size],
            strict=True,
        )
        for place, (begin, limit) in enumerate(gaps):
            if limit - begin >= size:
                raw = self._raw[begin : begin + size]
                end = begin + -(-size // ALIGNMENT) * ALIGNMENT
                self._taken.insert(place, (begin, end, weakref.ref(raw)))
                return torch.from_numpy(raw).view(dtype).view(shape)
        return None

    def owns(self, tensor: torch.Tensor) -> bool:
        return 0 <= tensor.data_ptr() - self._raw.ctypes.data < self._raw.size


def _aligned_bytes(size: int) -> np.ndarray:
    raw = np.frombuffer(_anonymous_memory(size + HUGE_PAGE), dtype=np.uint8)
    return raw[-raw.ctypes.data % HUGE_PAGE :][:size]


def _anonymous_memory(size: int) -> mmap.mmap:
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return mmap.mmap(-1, size)
    region = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a Linux built without huge pages
        region.madvise(mmap.MADV_HUGEPAGE)
    return region


def keep_freed_memory() -> bool:
    """Has glibc's malloc keep what a step frees for the next step, for the whole process.

    Else it gives memory of megabytes back to the system, which zeroes it again page by page: a
    twelfth of the time of a prompt of 512 tokens. True if that was done; what the user sets by
    malloc's own environment variables stays as it is, and so do other C libraries.
    """
    if any(name in os.environ for name in MALLOC_VARIABLES):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, IN_HEAP) and mallopt(M_TRIM_THRESHOLD, KEPT))
