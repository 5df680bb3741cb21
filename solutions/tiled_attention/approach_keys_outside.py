"""FlashAttention-1's order: a tile of keys and values stays, all queries pass by.

The same time. The state of every row is kept between the tiles, normalised, as (out, lse): so a
key tile's result is merged exactly as `combine` merges the results of other workers. Memory
beyond the inputs and the result is one tile.
"""

from __future__ import annotations

import math

import numpy as np


def tiled_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    block_q: int,
    block_k: int,
    causal: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    if min(block_q, block_k) < 1:
        raise ValueError("block sizes must be at least 1")
    shift = len(k) - len(q)
    out, lse = np.zeros((len(q), v.shape[1])), np.full(len(q), -np.inf)
    for key_start in range(0, len(k), block_k):
        keys, values = k[key_start : key_start + block_k], v[key_start : key_start + block_k]
        # The first query that sees the tile's first key; those before it skip the tile.
        first = max(0, key_start - shift) if causal else 0
        for start in range(first - first % block_q, len(q), block_q):
            rows = slice(start, start + block_q)
            scores = q[rows] @ keys.T / math.sqrt(q.shape[1])
            if causal:
                # Entry (i, j) of the tile is hidden if key_start + j > start + i + shift.
                visible = np.tri(*scores.shape, start + shift - key_start, dtype=bool)
                scores = np.where(visible, scores, -np.inf)
            one_tile = _normalise(scores, values)
            out[rows], lse[rows] = combine([(out[rows], lse[rows]), one_tile])
    return out, lse


def combine(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """One part after another is added to the first."""
    out, lse = parts[0]
    for other, other_lse in parts[1:]:
        together = np.logaddexp(lse, other_lse)
        # A row that neither part knows has lse -inf in both: it keeps its zeros.
        reference = np.where(together == -np.inf, 0.0, together)
        share, other_share = np.exp(lse - reference), np.exp(other_lse - reference)
        out = out * share[:, None] + other * other_share[:, None]
        lse = together
    return out, lse


def _normalise(scores: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(out, lse) of these keys alone."""
    maximum = np.maximum(scores.max(axis=1), np.finfo(np.float64).min)
    weights = np.exp(scores - maximum[:, None])
    total = weights.sum(axis=1)
    out = weights @ values / np.where(total > 0, total, 1.0)[:, None]
    lse = np.where(total > 0, maximum + np.log(np.where(total > 0, total, 1.0)), -np.inf)
    return out, lse
