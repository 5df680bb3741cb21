"""A small class for one range of values, and Python loops over scales."""

from dataclasses import dataclass

import numpy as np


@dataclass
class Range:
    low: float
    high: float

    @classmethod
    def of(cls, values):
        values = values.astype("f8")
        if not np.isfinite(values).all():
            raise ValueError("values must be finite")
        return cls(min(values.min(), 0.0), max(values.max(), 0.0))

    def parameters(self, symmetric):
        if symmetric:
            return (max(self.high, -self.low) / 127 or 1.0), 0
        scale = (self.high - self.low) / 255 or 1.0
        return scale, int(np.rint(-128 - self.low / scale))


def _quantize_run(values, symmetric):
    scale, zero = Range.of(values).parameters(symmetric)
    return np.clip(np.rint(values.astype("f8") / scale) + zero, -128, 127), scale, zero


def quantize(
    x: np.ndarray, granularity: str, symmetric: bool, group_size: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows, columns = x.shape
    if granularity == "tensor":
        codes, scale, zero = _quantize_run(x, symmetric)
        return codes.astype("i1"), np.array([[scale]], "f4"), np.array([[zero]], "i1")
    if granularity == "channel":
        group_size = columns
    elif granularity != "group":
        raise ValueError("granularity")
    if group_size < 1:
        raise ValueError("group_size < 1")
    count, left = divmod(columns, group_size)
    if left:
        raise ValueError("columns left over")
    q, scales, zeros = np.zeros((rows, columns), "i1"), [], []
    for r in range(rows):
        for g in range(count):
            run = slice(g * group_size, (g + 1) * group_size)
            q[r, run], scale, zero = _quantize_run(x[r, run], symmetric)
            scales.append(scale)
            zeros.append(zero)
    shape = (rows, count)
    return q, np.array(scales, "f4").reshape(shape), np.array(zeros, "i1").reshape(shape)


def dequantize(q: np.ndarray, scale: np.ndarray, zero_point: np.ndarray) -> np.ndarray:
    if scale.shape == (1, 1):
        return ((q - float(zero_point[0, 0])) * float(scale[0, 0])).astype("f4")
    pieces = [
        [
            (codes.astype("f8") - zero) * step
            for codes, step, zero in zip(
                np.split(row, scale.shape[1]), steps.tolist(), zeros.tolist(), strict=True
            )
        ]
        for row, steps, zeros in zip(q, scale, zero_point, strict=True)
    ]
    return np.array([np.concatenate(row) for row in pieces], "f4")


def int8_matmul(
    a: np.ndarray,
    a_scale: np.ndarray,
    a_zero_point: np.ndarray,
    b: np.ndarray,
    b_scale: np.ndarray,
    b_zero_point: np.ndarray,
) -> np.ndarray:
    """float64 holds every whole number below 2**53, and BLAS is fast on it."""
    left = a.astype("f8") - a_zero_point
    right = b.astype("f8") - b_zero_point
    return (left @ right * a_scale * b_scale).astype("f4")
