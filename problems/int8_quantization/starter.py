"""INT8 quantization. The statement is in README.md; run `infra-lab test int8_quantization` to
grade."""

import numpy as np


def quantize(
    x: np.ndarray, granularity: str, symmetric: bool, group_size: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes (int8, shape of x), scales (float32) and zero points (int8).

    Args:
        granularity: "tensor", "channel" (one scale a row) or "group" (one for each `group_size`
            consecutive elements of a row); scales have shape (1, 1), (rows, 1) or
            (rows, columns // group_size).
        symmetric: codes in [-127, 127] and no zero point, or codes in [-128, 127] and one.

    Raises:
        ValueError: another granularity, a group size that does not fit, NaN or infinity in x.
    """
    raise NotImplementedError


def dequantize(q: np.ndarray, scale: np.ndarray, zero_point: np.ndarray) -> np.ndarray:
    """(q - zero_point) * scale as float32; `scale` in any of the shapes that quantize returns."""
    raise NotImplementedError


def int8_matmul(
    a: np.ndarray,
    a_scale: np.ndarray,
    a_zero_point: np.ndarray,
    b: np.ndarray,
    b_scale: np.ndarray,
    b_zero_point: np.ndarray,
) -> np.ndarray:
    """Follow-up: the float32 product (M, N) of what `a` and `b` stand for.

    Args:
        a: int8 (M, K); a_scale and a_zero_point (M, 1).
        b: int8 (K, N); b_scale and b_zero_point (1, N).
    """
    raise NotImplementedError
