"""Finds what a GPU would do silently: stray lanes, races, wrapped offsets, forgotten outputs.

    with sanitize() as sanitizer:
        out = rms_norm(x, weight)
        sanitizer.require_written(out=out)

Each error names the kernel, the program, the source line, how many lanes are at fault and the
first bad index. What is found:

- lanes outside every argument of the launch (by default also outside the elements of a view);
- two programs, or two lanes of one, that store to one address; a store where others use atomics;
- a program that reads what another one stores, in either order;
- a signed integer of 32 bits or less that wraps: an offset beyond 2^31 shows with no tensor of
  that size, by passing a large stride;
- elements of an output that no program wrote. What torch.empty and its like give within the
  block is filled with poison first.

Programs run one after the other here, so a race is found by who touched a byte, not by timing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import triton
from torch.overrides import TorchFunctionMode

from kernels.testing.faults import (
    IntegerOverflowError,
    OutOfBoundsError,
    ReadRaceError,
    SanitizerError,
    UnwrittenOutputError,
    WriteRaceError,
)
from kernels.testing.float_codecs import Array
from kernels.testing.interpreter import use_faithful_interpreter
from kernels.testing.observer import LaunchObserver
from kernels.testing.shadow import NOBODY, SEVERAL, Segment, Shadow

# Not of the kernel: what stands between its source line and here.
_MACHINERY = (str(Path(triton.__file__).parent), str(Path(__file__).parent))

# Bit patterns that no computation gives: NaN with a payload, integers far from everything.
_POISON = {1: 0x7D, 2: 0x7FD5, 4: 0x7FD5D5D5, 8: 0x7FFDD5D5D5D5D5D5}
_UNSIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@contextmanager
def sanitize(
    *,
    bounds: Literal["view", "storage"] = "view",
    ordered_by_atomics: bool = False,
    reachable: Sequence[torch.Tensor] = (),
) -> Iterator[Sanitizer]:
    """Interprets the kernels launched within the block and raises a SanitizerError on a fault.

    bounds: "storage" also allows the bytes between the elements of a view.
    ordered_by_atomics: the kernel's programs wait for each other with atomics, so one may read
    what another wrote, and store where others used atomics before.
    reachable: tensors that the kernels find by an address in memory, not by an argument.
    """
    sanitizer = Sanitizer(bounds == "storage", ordered_by_atomics, reachable)
    with use_faithful_interpreter(sanitizer), _PoisonedAllocations():
        yield sanitizer


class Sanitizer(LaunchObserver):
    """The detectors; made by `sanitize`."""

    def __init__(
        self,
        whole_storages: bool,
        ordered_by_atomics: bool,
        reachable: Sequence[torch.Tensor] = (),
    ) -> None:
        self.reachable = {f"reachable[{index}]": tensor for index, tensor in enumerate(reachable)}
        self.whole_storages = whole_storages
        self.ordered_by_atomics = ordered_by_atomics
        self.kernel = ""
        self.program: tuple[int, int, int] = (0, 0, 0)
        self._grid = (1, 1, 1)
        self._number = 1
        self._shadow = Shadow({}, whole_storages)
        # Storages stay alive with their marks: a freed address could come back as another's.
        self._written: dict[int, tuple[torch.UntypedStorage, Array]] = {}

    def require_written(self, **outputs: torch.Tensor) -> None:
        """Raises UnwrittenOutputError if an element still holds the poison it was made with."""
        for name, tensor in outputs.items():
            missing = _is_poison(tensor) & ~self._written_elements(tensor)
            if missing.any():
                where = np.argwhere(missing)
                raise UnwrittenOutputError(
                    kernel=self.kernel,
                    program=None,
                    lanes=len(where),
                    first_index=int(np.flatnonzero(missing)[0]),
                    what=f"{len(where)} of {missing.size} elements of {name!r} were written by "
                    f"no program, the first is {tuple(int(place) for place in where[0])}",
                )

    # What the interpreter tells.

    def begin_launch(
        self, kernel: str, grid: tuple[int, int, int], arguments: Mapping[str, Any]
    ) -> None:
        self.kernel, self._grid = kernel, grid
        self._shadow = Shadow({**arguments, **self.reachable}, self.whole_storages)

    def begin_program(self, program: tuple[int, int, int]) -> None:
        self.program = program
        self._number = 1 + int(np.ravel_multi_index(program, self._grid))

    def end_launch(self) -> None:
        for segment in self._shadow.segments:
            touched = (segment.plain_writer != NOBODY) | (segment.atomic_user != NOBODY)
            storage = segment.tensors[0].tensor.untyped_storage()
            _, marks = self._written.setdefault(segment.start, (storage, np.zeros_like(touched)))
            marks |= touched

    def load(self, addresses: Array, size: int) -> None:
        for segment, offsets in self._in_bounds("load", addresses, size):
            places = _bytes(offsets, size)
            if not self.ordered_by_atomics:
                for users in (segment.plain_writer, segment.atomic_user):
                    self._no_other(
                        ReadRaceError, users, segment, places, size, "loads what {other} stored"
                    )
            _mark(segment.reader, places, self._number)

    def store(self, addresses: Array, size: int, values: Array) -> None:
        parts = self._in_bounds("store", addresses, size)
        self._no_conflict_within(addresses, values)
        for segment, offsets in parts:
            places = _bytes(offsets, size)
            what = "stores where {other} stored"
            self._no_other(WriteRaceError, segment.plain_writer, segment, places, size, what)
            if not self.ordered_by_atomics:
                what = "stores where {other} used an atomic"
                self._no_other(WriteRaceError, segment.atomic_user, segment, places, size, what)
                what = "stores what {other} loaded before"
                self._no_other(ReadRaceError, segment.reader, segment, places, size, what)
            segment.plain_writer[places] = self._number

    def atomic(self, addresses: Array, size: int) -> None:
        for segment, offsets in self._in_bounds("atomic", addresses, size):
            places = _bytes(offsets, size)
            if not self.ordered_by_atomics:
                what = "uses an atomic where {other} stored"
                self._no_other(WriteRaceError, segment.plain_writer, segment, places, size, what)
            _mark(segment.atomic_user, places, self._number)

    def integer_operation(self, operation: str, bits: int, exact: Array) -> None:
        limits = np.iinfo(f"i{bits // 8}")
        wrapped = np.flatnonzero((exact < limits.min) | (exact > limits.max))
        if wrapped.size:
            value = int(exact.reshape(-1)[wrapped[0]])
            raise self._error(
                IntegerOverflowError,
                lanes=wrapped.size,
                first_index=int(wrapped[0]),
                what=f"int{bits} {operation} wraps in {_lanes(wrapped.size)}, the first is lane "
                f"{wrapped[0]} with {value}; compute it in int64",
            )

    # The checks.

    def _in_bounds(self, access: str, addresses: Array, size: int) -> list[tuple[Segment, Array]]:
        if addresses.size == 0:
            return []
        outside, parts = self._shadow.split(addresses.reshape(-1), size)
        if outside.any():
            address = int(addresses.reshape(-1)[outside][0])
            near = self._shadow.nearest(address)
            where = "the launch has no tensors"
            if near is not None:
                shape, strides = tuple(near.tensor.shape), near.tensor.stride()
                where = (
                    f"the first at element {near.index_of(address)} of {near.name!r} "
                    f"(shape {shape}, strides {strides})"
                )
            count = int(outside.sum())
            raise self._error(
                OutOfBoundsError,
                lanes=count,
                first_index=0 if near is None else near.index_of(address),
                what=f"{access} out of bounds in {_lanes(count)}, {where}",
            )
        return parts

    def _no_other(
        self,
        error: type[SanitizerError],
        users: Array,
        segment: Segment,
        places: Array,
        size: int,
        what: str,
    ) -> None:
        there = users[places]
        wrong = (there != NOBODY) & (there != self._number)
        if not wrong.any():
            return
        lanes = wrong.reshape(-1, size).any(axis=1)
        place, user = int(places[wrong][0]), int(there[wrong][0])
        near = self._shadow.nearest(segment.start + place)
        assert near is not None  # a segment is there because of a tensor
        index = near.index_of(segment.start + place)
        if user == SEVERAL:
            other = "several programs"
        else:
            coordinates = np.unravel_index(user - 1, self._grid)
            other = f"program {tuple(int(axis) for axis in coordinates)}"
        raise self._error(
            error,
            lanes=int(lanes.sum()),
            first_index=index,
            what=f"{what.format(other=other)}: {_lanes(int(lanes.sum()))}, the first at element "
            f"{index} of {near.name!r}",
        )

    def _no_conflict_within(self, addresses: Array, values: Array) -> None:
        unique, first, inverse = np.unique(
            addresses.reshape(-1), return_index=True, return_inverse=True
        )
        if unique.size == addresses.size:
            return
        bits = np.ascontiguousarray(values).reshape(-1)
        bits = bits.view(f"u{bits.itemsize}")
        differs = bits != bits[first][inverse]
        if differs.any():
            address = int(addresses.reshape(-1)[differs][0])
            near = self._shadow.nearest(address)
            assert near is not None  # the addresses are in bounds
            raise self._error(
                WriteRaceError,
                lanes=int(differs.sum()),
                first_index=near.index_of(address),
                what=f"lanes of one program store different values to one address: "
                f"{_lanes(int(differs.sum()))}, the first at element {near.index_of(address)} "
                f"of {near.name!r}",
            )

    def _written_elements(self, tensor: torch.Tensor) -> Array:
        _, marks = self._written.get(tensor.untyped_storage().data_ptr(), (None, None))
        if marks is None:
            return np.zeros(tuple(tensor.shape), dtype=bool)
        item = tensor.element_size()
        start = tensor.storage_offset() * item
        strides = tuple(stride * item for stride in tensor.stride())
        return np.lib.stride_tricks.as_strided(marks[start:], tuple(tensor.shape), strides)

    def _error(
        self, error: type[SanitizerError], *, lanes: int, first_index: int, what: str
    ) -> SanitizerError:
        return error(self.kernel, self.program, lanes, first_index, what, _source_line())


def poisoned(tensor: torch.Tensor) -> torch.Tensor:
    """Fills `tensor` with the poison of its type, and returns it."""
    item = tensor.element_size()
    if tensor.dtype == torch.bool:
        return tensor.fill_(True)
    if tensor.numel() and item in _POISON:
        tensor.view(_UNSIGNED[item]).fill_(_POISON[item])
    return tensor


def poisoned_like(tensor: torch.Tensor) -> torch.Tensor:
    """A new tensor of that shape and type in which every element is poison."""
    return poisoned(torch.empty_like(tensor))


class _PoisonedAllocations(TorchFunctionMode):
    """What torch gives without values gets poison for values."""

    FUNCTIONS = frozenset(
        {
            torch.empty,
            torch.empty_like,
            torch.empty_strided,
            torch.Tensor.new_empty,
            torch.Tensor.new_empty_strided,
        }
    )

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        return poisoned(result) if func in self.FUNCTIONS else result


def _is_poison(tensor: torch.Tensor) -> Array:
    """Element by element, by bits: NaN equals nothing."""
    item = tensor.element_size()
    if tensor.dtype == torch.bool:
        return np.asarray(tensor.numpy())
    if item not in _POISON:
        raise TypeError(f"no poison for {tensor.dtype}")
    return np.asarray((tensor.view(_UNSIGNED[item]) == _POISON[item]).numpy())


def _bytes(offsets: Array, size: int) -> Array:
    return np.asarray((offsets[:, None] + np.arange(size)).reshape(-1))


def _mark(users: Array, places: Array, number: int) -> None:
    there = users[places]
    users[places] = np.where((there == NOBODY) | (there == number), number, SEVERAL)


def _lanes(count: int) -> str:
    return f"{count} lane" if count == 1 else f"{count} lanes"


def _source_line() -> str:
    """The line of the kernel that is being run; "" if none is."""
    frame: Any = sys._getframe()
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith(_MACHINERY):
            return f"{Path(path).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
