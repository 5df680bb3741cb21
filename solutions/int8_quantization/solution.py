"""Every granularity as rows of groups of equal width: one reduction over the last axis.

O(rows * columns) time and space. `int8_matmul`: O(M K N) time, O(M K + K N + M N) space.
"""

import numpy as np


def _as_groups(x: np.ndarray, granularity: str, group_size: int) -> np.ndarray:
    """x with shape (rows of scales, scales in a row, elements of a group)."""
    rows, columns = x.shape
    if granularity == "tensor":
        return x.reshape(1, 1, -1)
    if granularity == "channel":
        return x.reshape(rows, 1, columns)
    if granularity == "group":
        if group_size < 1 or columns % group_size:
            raise ValueError(f"group_size {group_size} does not divide {columns} columns")
        return x.reshape(rows, columns // group_size, group_size)
    raise ValueError(f"granularity must be tensor, channel or group, not {granularity!r}")


def quantize(
    x: np.ndarray, granularity: str, symmetric: bool, group_size: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if not np.isfinite(x).all():
        raise ValueError("x holds NaN or infinity")
    # float64 from here: in float16, high - low may overflow.
    groups = _as_groups(x.astype(np.float64), granularity, group_size)
    low = np.minimum(groups.min(axis=-1), 0.0)
    high = np.maximum(groups.max(axis=-1), 0.0)
    step = np.maximum(-low, high) / 127 if symmetric else (high - low) / 255
    scale = np.where(step == 0, 1.0, step)
    zero_point = np.zeros_like(scale) if symmetric else np.rint(-128 - low / scale)
    codes = np.rint(groups / scale[..., None]) + zero_point[..., None]
    q = np.clip(codes, -128, 127).astype(np.int8).reshape(x.shape)
    return q, scale.astype(np.float32), zero_point.astype(np.int8)


def dequantize(q: np.ndarray, scale: np.ndarray, zero_point: np.ndarray) -> np.ndarray:
    # A group is a run of columns; (1, 1) and (rows, 1) then broadcast over the rows by themselves.
    width = q.shape[1] // scale.shape[1]
    steps = q.astype(np.int32) - np.repeat(zero_point.astype(np.int32), width, axis=1)
    return steps.astype(np.float32) * np.repeat(scale, width, axis=1)


def int8_matmul(
    a: np.ndarray,
    a_scale: np.ndarray,
    a_zero_point: np.ndarray,
    b: np.ndarray,
    b_scale: np.ndarray,
    b_zero_point: np.ndarray,
) -> np.ndarray:
    """A scale that does not depend on k comes out of the sum over k; zero points do not."""
    left = a.astype(np.int32) - a_zero_point.astype(np.int32)
    right = b.astype(np.int32) - b_zero_point.astype(np.int32)
    return ((left @ right) * (a_scale.astype(np.float64) * b_scale)).astype(np.float32)
