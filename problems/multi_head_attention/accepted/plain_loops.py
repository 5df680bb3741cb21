"""Query by query, with lists of the keys that may be seen."""

import math

import numpy as np


def _softmax(scores):
    top = max(scores)
    weights = [math.exp(s - top) for s in scores]
    total = sum(weights)
    return [w / total for w in weights]


def multi_head_attention(x, w_q, w_k, w_v, w_o, num_heads, causal=False, padding_mask=None):
    batch, length, d_model = x.shape
    if num_heads <= 0:
        raise ValueError("at least one head")
    head_dim, rest = divmod(d_model, num_heads)
    if rest:
        raise ValueError("d_model must be a multiple of num_heads")
    if padding_mask is not None and padding_mask.shape != x.shape[:2]:
        raise ValueError("one mark per token")

    joined = np.zeros_like(x)
    for b in range(batch):
        q, k, v = x[b] @ w_q, x[b] @ w_k, x[b] @ w_v
        for i in range(length):
            last = i + 1 if causal else length
            keys = [j for j in range(last) if padding_mask is None or padding_mask[b, j]]
            if not keys:
                continue
            for start in range(0, d_model, head_dim):
                part = slice(start, start + head_dim)
                scores = [float(q[i, part] @ k[j, part]) / math.sqrt(head_dim) for j in keys]
                for weight, j in zip(_softmax(scores), keys, strict=True):
                    joined[b, i, part] += weight * v[j, part]
    return joined @ w_o
