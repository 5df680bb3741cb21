"""The law behind counts: how fast a cost grows."""

from __future__ import annotations

import math
from collections.abc import Sequence


def fitted_exponent(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The slope of log y against log x, by least squares: y ~ x^slope."""
    logs = [(math.log(x), math.log(y)) for x, y in zip(xs, ys, strict=True)]
    mean_x, mean_y = (sum(part) / len(logs) for part in zip(*logs, strict=True))
    over = sum((x - mean_x) * (y - mean_y) for x, y in logs)
    return float(over / sum((x - mean_x) ** 2 for x, _ in logs))
