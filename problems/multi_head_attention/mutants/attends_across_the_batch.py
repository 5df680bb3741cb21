# killed_by: test_shapes, test_sequences_are_apart — all sequences are one long sequence
from __future__ import annotations

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
    if num_heads < 1 or d_model % num_heads:
        raise ValueError("num_heads must divide d_model")
    if padding_mask is not None and padding_mask.shape != (batch, length):
        raise ValueError("padding_mask has a wrong shape")
    head_dim = d_model // num_heads
    tokens = x.reshape(batch * length, d_model)
    allowed = np.ones((batch * length, batch * length), dtype=bool)
    if causal:
        allowed = np.tril(allowed)
    if padding_mask is not None:
        allowed = allowed & padding_mask.reshape(1, -1)
    joined = np.zeros(tokens.shape)
    for head in range(num_heads):
        columns = slice(head * head_dim, (head + 1) * head_dim)
        q, k, v = (tokens @ w[:, columns] for w in (w_q, w_k, w_v))
        scores = np.where(allowed, q @ k.T / np.sqrt(head_dim), -np.inf)
        maximum = scores.max(axis=1, keepdims=True, initial=-1e300)
        weights = np.exp(scores - maximum)
        total = weights.sum(axis=1, keepdims=True)
        joined[:, columns] = weights @ v / np.where(total == 0, 1.0, total)
    return (joined @ w_o).reshape(x.shape)
