"""One fused projection; keys and values in one array that doubles up to max_length."""

import numpy as np


class GrowingCache:
    def __init__(self, num_kv_heads, head_dim):
        self._data = np.zeros((2, num_kv_heads, 8, head_dim))
        self._used = 0

    def append(self, k, v):
        new = k.shape[1]
        while self._used + new > self._data.shape[2]:
            self._data = np.concatenate([self._data, np.zeros_like(self._data)], axis=2)
        self._data[:, :, self._used : self._used + new] = np.stack([k, v])
        self._used += new

    def keys(self):
        return self._data[0][:, : self._used, :]

    def values(self):
        return self._data[1][:, : self._used, :]

    def cut(self, length):
        self._used = length


def turn(x, start):
    """x: (heads, tokens, dim)"""
    a, b = np.split(x, 2, axis=-1)
    dim = x.shape[-1]
    angle = np.outer(np.arange(start, start + x.shape[1]), 1e4 ** (-np.arange(0, dim, 2) / dim))
    c, s = np.cos(angle), np.sin(angle)
    return np.concatenate((a * c - b * s, a * s + b * c), axis=-1)


class CachedAttention:
    def __init__(self, w_q, w_k, w_v, w_o, num_heads, num_kv_heads, max_length):
        if num_kv_heads < 1 or num_heads < num_kv_heads or num_heads % num_kv_heads:
            raise ValueError(f"{num_heads=} {num_kv_heads=}")
        self._fused = np.hstack([w_q, w_k, w_v])
        self._out = w_o
        self._heads, self._kv, self._most = num_heads, num_kv_heads, max_length
        self._dim = w_q.shape[1] // num_heads
        self._cache = GrowingCache(num_kv_heads, self._dim)
        self._n = 0

    def length(self):
        return np.int64(self._n)

    def truncate(self, length):
        if length > self._n or length < 0:
            raise ValueError(length)
        self._n = length
        self._cache.cut(length)

    def forward(self, x):
        n = x.shape[0]
        if self._n + n > self._most:
            raise ValueError(n)
        if not n:
            return x.copy()
        all_heads = (x @ self._fused).reshape(n, self._heads + 2 * self._kv, self._dim)
        all_heads = np.swapaxes(all_heads, 0, 1)
        q, k, v = np.split(all_heads, [self._heads, self._heads + self._kv])
        self._cache.append(turn(k, self._n), v)
        q = turn(q, self._n) * self._dim**-0.5
        out = np.empty((n, self._heads, self._dim))
        group = self._heads // self._kv
        for i in range(n):
            end = self._n + i + 1
            for h in range(self._heads):
                keys = self._cache.keys()[h // group, :end]
                s = keys @ q[h, i]
                p = np.exp(s - np.max(s))
                out[i, h] = p @ self._cache.values()[h // group, :end] / np.sum(p)
        self._n += n
        return out.reshape(n, -1) @ self._out
