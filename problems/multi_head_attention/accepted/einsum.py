"""einsum throughout; weights cut into heads before the projections."""

import numpy as np


def multi_head_attention(x, w_q, w_k, w_v, w_o, num_heads, causal=False, padding_mask=None):
    b, n, d = x.shape
    if num_heads < 1 or d % num_heads != 0:
        raise ValueError(f"{num_heads=} must divide {d=}")
    if padding_mask is not None and padding_mask.shape != (b, n):
        raise ValueError("mask shape")
    e = d // num_heads
    q = np.einsum("bnd,dhe->bhne", x, w_q.reshape(d, num_heads, e))
    k = np.einsum("bnd,dhe->bhne", x, w_k.reshape(d, num_heads, e))
    v = np.einsum("bnd,dhe->bhne", x, w_v.reshape(d, num_heads, e))
    scores = np.einsum("bhie,bhje->bhij", q, k) * e**-0.5
    blocked = np.zeros((b, 1, n, n), dtype=bool)
    if causal:
        blocked = blocked | np.triu(np.ones((n, n), dtype=bool), k=1)
    if padding_mask is not None:
        blocked = blocked | ~padding_mask[:, np.newaxis, np.newaxis, :]
    lowest = np.finfo(np.float64).min
    shifted = np.where(blocked, lowest, scores)
    shifted = shifted - shifted.max(axis=-1, keepdims=True, initial=lowest)
    weights = np.where(blocked, 0.0, np.exp(shifted))
    total = weights.sum(axis=-1, keepdims=True)
    weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return np.einsum("bhij,bhje,hed->bid", weights, v, w_o.reshape(num_heads, e, d))


def attention_backward(q, k, v, d_out, causal=False):
    n, e = q.shape
    scores = np.einsum("ie,je->ij", q, k) / e**0.5
    if causal:
        scores[np.triu_indices(n, 1)] = -np.inf
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    out = p @ v
    delta = np.einsum("ie,ie->i", d_out, out)  # equals the row sum of p * d_p
    d_s = p * (d_out @ v.T - delta[:, None]) / e**0.5
    return (d_s @ k, d_s.T @ q, p.T @ d_out)
