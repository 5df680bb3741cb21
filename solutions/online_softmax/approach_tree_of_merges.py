"""Every chunk becomes a state of its own, and states merge in pairs, like a binary counter.

Time O(n d), memory O(chunk + d log(chunks)). The order of the merges is a balanced tree, which is
what thread blocks, GPUs in a ring or split-KV workers do; rounding errors grow with the tree's
depth, not with the number of chunks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np


def softmax_statistics(chunks: Iterable[np.ndarray]) -> tuple[float, float]:
    states = (_state(chunk, np.empty((len(chunk), 0))) for chunk in chunks)
    maximum, total, _ = _merge_all(states, 0)
    return maximum, total


def merge(
    left: tuple[float, float, np.ndarray], right: tuple[float, float, np.ndarray]
) -> tuple[float, float, np.ndarray]:
    if left[0] < right[0]:
        left, right = right, left
    if right[0] == -math.inf:
        return left
    factor = math.exp(right[0] - left[0])
    return left[0], left[1] + factor * right[1], left[2] + factor * right[2]


def online_weighted_sum(
    score_chunks: Iterable[np.ndarray], value_chunks: Iterable[np.ndarray]
) -> np.ndarray:
    pairs = zip(score_chunks, value_chunks, strict=True)
    _, total, weighted = _merge_all((_state(*pair) for pair in pairs), 0)
    return weighted / total if total > 0 else weighted


def stream_softmax(
    read_chunks: Callable[[], Iterable[np.ndarray]], write_chunk: Callable[[np.ndarray], object]
) -> None:
    maximum, total = softmax_statistics(read_chunks())
    for chunk in read_chunks():
        if total == 0:
            write_chunk(np.zeros_like(chunk))
            continue
        with np.errstate(over="ignore"):
            write_chunk(np.exp(chunk - maximum) / total)


def _state(scores: np.ndarray, values: np.ndarray) -> tuple[float, float, np.ndarray]:
    finite = scores > -np.inf
    if not finite.any():
        return -math.inf, 0.0, np.zeros(values.shape[1])
    maximum = float(scores.max())
    with np.errstate(over="ignore"):
        weights = np.exp(scores - maximum)
    return maximum, float(weights.sum()), weights @ values


def _merge_all(
    states: Iterator[tuple[float, float, np.ndarray]], width: int
) -> tuple[float, float, np.ndarray]:
    waiting: list[tuple[int, tuple[float, float, np.ndarray]]] = []  # (chunks inside, state)
    for state in states:
        size = 1
        while waiting and waiting[-1][0] == size:
            size, state = 2 * size, merge(waiting.pop()[1], state)
        waiting.append((size, state))
    if not waiting:
        return -math.inf, 0.0, np.zeros(width)
    _, result = waiting.pop()
    while waiting:
        result = merge(waiting.pop()[1], result)
    return result
