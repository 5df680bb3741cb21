"""float32 throughout, multiplying by the reciprocal of the scale as a kernel would."""

import numpy as np

F32 = np.float32


def quantize(
    x: np.ndarray, granularity: str, symmetric: bool, group_size: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = np.asarray(x, dtype=F32)
    if np.isnan(x).any() or np.isinf(x).any():
        raise ValueError("non-finite input")
    rows, columns = x.shape
    widths = {"tensor": rows * columns, "channel": columns, "group": group_size}
    if granularity not in widths:
        raise ValueError(granularity)
    width = widths[granularity]
    if granularity == "group" and (width <= 0 or columns % width > 0):
        raise ValueError(f"group_size={group_size} and {columns} columns")
    flat = x.reshape(-1, width)
    if symmetric:
        scale = abs(flat).max(1, keepdims=True) / F32(127)
        zero = np.zeros(scale.shape, F32)
    else:
        low, high = flat.min(1, keepdims=True), flat.max(1, keepdims=True)
        low, high = np.where(low > 0, F32(0), low), np.where(high < 0, F32(0), high)
        scale = (high - low) / F32(255)
        zero = F32(-128) - low / np.where(scale > 0, scale, F32(1))
        zero = zero.round()
    scale = np.where(scale > 0, scale, F32(1))
    codes = (flat * (F32(1) / scale)).round() + zero
    q = np.minimum(np.maximum(codes, -128), 127).astype(np.int8).reshape(rows, columns)
    shape = (1, 1) if granularity == "tensor" else (rows, columns // width)
    return q, scale.reshape(shape), zero.reshape(shape).astype(np.int8)


def dequantize(q: np.ndarray, scale: np.ndarray, zero_point: np.ndarray) -> np.ndarray:
    tiles = q.astype(F32).reshape(q.shape[0], scale.shape[1], -1)
    return ((tiles - zero_point[:, :, None]) * scale[:, :, None]).astype(F32).reshape(q.shape)
