"""A mask that is added to the scores, 0 or -inf; one fused projection; heads on the first axis."""

import numpy as np


def multi_head_attention(
    x, w_q, w_k, w_v, w_o, num_heads, causal=False, padding_mask=None
) -> np.ndarray:
    batch, length, width = x.shape
    if not (num_heads > 0 and width % num_heads == 0):
        raise ValueError("bad num_heads")
    bias = np.zeros((batch, length, length))
    if causal:
        bias[:, *np.triu_indices(length, k=1)] = -np.inf
    if padding_mask is not None:
        if padding_mask.shape != (batch, length):
            raise ValueError("bad padding_mask")
        bias += np.where(padding_mask, 0.0, -np.inf)[:, None, :]
    fused = x @ np.concatenate([w_q, w_k, w_v], axis=1)
    q, k, v = np.split(fused, 3, axis=-1)
    q, k, v = (np.stack(np.split(a, num_heads, axis=-1)) for a in (q, k, v))
    scores = np.matmul(q, np.transpose(k, (0, 1, 3, 2))) / (width / num_heads) ** 0.5 + bias
    if length == 0:
        return np.zeros_like(x)
    top = np.maximum(scores.max(axis=-1, keepdims=True), np.finfo(float).min)
    weights = np.exp(scores - top)
    total = np.maximum(weights.sum(axis=-1, keepdims=True), np.finfo(float).tiny)
    heads = (weights / total) @ v
    return np.concatenate(list(heads), axis=-1) @ w_o
