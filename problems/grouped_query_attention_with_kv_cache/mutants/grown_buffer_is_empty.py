# killed_by: test_growing_contents — what was held is not copied over
from __future__ import annotations

import math

import numpy as np


def rotate(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Rotary position embedding: turns the pair (i, i + head_dim / 2) of the token at position p
    by the angle p * 10000 ** (-2 i / head_dim).

    Args:
        x: (..., tokens, head_dim), head_dim even.
        positions: (tokens,).
    """
    half = x.shape[-1] // 2
    frequencies = 10000.0 ** (-np.arange(half) / half)
    angles = positions[:, None] * frequencies
    cos, sin = np.cos(angles), np.sin(angles)
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


class CachedAttention:
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
            raise ValueError(f"{num_heads} heads cannot share {num_kv_heads} KV heads evenly")
        self._w_q, self._w_k, self._w_v, self._w_o = w_q, w_k, w_v, w_o
        self._num_heads, self._num_kv_heads = num_heads, num_kv_heads
        self._head_dim = w_q.shape[1] // num_heads
        self._max_length = max_length
        self._length = 0
        # Keys are kept rotated: the position of a token never changes.
        self._keys = np.zeros((num_kv_heads, max_length, self._head_dim))
        self._values = np.zeros((num_kv_heads, max_length, self._head_dim))

    def forward(self, x: np.ndarray) -> np.ndarray:
        past, new = self._length, len(x)
        if past + new > self._max_length:
            raise ValueError(f"{past} + {new} tokens, max_length is {self._max_length}")
        positions = np.arange(past, past + new)
        queries = rotate(self._heads(x @ self._w_q, self._num_heads), positions)
        self._keys[:, past : past + new] = rotate(
            self._heads(x @ self._w_k, self._num_kv_heads), positions
        )
        self._values[:, past : past + new] = self._heads(x @ self._w_v, self._num_kv_heads)
        self._length = past + new
        mixed = self._attend(queries, positions)
        return mixed.swapaxes(0, 1).reshape(new, len(self._w_o)) @ self._w_o

    def truncate(self, length: int) -> None:
        if not 0 <= length <= self._length:
            raise ValueError(f"{length} is not between 0 and {self._length}")
        self._length = length

    def length(self) -> int:
        return self._length

    def _heads(self, projected: np.ndarray, count: int) -> np.ndarray:
        """(tokens, count * head_dim) -> (count, tokens, head_dim)"""
        return projected.reshape(len(projected), count, self._head_dim).swapaxes(0, 1)

    def _attend(self, queries: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """(num_heads, new, head_dim); the heads of a group read one KV head without copying it."""
        keys = self._keys[:, None, : self._length]
        values = self._values[:, None, : self._length]
        group = self._num_heads // self._num_kv_heads
        grouped = queries.reshape(self._num_kv_heads, group, len(positions), self._head_dim)
        scores = grouped @ keys.swapaxes(-1, -2) / math.sqrt(self._head_dim)
        # The query at position p sees p + 1 keys: the diagonal starts at `past`, not at 0.
        is_future = np.arange(self._length) > positions[:, None]
        scores = np.where(is_future, -np.inf, scores)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))
        weights /= weights.sum(axis=-1, keepdims=True)
        return (weights @ values).reshape(queries.shape)


class GrowingCache:
    """Capacity doubles, so that n appended tokens are copied fewer than 2n times in all."""

    def __init__(self, num_kv_heads: int, head_dim: int) -> None:
        self._length = 0
        self._buffer = np.empty((2, num_kv_heads, 1, head_dim))  # keys, values

    def append(self, k: np.ndarray, v: np.ndarray) -> None:
        end = self._length + k.shape[1]
        capacity = self._buffer.shape[2]
        if end > capacity:
            _, heads, _, head_dim = self._buffer.shape
            grown = np.empty((2, heads, max(end, 2 * capacity), head_dim))
            self._buffer = grown
        self._buffer[0, :, self._length : end] = k
        self._buffer[1, :, self._length : end] = v
        self._length = end

    def keys(self) -> np.ndarray:
        return self._buffer[0, :, : self._length]

    def values(self) -> np.ndarray:
        return self._buffer[1, :, : self._length]
