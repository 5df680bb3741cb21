"""The hyperbolic tangent that caps scores: Gemma 2's softcap is cap * tanh(score / cap)."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def tanh(x, PRECISE: tl.constexpr):
    """By tanh(x) = 2 sigmoid(2x) - 1, which is off by 1e-7 around 0.

    PRECISE, for fp32: off by 1.7e-7 of the result. There small x take tanh(2y) = 2 tanh(y) /
    (1 + tanh(y)^2) with y = x/2, whose series is short, and no 1 is subtracted from large ones.
    """
    if PRECISE:
        size = tl.abs(x)
        y = size * 0.5
        square = y * y
        series = 62.0 / 2835.0 - square * (1382.0 / 155925.0)
        series = -17.0 / 315.0 + square * series
        series = 2.0 / 15.0 + square * series
        series = -1.0 / 3.0 + square * series
        half = y + y * square * series
        power = tl.math.exp2(size * (-2.0 * LOG2_E))
        near, far = 2.0 * half / (1.0 + half * half), 1.0 - 2.0 * power / (1.0 + power)
        result = tl.where(size < 0.8, near, far)
        result = tl.where(x < 0.0, -result, result)
    else:
        result = 2.0 / (1.0 + tl.math.exp2(x * (-2.0 * LOG2_E))) - 1.0
    return result
