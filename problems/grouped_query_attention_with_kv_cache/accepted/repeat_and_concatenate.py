"""Grows by concatenation, repeats KV heads for the product, caches keys before rotation."""

import numpy as np


def rotate(x, positions):
    half = x.shape[-1] // 2
    theta = np.asarray(positions)[:, None] / 10000.0 ** (np.arange(half) / half)
    turned = np.concatenate([-x[..., half:], x[..., :half]], axis=-1)
    return x * np.cos(np.tile(theta, 2)) + turned * np.sin(np.tile(theta, 2))


class CachedAttention:
    def __init__(self, w_q, w_k, w_v, w_o, num_heads, num_kv_heads, max_length):
        if num_heads <= 0 or num_kv_heads <= 0 or num_heads % num_kv_heads != 0:
            raise ValueError("heads")
        self.w_q, self.w_k, self.w_v, self.w_o = w_q, w_k, w_v, w_o
        self.h, self.g, self.max_length = num_heads, num_kv_heads, max_length
        self.d = w_k.shape[1] // num_kv_heads
        self.k = np.zeros((0, self.g, self.d))
        self.v = np.zeros((0, self.g, self.d))

    def length(self):
        return self.k.shape[0]

    def truncate(self, length):
        if length < 0 or length > self.length():
            raise ValueError("length")
        self.k, self.v = self.k[:length], self.v[:length]

    def forward(self, x):
        start, n = self.length(), x.shape[0]
        if start + n > self.max_length:
            raise ValueError("full")
        if n == 0:
            return np.zeros((0, self.w_o.shape[1]))
        self.k = np.concatenate([self.k, (x @ self.w_k).reshape(n, self.g, self.d)])
        self.v = np.concatenate([self.v, (x @ self.w_v).reshape(n, self.g, self.d)])
        total = self.length()
        q = (x @ self.w_q).reshape(n, self.h, self.d).transpose(1, 0, 2)
        q = rotate(q, range(start, total))
        k = rotate(self.k.transpose(1, 0, 2), range(total)).repeat(self.h // self.g, axis=0)
        v = self.v.transpose(1, 0, 2).repeat(self.h // self.g, axis=0)
        scores = np.einsum("hid,hjd->hij", q, k) / self.d**0.5
        scores = scores + np.triu(np.full((n, total), -np.inf), k=start + 1)
        scores = scores - scores.max(-1, keepdims=True)
        p = np.exp(scores)
        p = p / p.sum(-1, keepdims=True)
        return np.einsum("hij,hjd->ihd", p, v).reshape(n, self.h * self.d) @ self.w_o


class GrowingCache:
    def __init__(self, num_kv_heads, head_dim):
        self.n = 0
        self.k = np.zeros((4, num_kv_heads, head_dim))
        self.v = np.zeros((4, num_kv_heads, head_dim))

    def append(self, k, v):
        need = self.n + k.shape[1]
        if need > len(self.k):
            room = len(self.k)
            while room < need:
                room = room + room // 2
            self.k = np.resize(self.k, (room, *self.k.shape[1:]))
            self.v = np.resize(self.v, (room, *self.v.shape[1:]))
        self.k[self.n : need] = k.transpose(1, 0, 2)
        self.v[self.n : need] = v.transpose(1, 0, 2)
        self.n = need

    def keys(self):
        return np.moveaxis(self.k[: self.n], 0, 1)

    def values(self):
        return np.moveaxis(self.v[: self.n], 0, 1)
