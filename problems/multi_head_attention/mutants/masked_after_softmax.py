# killed_by: test_causal — weights are zeroed after the softmax, and sum to less than 1
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
    q, k, v = (
        (x @ w).reshape(batch, length, num_heads, head_dim).transpose(0, 2, 1, 3)
        for w in (w_q, w_k, w_v)
    )
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(head_dim)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    if causal:
        weights = np.tril(weights)
    if padding_mask is not None:
        weights = weights * padding_mask[:, None, None, :]
    return (weights @ v).transpose(0, 2, 1, 3).reshape(batch, length, d_model) @ w_o
