"""Reduces runs of columns with reduceat, and spreads scales with a Kronecker product."""

import numpy as np


def _spread(table, shape):
    block = np.ones((shape[0] // table.shape[0], shape[1] // table.shape[1]))
    return np.kron(table, block)


def _reduce(x, granularity, group_size, ufunc):
    by_row = ufunc.reduceat(x, np.arange(0, x.shape[1], group_size), axis=1)
    return ufunc.reduce(by_row, axis=None).reshape(1, 1) if granularity == "tensor" else by_row


def quantize(
    x: np.ndarray, granularity: str, symmetric: bool, group_size: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    match granularity:
        case "tensor" | "channel":
            group_size = x.shape[1]
        case "group" if group_size >= 1 and x.shape[1] % group_size == 0:
            pass
        case _:
            raise ValueError(f"{granularity=} {group_size=} for {x.shape[1]} columns")
    wide = np.array(x, dtype=np.float64)
    if not np.all(np.isfinite(wide)):
        raise ValueError("not finite")
    smallest = _reduce(wide, granularity, group_size, np.minimum)
    largest = _reduce(wide, granularity, group_size, np.maximum)
    if symmetric:
        scale = np.maximum(np.abs(smallest), np.abs(largest)) / 127.0
        scale[scale == 0.0] = 1.0
        zero = np.zeros(scale.shape, dtype=np.int64)
    else:
        smallest, largest = np.minimum(smallest, 0.0), np.maximum(largest, 0.0)
        scale = (largest - smallest) / 255.0
        scale[scale == 0.0] = 1.0
        zero = np.around(-128.0 - smallest / scale).astype(np.int64)
    # The zero point first, then the rounding: another even number, the same error bound.
    codes = np.around(wide / _spread(scale, x.shape) + _spread(zero, x.shape))
    lowest = -127 if symmetric else -128
    return (
        codes.clip(lowest, 127).astype(np.int8),
        scale.astype(np.float32),
        zero.astype(np.int8),
    )


def dequantize(q: np.ndarray, scale: np.ndarray, zero_point: np.ndarray) -> np.ndarray:
    steps = q.astype(np.int16) - _spread(zero_point, q.shape).astype(np.int16)
    return np.multiply(steps, _spread(scale, q.shape)).astype(np.float32)


def int8_matmul(
    a: np.ndarray,
    a_scale: np.ndarray,
    a_zero_point: np.ndarray,
    b: np.ndarray,
    b_scale: np.ndarray,
    b_zero_point: np.ndarray,
) -> np.ndarray:
    left = np.subtract(a, a_zero_point, dtype=np.int16)
    right = np.subtract(b, b_zero_point, dtype=np.int16)
    total = np.einsum("mk,kn->mn", left, right, dtype=np.int32)
    return np.multiply(total * a_scale, b_scale, dtype=np.float32, casting="same_kind")
