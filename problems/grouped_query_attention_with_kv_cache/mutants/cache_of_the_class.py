# killed_by: test_two_instances — keys and values live on the class, and all instances share them
from __future__ import annotations

import math

import numpy as np


def rotate(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    half = x.shape[-1] // 2
    angles = positions[:, None] * 10000.0 ** (-np.arange(half) / half)
    cos, sin = np.cos(angles), np.sin(angles)
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


class CachedAttention:
    keys: list[np.ndarray] = []  # noqa: RUF012
    values: list[np.ndarray] = []  # noqa: RUF012

    def __init__(
        self,
        w_q: np.ndarray,
        w_k: np.ndarray,
        w_v: np.ndarray,
        w_o: np.ndarray,
        num_heads: int,
        num_kv_heads: int,
        max_length: int,
    ) -> None:
        if num_kv_heads < 1 or num_heads < 1 or num_heads % num_kv_heads:
            raise ValueError("num_kv_heads must divide num_heads")
        self.keys.clear()
        self.values.clear()
        self.w_q, self.w_k, self.w_v, self.w_o = w_q, w_k, w_v, w_o
        self.num_heads, self.num_kv_heads, self.max_length = num_heads, num_kv_heads, max_length
        self.head_dim = w_q.shape[1] // num_heads

    def length(self) -> int:
        return len(self.keys)

    def truncate(self, length: int) -> None:
        if not 0 <= length <= len(self.keys):
            raise ValueError("nothing to keep")
        del self.keys[length:], self.values[length:]

    def forward(self, x: np.ndarray) -> np.ndarray:
        if len(self.keys) + len(x) > self.max_length:
            raise ValueError("the cache is full")
        return np.array([self._one(token) for token in x]).reshape(x.shape)

    def _one(self, token: np.ndarray) -> np.ndarray:
        position = np.array([len(self.keys)])
        key = (token @ self.w_k).reshape(self.num_kv_heads, 1, self.head_dim)
        self.keys.append(rotate(key, position)[:, 0])
        self.values.append((token @ self.w_v).reshape(self.num_kv_heads, self.head_dim))
        query = (token @ self.w_q).reshape(self.num_heads, 1, self.head_dim)
        query = rotate(query, position)[:, 0]
        group = self.num_heads // self.num_kv_heads
        keys = np.stack(self.keys).repeat(group, axis=1)
        values = np.stack(self.values).repeat(group, axis=1)
        scores = np.einsum("hd,jhd->hj", query, keys) / math.sqrt(self.head_dim)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        return np.einsum("hj,jhd->hd", weights, values).reshape(-1) @ self.w_o
