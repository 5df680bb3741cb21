"""Multi-head attention. The statement is in README.md; run `infra-lab test multi_head_attention`
to grade."""

from __future__ import annotations

import numpy as np


def multi_head_attention(
    x: np.ndarray,
    w_q: np.ndarray,
    w_k: np.ndarray,
    w_v: np.ndarray,
    w_o: np.ndarray,
    num_heads: int,
    causal: bool = False,
    padding_mask: np.ndarray | None = None,
) -> np.ndarray:
    """Self-attention, of shape (batch, length, d_model).

    Args:
        x: (batch, length, d_model), float64.
        w_q, w_k, w_v, w_o: (d_model, d_model), applied as `x @ w`; head h owns the columns
            h * head_dim to (h + 1) * head_dim of the first three.
        causal: a query attends to its own position and those before it only.
        padding_mask: (batch, length) of bool; False marks a key that nobody attends to.

    A query that may attend to nothing gets zeros from every head.

    Raises:
        ValueError: d_model cannot be split into num_heads heads, or padding_mask has another
            shape than (batch, length).
    """
    raise NotImplementedError


def attention_backward(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, d_out: np.ndarray, causal: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Follow-up: the gradients (d_q, d_k, d_v) of one head, all of shape (length, head_dim).

    Args:
        d_out: the gradient of a loss by the head's output softmax(q k^T / sqrt(head_dim)) v.
    """
    raise NotImplementedError
