"""Attention over tiles of keys with a running softmax, in the three forms that answers write down.

Answers "write the online-softmax update, and find the slip in this one". Scores come a tile at a
time; of each row only the largest score so far (m), the sum of exponentials (l) and the output (O)
are kept. Right is either of two: O kept divided by l (FlashAttention-1), or O kept undivided and
divided once at the end (FlashAttention-2). The published form divides the new O by the new sum and
forgets that the old one had been divided by the old sum.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Update = Literal["undivided", "divided", "published", "no-rescaling"]
UPDATES: tuple[Update, ...] = ("undivided", "divided", "published", "no-rescaling")


def dense_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """softmax(Q K^T / sqrt(d)) V, [N, d], in the type of its inputs: all scores at once."""
    scores = queries @ keys.T / math.sqrt(queries.shape[1])
    return scores.softmax(-1) @ values


def tiled_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, tile: int, update: Update
) -> torch.Tensor:
    """The same from tiles of `tile` keys, [N, d].

    update: "undivided" O <- O e^(m - m') + P V, divided by l at the end; "divided"
        O <- (l O e^(m - m') + P V) / l'; "published" the same without l; "no-rescaling" a sum
        without a maximum that moves: P relative to each tile's own.
    """
    import torch

    rows, scale = queries.shape[0], 1 / math.sqrt(queries.shape[1])
    largest = queries.new_full((rows, 1), -math.inf)
    total = queries.new_zeros(rows, 1)
    output = torch.zeros_like(queries)
    for start in range(0, keys.shape[0], tile):
        scores = queries @ keys[start : start + tile].T * scale
        new_largest = torch.maximum(largest, scores.amax(-1, keepdim=True))
        if update == "no-rescaling":
            new_largest = scores.amax(-1, keepdim=True)
        weights = (scores - new_largest).exp()
        old = torch.ones_like(total) if update == "no-rescaling" else (largest - new_largest).exp()
        new_total = total * old + weights.sum(-1, keepdim=True)
        added = weights @ values[start : start + tile]
        if update == "divided":
            output = (total * old * output + added) / new_total
        elif update == "published":
            output = old / new_total * output + added / new_total
        else:
            output = output * old + added
        largest, total = new_largest, new_total
    return output if update in ("divided", "published") else output / total


def paged_attention(
    query: torch.Tensor,
    key_blocks: torch.Tensor,
    value_blocks: torch.Tensor,
    block_table: list[int],
    num_tokens: int,
) -> torch.Tensor:
    """One query [1, d] over blocks [num_blocks, block_size, d] in the order of its block table:
    the walk of a paged kernel, the softmax accumulated a block at a time."""
    size = key_blocks.shape[1]
    keys = [key_blocks[block] for block in block_table]
    values = [value_blocks[block] for block in block_table]
    largest, total = query.new_full((1, 1), -math.inf), query.new_zeros(1, 1)
    output = query.new_zeros(1, query.shape[1])
    for place, (key, value) in enumerate(zip(keys, values, strict=True)):
        filled = min(size, num_tokens - place * size)
        scores = query @ key[:filled].T / math.sqrt(query.shape[1])
        new_largest = scores.amax(-1, keepdim=True).maximum(largest)
        weights, old = (scores - new_largest).exp(), (largest - new_largest).exp()
        total = total * old + weights.sum(-1, keepdim=True)
        output = output * old + weights @ value[:filled]
        largest = new_largest
    return output / total


class CountedRow:
    """A row of scores in slow memory: every pass over it is counted."""

    def __init__(self, scores: list[float]) -> None:
        self._scores = scores
        self.passes = 0

    def read(self) -> list[float]:
        self.passes += 1
        return self._scores


def safe_softmax(row: CountedRow) -> list[float]:
    """Maximum, sum, division: three passes."""
    largest = max(row.read())
    total = sum(math.exp(score - largest) for score in row.read())
    return [math.exp(score - largest) / total for score in row.read()]


def naive_softmax(row: CountedRow) -> list[float]:
    """Sum and division, two passes. Raises OverflowError for scores above 709."""
    total = sum(math.exp(score) for score in row.read())
    return [math.exp(score) / total for score in row.read()]


def online_softmax(row: CountedRow) -> list[float]:
    """The first two passes in one (Milakov and Gimelshein 2018): two passes."""
    largest, total = -math.inf, 0.0
    for score in row.read():
        new = max(largest, score)
        total = total * math.exp(largest - new) + math.exp(score - new)
        largest = new
    return [math.exp(score - largest) / total for score in row.read()]
