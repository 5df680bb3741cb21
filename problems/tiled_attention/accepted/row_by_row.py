"""Inside a tile of queries, one row at a time, in scalars; early exits."""

import math

import numpy as np


def tiled_attention(q, k, v, block_q, block_k, causal=False):
    if min(block_q, block_k) < 1:
        raise ValueError(f"{block_q=}, {block_k=}")
    n, m = len(q), len(k)
    out, lse = np.zeros((n, v.shape[1])), np.empty(n)
    for i in range(n):
        seen = max(0, min(m, i + 1 + m - n)) if causal else m
        out[i], lse[i] = _row(q[i], k, v, seen, block_k)
    return out, lse


def _row(query, k, v, seen, block_k):
    top, total, acc = -math.inf, 0.0, np.zeros(v.shape[1])
    for a in range(0, seen, block_k):
        b = min(seen, a + block_k)
        s = k[a:b] @ query / math.sqrt(len(query))
        peak = float(s.max())
        if peak > top:
            shrink = math.exp(top - peak)
            total, acc, top = total * shrink, acc * shrink, peak
        w = np.exp(s - top)
        total += float(w.sum())
        acc = acc + w @ v[a:b]
    if total == 0.0:
        return acc, -math.inf
    return acc / total, top + math.log(total)


def combine(parts):
    n, dim = parts[0][0].shape
    out, lse = np.zeros((n, dim)), np.full(n, -math.inf)
    for i in range(n):
        top = max(float(part[1][i]) for part in parts)
        if top == -math.inf:
            continue
        weights = [math.exp(float(part[1][i]) - top) for part in parts]
        total = sum(weights)
        lse[i] = top + math.log(total)
        for weight, part in zip(weights, parts, strict=True):
            out[i] += weight / total * part[0][i]
    return out, lse
