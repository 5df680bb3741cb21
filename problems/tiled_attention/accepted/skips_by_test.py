"""Both loops over all tiles, and a test that skips the hidden ones; padded tiles; helpers."""

import numpy as np

NEG = -np.inf


def _tiles(length, block):
    return [(a, min(a + block, length)) for a in range(0, length, block)]


def tiled_attention(q, k, v, block_q, block_k, causal=False):
    if block_q <= 0 or block_k <= 0:
        raise ValueError("blocks must be positive")
    n, m = q.shape[0], k.shape[0]
    out = np.zeros((n, v.shape[1]))
    lse = np.full((n,), NEG)
    for qa, qb in _tiles(n, block_q):
        acc = np.zeros((qb - qa, v.shape[1] + 1))  # the last column sums the weights
        top = np.full((qb - qa, 1), NEG)
        for ka, kb in _tiles(m, block_k):
            if causal and ka > (qb - 1) + (m - n):
                continue
            s = np.einsum("id,jd->ij", q[qa:qb], k[ka:kb]) * q.shape[1] ** -0.5
            if causal:
                i = np.arange(qa, qb).reshape(-1, 1)
                j = np.arange(ka, kb).reshape(1, -1)
                s = np.where(j - i > m - n, NEG, s)
            new_top = np.maximum(top, s.max(axis=1, keepdims=True))
            live = new_top > NEG
            p = np.where(live, np.exp(s - np.where(live, new_top, 0)), 0)
            scale = np.where(top > NEG, np.exp(top - np.where(live, new_top, 0)), 0)
            acc = acc * scale + p @ np.hstack([v[ka:kb], np.ones((kb - ka, 1))])
            top = new_top
        for r in range(qb - qa):
            if acc[r, -1] > 0:
                out[qa + r] = acc[r, :-1] / acc[r, -1]
                lse[qa + r] = top[r, 0] + np.log(acc[r, -1])
    return out, lse


def combine(parts):
    lse = np.logaddexp.reduce([part_lse for _, part_lse in parts])
    known = np.isfinite(lse)
    out = np.zeros_like(parts[0][0])
    for part, part_lse in parts:
        out[known] += part[known] * np.exp(part_lse[known] - lse[known])[:, None]
    return out, lse
