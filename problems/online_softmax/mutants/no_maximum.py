# killed_by: test_large_scores — exp of the raw scores: it overflows
from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np


def softmax_statistics(chunks: Iterable[np.ndarray]) -> tuple[float, float]:
    maximum, raw = -math.inf, 0.0
    for chunk in chunks:
        maximum = max(maximum, float(np.max(chunk, initial=-np.inf)))
        raw += float(np.exp(chunk).sum())
    return maximum, raw * math.exp(-maximum) if raw else 0.0


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
    total, weighted = 0.0, np.zeros(())
    for scores, values in zip(score_chunks, value_chunks, strict=True):
        weights = np.exp(scores)
        total += float(weights.sum())
        weighted = weighted + weights @ values
    return weighted / total if total else weighted
