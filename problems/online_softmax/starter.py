"""Online softmax. The statement is in README.md; run `infra-lab test online_softmax` to grade."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np


def softmax_statistics(chunks: Iterable[np.ndarray]) -> tuple[float, float]:
    """(maximum, total) of all scores: total is the sum of exp(score - maximum).

    Args:
        chunks: 1-D float64 arrays, to be read once, one at a time. A chunk may be empty.

    Returns:
        (-inf, 0.0) where no score is finite.
    """
    raise NotImplementedError


def merge(
    left: tuple[float, float, np.ndarray], right: tuple[float, float, np.ndarray]
) -> tuple[float, float, np.ndarray]:
    """The state of two disjoint sets of scores together.

    A state is (maximum, total, weighted): `weighted`, of shape (d,), is the sum of
    exp(score - maximum) * value. The state of no finite score is (-inf, 0.0, zeros).
    """
    raise NotImplementedError


def online_weighted_sum(
    score_chunks: Iterable[np.ndarray], value_chunks: Iterable[np.ndarray]
) -> np.ndarray:
    """softmax(scores) @ values, of shape (d,), in one pass.

    Args:
        score_chunks: arrays of shape (n,); n differs from chunk to chunk and may be 0.
        value_chunks: as many arrays, of shape (n, d) with the n of the scores beside them.

    Returns:
        zeros where no score is finite.
    """
    raise NotImplementedError


def stream_softmax(
    read_chunks: Callable[[], Iterable[np.ndarray]], write_chunk: Callable[[np.ndarray], object]
) -> None:
    """Follow-up: the softmax itself, for scores that do not fit in memory.

    Args:
        read_chunks: starts a new pass over the scores; call it twice at most.
        write_chunk: takes the weights of one chunk; call it once a chunk, in order.
    """
    raise NotImplementedError
