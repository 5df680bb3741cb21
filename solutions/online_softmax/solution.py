"""A running maximum, a running total, a running weighted sum: one pass.

Time O(n d), memory O(chunk + d). `stream_softmax` reads twice and writes once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np


def softmax_statistics(chunks: Iterable[np.ndarray]) -> tuple[float, float]:
    maximum, total = -math.inf, 0.0
    for chunk in chunks:
        new_maximum = max(maximum, float(np.max(chunk, initial=-np.inf)))
        total = total * _factor(maximum, new_maximum) + float(_weights(chunk, new_maximum).sum())
        maximum = new_maximum
    return maximum, total


def merge(
    left: tuple[float, float, np.ndarray], right: tuple[float, float, np.ndarray]
) -> tuple[float, float, np.ndarray]:
    maximum = max(left[0], right[0])
    of_left, of_right = _factor(left[0], maximum), _factor(right[0], maximum)
    return (
        maximum,
        left[1] * of_left + right[1] * of_right,
        left[2] * of_left + right[2] * of_right,
    )


def online_weighted_sum(
    score_chunks: Iterable[np.ndarray], value_chunks: Iterable[np.ndarray]
) -> np.ndarray:
    maximum, total = -math.inf, 0.0
    weighted = np.zeros(())  # takes the values' shape with the first chunk
    for scores, values in zip(score_chunks, value_chunks, strict=True):
        new_maximum = max(maximum, float(np.max(scores, initial=-np.inf)))
        factor, weights = _factor(maximum, new_maximum), _weights(scores, new_maximum)
        # What was summed under the old maximum is brought to the new one before it is added to.
        total = total * factor + float(weights.sum())
        weighted = weighted * factor + weights @ values
        maximum = new_maximum
    return weighted / total if total else weighted


def stream_softmax(
    read_chunks: Callable[[], Iterable[np.ndarray]], write_chunk: Callable[[np.ndarray], object]
) -> None:
    maximum, total = softmax_statistics(read_chunks())
    for chunk in read_chunks():
        # Without a finite score the total is 0, and so is every weight.
        write_chunk(_weights(chunk, maximum) / (total or 1.0))


def _factor(old_maximum: float, new_maximum: float) -> float:
    """exp(old - new); 0 where nothing was seen yet: -inf - -inf would be NaN."""
    return 0.0 if old_maximum == -math.inf else math.exp(old_maximum - new_maximum)


def _weights(scores: np.ndarray, maximum: float) -> np.ndarray:
    """exp(scores - maximum), 0 for scores of -inf."""
    if maximum == -math.inf:
        return np.zeros(scores.shape)
    with np.errstate(over="ignore"):  # -1e308 - 1e308 is -inf, whose exp is rightly 0
        return np.exp(scores - maximum)
