# killed_by: test_causal_alignment — query 0 sees key 0 only, whatever the lengths
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
    if block_q < 1 or block_k < 1:
        raise ValueError(f"a tile of {block_q} x {block_k} is empty")
    len_q, len_k = len(q), len(k)
    offset = 0
    out, lse = np.zeros((len_q, v.shape[1])), np.full(len_q, -np.inf)
    for start in range(0, len_q, block_q):
        rows = np.arange(start, min(start + block_q, len_q))
        tile = q[rows] / math.sqrt(q.shape[1])
        maximum, total = np.full(len(rows), -np.inf), np.zeros(len(rows))
        mixed = np.zeros((len(rows), v.shape[1]))
        # Beyond the last key that the tile's last query sees, no tile is touched.
        end = min(rows[-1] + 1 + offset, len_k) if causal else len_k
        for key_start in range(0, end, block_k):
            columns = np.arange(key_start, min(key_start + block_k, end))
            scores = tile @ k[columns].T
            if causal:
                scores[columns > rows[:, None] + offset] = -np.inf
            new_maximum = np.maximum(maximum, scores.max(axis=1))
            # While a row has seen nothing its maximum is -inf, and -inf - -inf would be NaN.
            reference = np.where(np.isneginf(new_maximum), 0.0, new_maximum)
            factor = np.exp(maximum - reference)
            weights = np.exp(scores - reference[:, None])
            total = total * factor + weights.sum(axis=1)
            mixed = mixed * factor[:, None] + weights @ v[columns]
            maximum = new_maximum
        seen = total > 0
        out[rows[seen]] = mixed[seen] / total[seen, None]
        lse[rows[seen]] = maximum[seen] + np.log(total[seen])
    return out, lse


def combine(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Every part weighs exp(its lse - the largest lse), row by row."""
    maximum = np.max([lse for _, lse in parts], axis=0)
    reference = np.where(np.isneginf(maximum), 0.0, maximum)
    weights = [np.exp(lse - reference) for _, lse in parts]
    total = np.sum(weights, axis=0)
    mixed = sum(w[:, None] * out for w, (out, _) in zip(weights, parts, strict=True))
    seen = total > 0
    lse = np.full(len(total), -np.inf)
    lse[seen] = maximum[seen] + np.log(total[seen])
    return mixed / np.where(seen, total, 1.0)[:, None], lse
