# killed_by: test_memory — the whole score matrix at once
from __future__ import annotations

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
        raise ValueError("block sizes must be at least 1")
    len_q, len_k = len(q), len(k)
    scores = q @ k.T / np.sqrt(q.shape[1])
    if causal:
        scores = np.where(np.tri(len_q, len_k, len_k - len_q, dtype=bool), scores, -np.inf)
    maximum = scores.max(axis=1, keepdims=True, initial=-np.inf)
    reference = np.where(np.isneginf(maximum), 0.0, maximum)
    weights = np.exp(scores - reference)
    total = weights.sum(axis=1, keepdims=True)
    seen = total > 0
    out = weights @ v / np.where(seen, total, 1.0)
    lse = np.where(seen, reference + np.log(np.where(seen, total, 1.0)), -np.inf)
    return out, lse[:, 0]
