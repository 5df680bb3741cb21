"""One sequence and one head at a time, with matrices of two axes only.

The same O(B n d_model (n + d_model)) time, but one n x n score matrix at once instead of
B * num_heads: memory O(n^2 + n d_model). The form to write first, and to check the batched one
against.
"""

from __future__ import annotations

import math

import numpy as np


def multi_head_attention(
    x: np.ndarray,
    w_q: np.ndarray,
    w_k: np.ndarray,
    w_v: np.ndarray,
    w_o: np.ndarray,
    num_heads: int,
    causal: bool = False,
    padding_mask: np.ndarray | None = None,
) -> np.ndarray:
    batch, length, d_model = x.shape
    if num_heads <= 0 or d_model % num_heads != 0:
        raise ValueError("num_heads must divide d_model")
    if padding_mask is None:
        padding_mask = np.ones((batch, length), dtype=bool)
    elif padding_mask.shape != (batch, length):
        raise ValueError("padding_mask must have the shape (batch, length)")
    head_dim = d_model // num_heads
    output = np.zeros((batch, length, d_model))
    for sequence in range(batch):
        keys = np.flatnonzero(padding_mask[sequence])
        for head in range(num_heads):
            columns = slice(head * head_dim, (head + 1) * head_dim)
            q = x[sequence] @ w_q[:, columns]
            k = x[sequence, keys] @ w_k[:, columns]
            v = x[sequence, keys] @ w_v[:, columns]
            mixed = _attend(q, k, v, keys if causal else None)
            # Concatenating heads before w_o is adding each head's share of it.
            output[sequence] += mixed @ w_o[columns, :]
    return output


def attention_backward(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, d_out: np.ndarray, causal: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Query by query: each adds its share to the gradients of the keys and values it sees."""
    length, head_dim = q.shape
    scale = 1.0 / math.sqrt(head_dim)
    d_q, d_k, d_v = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
    for i in range(length):
        seen = i + 1 if causal else length
        scores = k[:seen] @ q[i] * scale
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        d_weights = v[:seen] @ d_out[i]
        d_scores = weights * (d_weights - weights @ d_weights) * scale
        d_q[i] = d_scores @ k[:seen]
        d_k[:seen] += np.outer(d_scores, q[i])
        d_v[:seen] += np.outer(weights, d_out[i])
    return d_q, d_k, d_v


def _attend(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, key_positions: np.ndarray | None
) -> np.ndarray:
    """Padded keys are left out already. With key positions: causal."""
    mixed = np.zeros((len(q), v.shape[1]))
    scores = q @ k.T / math.sqrt(q.shape[1])
    for position, row in enumerate(scores):
        seen = len(row) if key_positions is None else int((key_positions <= position).sum())
        if seen:
            weights = np.exp(row[:seen] - row[:seen].max())
            mixed[position] = weights @ v[:seen] / weights.sum()
    return mixed
