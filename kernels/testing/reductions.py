"""Reductions and scans as the GPU does them: by halves, in the type of the data.

Triton combines pairs of elements along a tree, and so does this: each step is one call of the
combining function on whole blocks, so a step in bf16 is rounded to bf16. The stock interpreter
calls it once per element, in sequence, which is slow and another order of rounding.

`tl.sum` of bf16 adds in bf16 on a GPU (`add.bf16` in the PTX), `tl.max` and `tl.cumsum` go
through fp32: both are decided by Triton before this code is reached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from kernels.testing.float_codecs import Array
from kernels.testing.handles import number_format

Tensor = Any  # a triton.language.tensor

# One call of numpy instead of log2(n) steps, where no bit of the result can tell or where any
# order is as good: integers wrap alike, fp32 and fp64 sums are pairwise in numpy too.
_AT_ONCE: dict[str, Callable[..., Array]] = {
    "_sum_combine": np.add.reduce,
    "_elementwise_max": np.fmax.reduce,
    "_elementwise_min": np.fmin.reduce,
}


class Reduction:
    """What `tl.reduce` does in the interpreter; built and applied by Triton's own patch."""

    def __init__(self, axis: int | None, combine: Any, keep_dims: bool) -> None:
        self.axis = axis
        self.combine = combine
        self.keep_dims = keep_dims

    def apply(self, operands: Any) -> Any:
        if not isinstance(operands, tuple):
            return self.apply((operands,))[0]
        arrays = [operand.handle.data for operand in operands]
        shape = arrays[0].shape
        axis = self._axis(len(shape))
        if self.axis is None:
            arrays = [array.reshape(-1) for array in arrays]
        reduced = self._at_once(operands, arrays, axis)
        if reduced is None:
            moved = [np.moveaxis(array, axis, 0) for array in arrays]
            reduced = _tree(moved, operands, self.combine)
        return tuple(
            _tensor(self._with_kept_axes(array, shape, axis), operand.dtype)
            for array, operand in zip(reduced, operands, strict=True)
        )

    def _axis(self, dimensions: int) -> int:
        axis = 0 if self.axis is None else self.axis
        if not -dimensions <= axis < dimensions:
            raise ValueError(f"axis {axis} of a block with {dimensions} dimensions")
        return axis % dimensions

    def _at_once(
        self, operands: Sequence[Tensor], arrays: list[Array], axis: int
    ) -> list[Array] | None:
        kind = number_format(operands[0].handle)
        name = self.combine.fn.__name__ if _is_standard(self.combine) else ""
        if kind is not None and (kind.narrow or kind.name == "fp16"):
            return None
        if name in _AT_ONCE and len(arrays) == 1:
            array = arrays[0]
            if array.dtype.kind in "biu" and name == "_sum_combine":
                return [np.add.reduce(array, axis=axis, dtype=array.dtype)]
            return [np.asarray(_AT_ONCE[name](array, axis=axis))]
        if name.startswith(("_argmax", "_argmin")) and not np.isnan(arrays[0]).any():
            return self._arg_extreme(arrays, axis, name)
        return None

    def _arg_extreme(self, arrays: list[Array], axis: int, name: str) -> list[Array]:
        """The first of equals, or the last where the kernel says that it does not care."""
        find = np.argmax if name.startswith("_argmax") else np.argmin
        values, indices = arrays
        if name.endswith("_fast"):
            values, indices = np.flip(values, axis), np.flip(indices, axis)
        place = np.expand_dims(find(values, axis=axis), axis)
        return [
            np.take_along_axis(array, place, axis=axis).squeeze(axis) for array in (values, indices)
        ]

    def _with_kept_axes(self, array: Array, shape: tuple[int, ...], axis: int) -> Array:
        if not self.keep_dims:
            return array
        if self.axis is None:
            return array.reshape((1,) * len(shape))
        return np.expand_dims(array, axis)


class Scan:
    """What `tl.associative_scan` does in the interpreter."""

    def __init__(self, axis: int, combine: Any, reverse: bool) -> None:
        self.axis = axis
        self.combine = combine
        self.reverse = reverse

    def apply(self, operands: Any) -> Any:
        if not isinstance(operands, tuple):
            return self.apply((operands,))[0]
        arrays = [np.moveaxis(operand.handle.data, self.axis, 0) for operand in operands]
        if self.reverse:
            arrays = [array[::-1] for array in arrays]
        scanned = _scan_by_doubling(arrays, operands, self.combine)
        if self.reverse:
            scanned = [array[::-1] for array in scanned]
        return tuple(
            _tensor(np.moveaxis(array, 0, self.axis), operand.dtype)
            for array, operand in zip(scanned, operands, strict=True)
        )


def _tree(arrays: list[Array], operands: Sequence[Tensor], combine: Any) -> list[Array]:
    """Neighbours are combined until one is left; the order of the elements is kept."""
    while arrays[0].shape[0] > 1:
        arrays = _combine(combine, [a[0::2] for a in arrays], [a[1::2] for a in arrays], operands)
    return [array[0] for array in arrays]


def _scan_by_doubling(arrays: list[Array], operands: Sequence[Tensor], combine: Any) -> list[Array]:
    """Hillis and Steele (1986): after step k each element covers the 2^k before it."""
    length = arrays[0].shape[0]
    place = np.arange(length).reshape(-1, *(1,) * (arrays[0].ndim - 1))
    distance = 1
    while distance < length:
        # Whole blocks, because a block's sides are powers of two; what wraps round is dropped.
        behind = [np.roll(array, distance, axis=0) for array in arrays]
        combined = _combine(combine, behind, arrays, operands)
        arrays = [
            np.where(place >= distance, new, array)
            for array, new in zip(arrays, combined, strict=True)
        ]
        distance *= 2
    return arrays


def _combine(
    combine: Any, left: list[Array], right: list[Array], operands: Sequence[Tensor]
) -> list[Array]:
    types = [operand.dtype for operand in operands]
    blocks = [_tensor(a, t) for a, t in zip([*left, *right], types * 2, strict=True)]
    result = combine(*blocks)
    results = result if isinstance(result, tuple) else (result,)
    return [
        np.broadcast_to(one.handle.data, array.shape)
        for one, array in zip(results, left, strict=True)
    ]


def _tensor(array: Array, dtype: Any) -> Tensor:
    if array.shape == ():
        return tl.core.tensor(TensorHandle(array.reshape(1), dtype.scalar), dtype.scalar)
    block = tl.block_type(dtype.scalar, list(array.shape))
    return tl.core.tensor(TensorHandle(np.ascontiguousarray(array), dtype.scalar), block)


def _is_standard(combine: Any) -> bool:
    return getattr(tl.standard, combine.fn.__name__, None) is combine
