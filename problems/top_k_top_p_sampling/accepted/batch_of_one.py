"""Writes the batch first; one request is a batch of one."""

import numpy as np


def _filtered(logits, temperature, top_k, top_p):
    logits = np.asarray(logits, dtype=np.float64)
    batch, size = logits.shape
    greedy = temperature == 0
    safe = np.where(greedy, 1, temperature).reshape(batch, 1)
    ids = np.broadcast_to(np.arange(size), logits.shape)
    order = np.lexsort((ids, -logits), axis=1)
    rank = np.argsort(order, axis=1)
    k = np.where(greedy, 1, np.where(top_k < 1, size, top_k)).reshape(batch, 1)
    scaled = (logits - logits.max(axis=1, keepdims=True)) / safe
    p = np.exp(np.where(rank < k, scaled, -np.inf))
    p /= p.sum(axis=1, keepdims=True)
    ranked = np.take_along_axis(p, order, axis=1)
    before = np.zeros_like(ranked)
    before[:, 1:] = np.cumsum(ranked, axis=1)[:, :-1]
    before = np.take_along_axis(before, rank, axis=1)
    limit = top_p.reshape(batch, 1)
    p[(before >= limit) & (limit < 1)] = 0
    return p / p.sum(axis=1, keepdims=True)


def sample_batch(
    logits: np.ndarray,
    temperature: np.ndarray,
    top_k: np.ndarray,
    top_p: np.ndarray,
    u: np.ndarray,
) -> np.ndarray:
    p = _filtered(logits, temperature, top_k, top_p)
    cdf = np.cumsum(p, axis=1)
    cdf[cdf == cdf[:, -1:]] = 1.0
    return (cdf > u.reshape(-1, 1)).argmax(axis=1).astype(np.int32)


def filtered_probabilities(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float
) -> np.ndarray:
    if temperature < 0 or top_k < 0 or top_p > 1 or top_p <= 0:
        raise ValueError
    one = (np.array([temperature]), np.array([top_k]), np.array([top_p]))
    return _filtered(logits[np.newaxis], *one)[0]


def sample(logits: np.ndarray, temperature: float, top_k: int, top_p: float, u: float) -> int:
    if u < 0 or u >= 1:
        raise ValueError
    p = filtered_probabilities(logits=logits, temperature=temperature, top_k=top_k, top_p=top_p)
    cdf = p.cumsum()
    cdf[cdf == cdf[-1]] = 1.0
    return int((cdf > u).argmax())
