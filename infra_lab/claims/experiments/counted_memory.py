"""A large slow memory whose reads and writes are counted, and three attentions that run over it.

Answers "why does FlashAttention move less, and how much less?" by counting and not by a formula:
what a pass needs is loaded, what it makes is stored, and what it holds at once must fit the small
fast memory. Elements are counted, as theorem 2 of Dao et al. 2022 does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from infra_lab.errors import UsageError

if TYPE_CHECKING:
    import torch


class CountedMemory:
    """Matrices by name. `sram_elements`: what a pass may hold at once, None for any amount.

    reads, writes: elements moved so far. peak: the most that were held at once.
    """

    def __init__(
        self, matrices: Mapping[str, torch.Tensor], sram_elements: int | None = None
    ) -> None:
        self.matrices = dict(matrices)
        self.sram_elements = sram_elements
        self.reads = 0
        self.writes = 0
        self.peak = 0

    @property
    def moved(self) -> int:
        return self.reads + self.writes

    def load(self, name: str, rows: slice = slice(None)) -> torch.Tensor:
        part = self.matrices[name][rows]
        self.reads += part.numel()
        return part

    def store(self, name: str, part: torch.Tensor, rows: slice = slice(None)) -> None:
        self.matrices[name][rows] = part
        self.writes += part.numel()

    def hold(self, elements: int) -> None:
        """Raises UsageError where a pass needs more than the fast memory has."""
        self.peak = max(self.peak, elements)
        if self.sram_elements is not None and elements > self.sram_elements:
            raise UsageError(
                f"a tile of {elements} elements does not fit a fast memory of "
                f"{self.sram_elements}: use smaller tiles"
            )


def attention_memory(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    sram_elements: int | None = None,
) -> CountedMemory:
    """Q, K, V [N, d] and an output to be filled, in a memory that was not yet read."""
    output = queries.new_zeros(queries.shape)
    return CountedMemory({"Q": queries, "K": keys, "V": values, "O": output}, sram_elements)


def standard_attention(memory: CountedMemory, causal: bool = False) -> None:
    """Three kernels: S = Q K^T, P = softmax(S), O = P V; S and P go through the slow memory.

    Each kernel is taken at its best: every operand read once.
    """
    queries, keys = memory.load("Q"), memory.load("K")
    scores = queries @ keys.T / math.sqrt(queries.shape[1])
    memory.matrices["S"] = scores.new_empty(scores.shape)
    memory.store("S", scores)
    scores = memory.load("S")
    if causal:
        scores = scores.masked_fill(~visible(len(queries), 0, len(keys)), -math.inf)
    memory.matrices["P"] = scores.new_empty(scores.shape)
    memory.store("P", scores.softmax(-1))
    memory.store("O", memory.load("P") @ memory.load("V"))


def tiled_by_queries(
    memory: CountedMemory, query_rows: int, key_rows: int, causal: bool = False
) -> None:
    """FlashAttention-2's order: a block of queries stays, all keys and values pass by. A block of
    keys that lies wholly after the queries is not loaded when `causal`."""
    num_tokens, head_dim = memory.matrices["Q"].shape
    for start in range(0, num_tokens, query_rows):
        rows = slice(start, min(start + query_rows, num_tokens))
        queries = memory.load("Q", rows)
        largest = queries.new_full((len(queries), 1), -math.inf)
        total, output = queries.new_zeros(len(queries), 1), queries.new_zeros(queries.shape)
        end = rows.stop if causal else num_tokens
        for key_start in range(0, end, key_rows):
            columns = slice(key_start, min(key_start + key_rows, num_tokens))
            keys, values = memory.load("K", columns), memory.load("V", columns)
            memory.hold(
                2 * len(queries) * head_dim + 2 * len(keys) * head_dim + len(queries) * len(keys)
            )
            scores = queries @ keys.T / math.sqrt(head_dim)
            if causal:
                shown = visible(len(queries), start - key_start, len(keys))
                scores = scores.masked_fill(~shown, -math.inf)
            new_largest = largest.maximum(scores.amax(-1, keepdim=True))
            weights, old = (scores - new_largest).exp(), (largest - new_largest).exp()
            total = total * old + weights.sum(-1, keepdim=True)
            output = output * old + weights @ values
            largest = new_largest
        memory.store("O", output / total, rows)


def tiled_by_keys(memory: CountedMemory, query_rows: int, key_rows: int) -> None:
    """FlashAttention-1's order: a block of keys and values stays, all queries pass by, and with
    them O, m and l, which are read and written again for every block."""
    queries = memory.matrices["Q"]
    num_tokens, head_dim = queries.shape
    memory.matrices["m"] = queries.new_full((num_tokens, 1), -math.inf)
    memory.matrices["l"] = queries.new_zeros(num_tokens, 1)
    for key_start in range(0, num_tokens, key_rows):
        columns = slice(key_start, min(key_start + key_rows, num_tokens))
        keys, values = memory.load("K", columns), memory.load("V", columns)
        for start in range(0, num_tokens, query_rows):
            rows = slice(start, min(start + query_rows, num_tokens))
            block, output = memory.load("Q", rows), memory.load("O", rows)
            largest, total = memory.load("m", rows), memory.load("l", rows)
            memory.hold(
                2 * len(keys) * head_dim + 2 * len(block) * head_dim + len(block) * len(keys)
            )
            scores = block @ keys.T / math.sqrt(head_dim)
            new_largest = largest.maximum(scores.amax(-1, keepdim=True))
            weights, old = (scores - new_largest).exp(), (largest - new_largest).exp()
            new_total = total * old + weights.sum(-1, keepdim=True)
            memory.store("O", (total * old * output + weights @ values) / new_total, rows)
            memory.store("m", new_largest, rows)
            memory.store("l", new_total, rows)


def query_rows_that_fit(sram_elements: int, head_dim: int, key_rows: int) -> int:
    """The largest block of queries that `tiled_by_queries` can hold: Br (2d + Bc) + 2 Bc d <= M.

    Raises UsageError where not even one fits.
    """
    rows = (sram_elements - 2 * key_rows * head_dim) // (2 * head_dim + key_rows)
    if rows < 1:
        raise UsageError(
            f"a fast memory of {sram_elements} elements holds no query beside {key_rows} keys and "
            f"values of {head_dim}: take fewer keys"
        )
    return rows


def visible(num_queries: int, first: int, num_keys: int) -> torch.Tensor:
    """bool [queries, keys]: key j is seen by query i when j <= first + i."""
    import torch

    return torch.arange(num_keys) <= first + torch.arange(num_queries)[:, None]
