"""Between a handle of the interpreter (data and a Triton type) and numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as stock
from triton.runtime.interpreter import TensorHandle

from kernels.testing.float_codecs import Array, FloatFormat, decode, encode, float_format

Handle = Any  # a TensorHandle: Triton's module has no types to check against


def number_format(handle: Handle) -> FloatFormat | None:
    """The float format of a handle's elements; None for integers and pointers."""
    scalar = handle.get_element_ty() if isinstance(handle, TensorHandle) else handle.scalar
    return float_format(scalar.name) if scalar.is_floating() else None


def values_of(handle: Handle) -> Array:
    """A handle's data as numbers that numpy computes with."""
    kind = number_format(handle)
    return handle.data if kind is None else decode(handle.data, kind)


def handle_of(values: Array, dtype: Any) -> Handle:
    """Numbers as a handle of Triton type `dtype`, rounded to it."""
    scalar = dtype.scalar
    if scalar.is_floating():
        return TensorHandle(encode(values, float_format(scalar.name)), scalar)
    return TensorHandle(values.astype(stock._get_np_dtype(scalar), copy=False), scalar)


def undefined_values(shape: tuple[int, ...], dtype: Any) -> Array:
    """What lanes hold that nobody gave a value: NaN, or the largest integer."""
    numpy_type = stock._get_np_dtype(dtype)
    if isinstance(dtype, tl.pointer_type):
        return np.zeros(shape, numpy_type)
    if dtype.is_floating():
        kind = float_format(dtype.name)
        codes = np.full(shape, kind.nan_code, kind.code_type)
        return codes.view(numpy_type)
    return np.full(shape, True if numpy_type == np.bool_ else np.iinfo(numpy_type).max, numpy_type)
