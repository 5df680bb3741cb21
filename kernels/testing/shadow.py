"""What the sanitizer remembers of memory: which bytes a launch may touch, and who touched them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from triton.runtime.jit import TensorWrapper
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.testing.float_codecs import Array

NOBODY = 0  # programs are counted from 1 in a shadow
SEVERAL = -1


@dataclass(frozen=True)
class NamedTensor:
    """A tensor among a launch's arguments."""

    name: str
    tensor: torch.Tensor

    @property
    def start(self) -> int:
        return self.tensor.data_ptr()

    def index_of(self, address: int) -> int:
        """How many elements lie between the tensor's first one and `address`."""
        return (address - self.start) // self.tensor.element_size()


class Segment:
    """One storage: the bytes of it that the arguments cover, and their users.

    `plain_writer`, `atomic_user` and `reader` hold one program (from 1) per byte, NOBODY, or
    SEVERAL.
    """

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.start = storage.data_ptr()
        self.size = storage.nbytes()
        self.tensors: list[NamedTensor] = []
        self._covered: Array | None = np.zeros(self.size, dtype=bool)
        self._covered_before: Array | None = None
        self.plain_writer = np.zeros(self.size, np.int32)
        self.atomic_user = np.zeros(self.size, np.int32)
        self.reader = np.zeros(self.size, np.int32)

    def cover_all(self) -> None:
        self._covered = None

    def cover(self, tensor: torch.Tensor) -> None:
        """Allows the bytes of a view's elements, and none between them."""
        if self._covered is None or tensor.numel() == 0:
            return
        item = tensor.element_size()
        first = tensor.data_ptr() - self.start
        elements = np.lib.stride_tricks.as_strided(
            self._covered[first:],
            shape=(*tensor.shape, item),
            strides=(*(stride * item for stride in tensor.stride()), 1),
        )
        elements[...] = True
        if self._covered.all():
            self._covered = None

    def outside(self, offsets: Array, size: int) -> Array:
        """Whether any of the `size` bytes from each offset lies outside what is covered."""
        beyond = offsets + size > self.size
        if self._covered is None:
            return np.asarray(beyond)
        if self._covered_before is None:
            counts = np.cumsum(self._covered, dtype=np.int64)
            self._covered_before = np.concatenate([np.zeros(1, np.int64), counts])
        ends = np.minimum(offsets + size, self.size)
        inside = self._covered_before[ends] - self._covered_before[offsets]
        return np.asarray(beyond | (inside != size))


class Shadow:
    """The segments of one launch's tensors, found by address."""

    def __init__(self, arguments: Mapping[str, Any], whole_storages: bool) -> None:
        segments: dict[int, Segment] = {}
        for name, value in arguments.items():
            for tensor in _tensors(value):
                if tensor.untyped_storage().nbytes() == 0:
                    continue
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in segments:
                    segments[storage.data_ptr()] = Segment(storage)
                segment = segments[storage.data_ptr()]
                segment.tensors.append(NamedTensor(name, tensor))
                if whole_storages:
                    segment.cover_all()
                segment.cover(tensor)
        self.segments = [segments[start] for start in sorted(segments)]
        self._starts = np.array(sorted(segments), dtype=np.int64)

    def split(self, addresses: Array, size: int) -> tuple[Array, list[tuple[Segment, Array]]]:
        """Which lanes are out of bounds; and for every segment the offsets of its lanes."""
        places = addresses.astype(np.int64)
        owners = np.searchsorted(self._starts, places, side="right") - 1
        outside = owners < 0
        parts = []
        for owner in np.unique(owners[~outside]):
            segment = self.segments[int(owner)]
            mine = owners == owner
            offsets = places[mine] - segment.start
            inside = np.minimum(offsets, segment.size)
            outside[mine] = segment.outside(inside, size)
            parts.append((segment, offsets))
        return outside, parts

    def nearest(self, address: int) -> NamedTensor | None:
        """The argument that an address was probably meant for: the last that starts before it."""
        tensors = [tensor for segment in self.segments for tensor in segment.tensors]
        before = [tensor for tensor in tensors if tensor.start <= address]
        if before:
            return max(before, key=lambda tensor: tensor.start)
        return min(tensors, key=lambda tensor: tensor.start, default=None)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, TensorWrapper | TensorDescriptor):
        yield from _tensors(value.base)
    elif isinstance(value, tuple):
        for item in value:
            yield from _tensors(item)
