# killed_by: test_statistics_memory, test_weighted_sum_memory — all chunks are held at once
from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np


def softmax_statistics(chunks: Iterable[np.ndarray]) -> tuple[float, float]:
    scores = np.concatenate([np.empty(0), *chunks])
    maximum = float(np.max(scores, initial=-np.inf))
    if maximum == -math.inf:
        return maximum, 0.0
    with np.errstate(over="ignore"):
        return maximum, float(np.exp(scores - maximum).sum())


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
    scores = np.concatenate(list(score_chunks))
    values = np.concatenate(list(value_chunks))
    maximum = float(np.max(scores, initial=-np.inf))
    if maximum == -math.inf:
        return np.zeros(values.shape[1])
    with np.errstate(over="ignore"):
        weights = np.exp(scores - maximum)
    return weights @ values / weights.sum()
