"""Grouped-query attention with a KV cache. The statement is in README.md; run
`infra-lab test grouped_query_attention_with_kv_cache` to grade."""

from __future__ import annotations

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
    """One layer's causal attention for one sequence, which remembers keys and values.

    Args:
        w_q: (d_model, num_heads * head_dim).
        w_k, w_v: (d_model, num_kv_heads * head_dim).
        w_o: (num_heads * head_dim, d_model).
        max_length: the most tokens that the cache may hold.

    Raises:
        ValueError: num_kv_heads does not divide num_heads, or one of them is less than 1.
    """

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
        raise NotImplementedError

    def forward(self, x: np.ndarray) -> np.ndarray:
        """The output for new tokens, (new, d_model), which come after those in the cache.

        Raises:
            ValueError: they do not fit; nothing is changed then.
        """
        raise NotImplementedError

    def truncate(self, length: int) -> None:
        """Forgets all tokens but the first `length`.

        Raises:
            ValueError: length is negative, or more than the cache holds.
        """
        raise NotImplementedError

    def length(self) -> int:
        """How many tokens the cache holds."""
        raise NotImplementedError


class GrowingCache:
    """Follow-up: a cache without a largest length, which seldom copies what it holds."""

    def __init__(self, num_kv_heads: int, head_dim: int) -> None:
        raise NotImplementedError

    def append(self, k: np.ndarray, v: np.ndarray) -> None:
        """Adds tokens; k and v have the shape (num_kv_heads, new, head_dim)."""
        raise NotImplementedError

    def keys(self) -> np.ndarray:
        """All keys, (num_kv_heads, length, head_dim): a view, no copy."""
        raise NotImplementedError

    def values(self) -> np.ndarray:
        """All values, likewise."""
        raise NotImplementedError
