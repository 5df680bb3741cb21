"""Quantizes one group at a time, as a kernel does with one group a thread block.

O(rows * columns) time, and no intermediate larger than one group; one Python step a group.
`int8_matmul` keeps the product in pure int8 times int8 and puts the zero points right with sums
of rows and columns, as hardware with an int8 matrix unit has to: O(M K N) time.
"""

import math

import numpy as np

QMIN, QMAX = -128, 127


def quantize_group(values: np.ndarray, symmetric: bool) -> tuple[np.ndarray, float, int]:
    """One group of any shape."""
    low, high = float(values.min()), float(values.max())
    if not math.isfinite(high - low):  # before min and max with 0, which can hide a NaN
        raise ValueError("NaN or infinity")
    low, high = min(0.0, low), max(0.0, high)
    scale = (max(high, -low) / QMAX if symmetric else (high - low) / (QMAX - QMIN)) or 1.0
    zero_point = 0 if symmetric else round(QMIN - low / scale)
    codes = np.rint(values.astype(np.float64) / scale) + zero_point
    return codes.clip(QMIN, QMAX), scale, zero_point


def quantize(
    x: np.ndarray, granularity: str, symmetric: bool, group_size: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows, columns = x.shape
    if granularity not in ("tensor", "channel", "group"):
        raise ValueError(f"unknown granularity {granularity!r}")
    if granularity == "group" and not (group_size >= 1 and columns % group_size == 0):
        raise ValueError(f"groups of {group_size} do not fill {columns} columns")
    height = rows if granularity == "tensor" else 1
    width = group_size if granularity == "group" else columns
    shape = (rows // height, columns // width)
    q = np.empty(x.shape, np.int8)
    scale = np.empty(shape, np.float32)
    zero_point = np.empty(shape, np.int8)
    for r, c in np.ndindex(*shape):
        tile = (slice(r * height, (r + 1) * height), slice(c * width, (c + 1) * width))
        q[tile], scale[r, c], zero_point[r, c] = quantize_group(x[tile], symmetric)
    return q, scale, zero_point


def dequantize(q: np.ndarray, scale: np.ndarray, zero_point: np.ndarray) -> np.ndarray:
    height = q.shape[0] // scale.shape[0]
    width = q.shape[1] // scale.shape[1]
    result = np.empty(q.shape, np.float32)
    for r, c in np.ndindex(*scale.shape):
        tile = (slice(r * height, (r + 1) * height), slice(c * width, (c + 1) * width))
        result[tile] = (q[tile].astype(np.float32) - int(zero_point[r, c])) * scale[r, c]
    return result


def int8_matmul(
    a: np.ndarray,
    a_scale: np.ndarray,
    a_zero_point: np.ndarray,
    b: np.ndarray,
    b_scale: np.ndarray,
    b_zero_point: np.ndarray,
) -> np.ndarray:
    """sum (a - za)(b - zb) = sum a b - za sum b - zb sum a + K za zb."""
    depth = a.shape[1]
    a_zero, b_zero = a_zero_point.astype(np.int64), b_zero_point.astype(np.int64)
    sums = np.matmul(a, b, dtype=np.int32).astype(np.int64)
    sums -= a_zero * b.sum(axis=0, keepdims=True, dtype=np.int64)
    sums -= b_zero * a.sum(axis=1, keepdims=True, dtype=np.int64)
    sums += depth * a_zero * b_zero
    return (sums * a_scale.astype(np.float64) * b_scale).astype(np.float32)
