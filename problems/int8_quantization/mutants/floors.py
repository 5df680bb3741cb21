# killed_by: test_asymmetric_by_hand — rounds down
import numpy as np


def quantize(
    x: np.ndarray, granularity: str, symmetric: bool, group_size: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows, columns = x.shape
    if not np.isfinite(x).all():
        raise ValueError("x must be finite")
    if granularity == "tensor":
        shape = (1, 1, rows * columns)
    elif granularity == "channel":
        shape = (rows, 1, columns)
    elif granularity == "group":
        if group_size < 1 or columns % group_size != 0:
            raise ValueError("bad group size")
        shape = (rows, columns // group_size, group_size)
    else:
        raise ValueError("bad granularity")
    values = x.astype(np.float32)
    groups = values.reshape(shape)
    if symmetric:
        scale = np.abs(groups).max(axis=2) / np.float32(127)
        scale[scale == 0] = 1.0
        zero = np.zeros_like(scale)
        q = np.rint(groups / scale[:, :, None])
    else:
        low = np.minimum(groups.min(axis=2), 0)
        high = np.maximum(groups.max(axis=2), 0)
        scale = (high - low) / np.float32(255)
        scale[scale == 0] = 1.0
        zero = np.rint(-128 - low / scale)
        q = np.floor(groups / scale[:, :, None]) + zero[:, :, None]
        q = np.clip(q, -128, 127)
    q = q.astype(np.int8).reshape(x.shape)
    return q, scale.astype(np.float32), zero.astype(np.int8)


def dequantize(q: np.ndarray, scale: np.ndarray, zero_point: np.ndarray) -> np.ndarray:
    width = q.shape[1] // scale.shape[1]
    scale = np.repeat(scale, width, axis=1)
    zero = np.repeat(zero_point, width, axis=1)
    return (q.astype(np.float32) - zero.astype(np.float32)) * scale


def int8_matmul(
    a: np.ndarray,
    a_scale: np.ndarray,
    a_zero_point: np.ndarray,
    b: np.ndarray,
    b_scale: np.ndarray,
    b_zero_point: np.ndarray,
) -> np.ndarray:
    left = a.astype(np.int32) - a_zero_point.astype(np.int32)
    right = b.astype(np.int32) - b_zero_point.astype(np.int32)
    total = left @ right
    return (total.astype(np.float64) * a_scale * b_scale).astype(np.float32)
