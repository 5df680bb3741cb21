# killed_by: test_causal — a query sees one position ahead
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
        raise ValueError(f"d_model {d_model} cannot be split into {num_heads} heads")
    if padding_mask is not None and padding_mask.shape != (batch, length):
        raise ValueError(f"padding_mask has shape {padding_mask.shape}, not {(batch, length)}")
    head_dim = d_model // num_heads

    def heads(projected: np.ndarray) -> np.ndarray:
        """(batch, length, d_model) -> (batch, num_heads, length, head_dim)"""
        return projected.reshape(batch, length, num_heads, head_dim).swapaxes(1, 2)

    q, k, v = heads(x @ w_q), heads(x @ w_k), heads(x @ w_v)
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(head_dim)
    allowed = np.ones((batch, 1, length, length), dtype=bool)  # query by key
    if causal:
        allowed &= np.tri(length, k=1, dtype=bool)
    if padding_mask is not None:
        allowed &= padding_mask[:, None, None, :]
    mixed = _softmax(scores, allowed) @ v
    return mixed.swapaxes(1, 2).reshape(batch, length, d_model) @ w_o


def attention_backward(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, d_out: np.ndarray, causal: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Names as in the FlashAttention paper: S = scale Q K^T, P = softmax(S), O = P V."""
    length, head_dim = q.shape
    scale = 1.0 / np.sqrt(head_dim)
    allowed = np.tri(length, dtype=bool) if causal else np.ones((length, length), dtype=bool)
    p = _softmax(q @ k.T * scale, allowed)
    d_p = d_out @ v.T
    # A softmax's Jacobian is diag(p) - p p^T, row by row.
    d_s = p * (d_p - (p * d_p).sum(axis=-1, keepdims=True)) * scale
    return d_s @ k, d_s.T @ q, p.T @ d_out


def _softmax(scores: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Over the last axis, among the allowed entries; zeros in a row that has none."""
    scores = np.where(allowed, scores, -np.inf)
    maximum = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    # -inf - -inf would be NaN; with 0 in its place such a row is exp(-inf) = 0 throughout.
    weights = np.exp(scores - np.where(np.isneginf(maximum), 0.0, maximum))
    total = weights.sum(axis=-1, keepdims=True)
    return weights / np.where(total == 0.0, 1.0, total)
