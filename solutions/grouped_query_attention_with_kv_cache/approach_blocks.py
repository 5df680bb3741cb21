"""Paged: the cache is a list of blocks of a fixed size, taken as the sequence grows.

A call with n new tokens after p cached ones takes O(n d_model^2 + n (p + n) num_heads head_dim)
time; the cache takes at most one block more than the tokens need, whatever max_length is, and
never moves. Every query goes over the blocks with an online softmax, as a paged kernel does.
"""

from __future__ import annotations

import math

import numpy as np

BLOCK_SIZE = 16


def rotate(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Pairs as complex numbers, turned by exp(i angle)."""
    half = x.shape[-1] // 2
    angles = np.outer(positions, 10000.0 ** (-np.arange(half) / half))
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag], axis=-1)


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
        if min(num_heads, num_kv_heads) < 1 or num_heads % num_kv_heads != 0:
            raise ValueError("num_kv_heads must divide num_heads")
        self._weights = (w_q, w_k, w_v, w_o)
        self._num_heads, self._num_kv_heads = num_heads, num_kv_heads
        self._head_dim = w_q.shape[1] // num_heads
        self._max_length = max_length
        self._blocks: list[tuple[np.ndarray, np.ndarray]] = []
        self._length = 0

    def forward(self, x: np.ndarray) -> np.ndarray:
        if self._length + len(x) > self._max_length:
            raise ValueError(f"no room for {len(x)} tokens after {self._length}")
        w_q, w_k, w_v, w_o = self._weights
        output = np.zeros((len(x), w_o.shape[1]))
        for row, token in enumerate(x):
            # Written before it is read: a token sees itself, and none that comes later.
            position = np.array([self._length])
            keys = rotate((token @ w_k).reshape(self._num_kv_heads, 1, -1), position)
            self._write(keys[:, 0], (token @ w_v).reshape(self._num_kv_heads, -1))
            queries = rotate((token @ w_q).reshape(self._num_heads, 1, -1), position)
            output[row] = self._attend(queries[:, 0]).reshape(-1) @ w_o
        return output

    def truncate(self, length: int) -> None:
        if length < 0 or length > self._length:
            raise ValueError(f"the cache holds {self._length} tokens")
        self._length = length
        del self._blocks[-(-length // BLOCK_SIZE) :]  # blocks without a token are given back

    def length(self) -> int:
        return self._length

    def _write(self, keys: np.ndarray, values: np.ndarray) -> None:
        block, slot = divmod(self._length, BLOCK_SIZE)
        if block == len(self._blocks):
            shape = (self._num_kv_heads, BLOCK_SIZE, self._head_dim)
            self._blocks.append((np.empty(shape), np.empty(shape)))
        self._blocks[block][0][:, slot] = keys
        self._blocks[block][1][:, slot] = values
        self._length += 1

    def _attend(self, queries: np.ndarray) -> np.ndarray:
        grouped = queries.reshape(self._num_kv_heads, -1, self._head_dim)
        maximum = np.full((*grouped.shape[:2], 1), -np.inf)
        total = np.zeros(maximum.shape)
        mixed = np.zeros(grouped.shape)
        for number, (keys, values) in enumerate(self._blocks):
            used = min(BLOCK_SIZE, self._length - number * BLOCK_SIZE)
            scores = grouped @ keys[:, :used].swapaxes(1, 2) / math.sqrt(self._head_dim)
            new_maximum = np.maximum(maximum, scores.max(axis=-1, keepdims=True))
            factor, weights = np.exp(maximum - new_maximum), np.exp(scores - new_maximum)
            total = total * factor + weights.sum(axis=-1, keepdims=True)
            mixed = mixed * factor + weights @ values[:, :used]
            maximum = new_maximum
        return mixed / total
