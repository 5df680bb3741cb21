"""Tiled attention. The statement is in README.md; run `infra-lab test tiled_attention` to grade."""

from __future__ import annotations

import numpy as np


def tiled_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    block_q: int,
    block_k: int,
    causal: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """(out, lse) of one attention head, tile by tile.

    Args:
        q: (len_q, head_dim), float64.
        k: (len_k, head_dim).
        v: (len_k, value_dim).
        block_q, block_k: rows of a tile of queries, and of a tile of keys and values.
        causal: query i sees the keys j <= i + len_k - len_q only.

    Returns:
        out: (len_q, value_dim), softmax(q k^T / sqrt(head_dim)) v; zeros where a query sees
            nothing.
        lse: (len_q,), the log of the sum of exp(score) over the keys that a query sees; -inf
            where it sees nothing.

    Raises:
        ValueError: a block size is less than 1.
    """
    raise NotImplementedError


def combine(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Follow-up: (out, lse) over all keys, from the (out, lse) of disjoint sets of keys."""
    raise NotImplementedError
