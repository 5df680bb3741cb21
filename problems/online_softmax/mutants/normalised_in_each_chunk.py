# killed_by: test_mean — each chunk is normalised by itself, and all weigh the same
from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np


def softmax_statistics(chunks: Iterable[np.ndarray]) -> tuple[float, float]:
    maximum, total = -math.inf, 0.0
    for chunk in chunks:
        if chunk.size == 0 or np.isneginf(chunk).all():
            continue
        new = max(maximum, float(chunk.max()))
        with np.errstate(over="ignore"):
            total = total * math.exp(maximum - new) + float(np.exp(chunk - new).sum())
        maximum = new
    return maximum, total


def merge(
    left: tuple[float, float, np.ndarray], right: tuple[float, float, np.ndarray]
) -> tuple[float, float, np.ndarray]:
    maximum = max(left[0], right[0])
    if maximum == -math.inf:
        return left
    a, b = math.exp(left[0] - maximum), math.exp(right[0] - maximum)
    return maximum, a * left[1] + b * right[1], a * left[2] + b * right[2]


def online_weighted_sum(
    score_chunks: Iterable[np.ndarray], value_chunks: Iterable[np.ndarray]
) -> np.ndarray:
    chunks, weighted = 0, np.zeros(())
    for scores, values in zip(score_chunks, value_chunks, strict=True):
        weighted = weighted + np.zeros(values.shape[1])
        if scores.size == 0 or np.isneginf(scores).all():
            continue
        chunks += 1
        with np.errstate(over="ignore"):
            weights = np.exp(scores - scores.max())
        weighted = weighted + weights @ values / weights.sum()
    return weighted / max(chunks, 1)
