"""Splits a row of tiles in full ones, which need no mask, and the ones on the diagonal."""

import numpy as np


class _State:
    def __init__(self, rows, width):
        self.m = np.full((rows, 1), np.finfo(np.float64).min)
        self.l = np.zeros((rows, 1))
        self.o = np.zeros((rows, width))

    def update(self, s, v):
        m = np.maximum(self.m, np.max(s, axis=1, keepdims=True))
        p = np.exp(s - m)
        old = np.exp(self.m - m)
        self.l = old * self.l + np.sum(p, axis=1, keepdims=True)
        self.o = old * self.o + p @ v
        self.m = m

    def finish(self):
        with np.errstate(divide="ignore"):
            lse = np.where(self.l > 0, self.m + np.log(self.l), -np.inf)
        return self.o / np.where(self.l > 0, self.l, 1), lse[:, 0]


def tiled_attention(q, k, v, block_q, block_k, causal=False):
    if block_q < 1:
        raise ValueError("block_q")
    if block_k < 1:
        raise ValueError("block_k")
    len_q, len_k = q.shape[0], k.shape[0]
    result = np.zeros((len_q, v.shape[1])), np.full(len_q, -np.inf)
    for i0 in range(0, len_q, block_q):
        qt = q[i0 : i0 + block_q] / np.sqrt(q.shape[-1])
        state = _State(len(qt), v.shape[1])
        first_row_sees = len_k if not causal else i0 + 1 + len_k - len_q
        last_row_sees = len_k if not causal else i0 + len(qt) + len_k - len_q
        j0 = 0
        while j0 < min(len_k, last_row_sees):
            kt, vt = k[j0 : j0 + block_k], v[j0 : j0 + block_k]
            s = qt @ kt.T
            if j0 + len(kt) > first_row_sees:
                s[np.triu_indices(len(qt), first_row_sees - j0, len(kt))] = -np.inf
            state.update(s, vt)
            j0 += block_k
        result[0][i0 : i0 + block_q], result[1][i0 : i0 + block_q] = state.finish()
    return result
