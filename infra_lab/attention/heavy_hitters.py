"""Attention within a budget: heavy hitters and the newest tokens stay, the rest is forgotten.

Zhang et al. 2023, "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language
Models", algorithm 1. A few tokens receive most of the attention, and those that have, will. So a
request with a budget of B tokens keeps, in each KV head of each layer on its own, the newest
ceil(B / 2), and of the older ones those whose keys have received most attention in total: when a
token would be one too many, the one that received least gives it its slot. What is kept never
needs more slots than B, so blocks are not emptied and compacted: they are never taken.

Which tokens are kept follows from the tokens alone: a query attends to what the tokens before it
left, then its own token comes in, whatever step computes it. Beyond the budget a prompt is
therefore computed like decodes, one token after the other. Keys are turned by their positions
before they are cached, so the order of slots means nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from infra_lab.attention.backend import AttentionShape
from infra_lab.attention.kv_cache import LayerKVCache, movable
from infra_lab.attention.kv_quantization import dequantize_rows, quantize_rows

# Of a prompt that fits the budget: their weights on all keys are held at one time.
QUERIES_AT_ONCE = 64


def recent_window(budget: int) -> int:
    """Newest tokens that are never dropped, of `budget` tokens kept: the paper's even split."""
    return budget - budget // 2


@dataclass(frozen=True, slots=True)
class BudgetedRequest:
    """Tokens [start, end) of the batch, the first of them at `first_position` of its request.

    slots: int64 [min(tokens up to the last of these, budget)], where what is kept lies.
    """

    start: int
    end: int
    first_position: int
    budget: int
    slots: torch.Tensor


def attend_within_budget(
    query: torch.Tensor,
    key_value: torch.Tensor,
    cache: LayerKVCache,
    request: BudgetedRequest,
    shape: AttentionShape,
    out: torch.Tensor,
) -> None:
    """Attends one request's tokens, writes those that stay over those that go, keeps the scores.

    Args:
        query: [num_tokens, num_heads, head_dim], of the whole batch.
        key_value: [num_tokens, 2, num_kv_heads, head_dim], of the whole batch.
        cache: with `attention_received` and `kept_positions`.
        out: [num_tokens, num_heads, head_dim]; the request's rows are overwritten.
    """
    rows = slice(request.start, request.end)
    codes, scales, fresh = key_value[rows], None, key_value[rows].float()
    if cache.scales is not None:
        codes, scales = quantize_rows(codes, cache.storage.dtype)
        fresh = dequantize_rows(codes, scales)
    num_tokens = request.end - request.start
    queries = query[rows].float()
    queries = queries.view(num_tokens, shape.num_kv_heads, shape.group_size, shape.head_dim)
    attended = torch.empty_like(queries)
    kept = _KeptTokens(cache, request, shape)
    with_room = min(num_tokens, max(request.budget - request.first_position, 0))
    for begin in range(0, with_room, QUERIES_AT_ONCE):
        piece = slice(begin, min(begin + QUERIES_AT_ONCE, with_room))
        attended[piece] = kept.take_in(queries[piece], fresh[piece], begin)
    for row in range(with_room, num_tokens):
        attended[row] = kept.exchange(queries[row], fresh[row], row)
    out[rows] = attended.view(num_tokens, shape.num_heads, shape.head_dim)
    kept.save(cache, codes, scales)


class _KeptTokens:
    """What one layer keeps of a request, in fp32: place i of every head is the i-th slot, and one
    more place is the newcomer's."""

    def __init__(
        self, cache: LayerKVCache, request: BudgetedRequest, shape: AttentionShape
    ) -> None:
        assert cache.attention_received is not None
        assert cache.kept_positions is not None
        self.request = request
        self.shape = shape
        self.heads = torch.arange(shape.num_kv_heads, device=request.slots.device)
        num_places = len(request.slots)
        held = request.slots[: request.first_position]
        size = (shape.num_kv_heads, num_places + 1)
        self.keys, self.values = held.new_zeros(2, *size, shape.head_dim, dtype=torch.float32)
        self.received = held.new_zeros(size, dtype=torch.float32)
        self.positions = held.new_zeros(size)
        # The row, of the request's in this step, that a place was given to; -1: as it was.
        self.rows = held.new_full((shape.num_kv_heads, num_places), -1)
        keys, values = _read(cache, held).permute(1, 2, 0, 3)
        self.keys[:, : len(held)], self.values[:, : len(held)] = keys, values
        self.received[:, : len(held)] = cache.attention_received.flatten(0, 1)[held].T
        self.positions[:, : len(held)] = cache.kept_positions.flatten(0, 1)[held].T

    def take_in(self, queries: torch.Tensor, fresh: torch.Tensor, row: int) -> torch.Tensor:
        """Tokens that there is room for, from the request's `row` of this step on.

        queries [n, num_kv_heads, group, head_dim], fresh [n, 2, num_kv_heads, head_dim] ->
        attended, like queries.
        """
        begin = self.request.first_position + row
        end = begin + len(queries)
        places, position = slice(begin, end), torch.arange(begin, end, device=queries.device)
        self.keys[:, places] = fresh[:, 0].transpose(0, 1)
        self.values[:, places] = fresh[:, 1].transpose(0, 1)
        self.positions[:, places] = position
        self.rows[:, places] = position - self.request.first_position
        scores = torch.einsum("qhgd,hkd->hgqk", queries, self.keys[:, :end]) * self.shape.scale
        key_position = torch.arange(end, device=queries.device)
        hidden = key_position > position[:, None]
        if self.shape.sliding_window is not None:
            hidden |= key_position <= position[:, None] - self.shape.sliding_window
        weights = scores.masked_fill_(hidden, float("-inf")).softmax(-1)
        self.received[:, :end] += weights.sum((1, 2))
        return torch.einsum("hgqk,hkd->qhgd", weights, self.values[:, :end])

    def exchange(self, query: torch.Tensor, fresh: torch.Tensor, row: int) -> torch.Tensor:
        """One token, for which another must go: query [num_kv_heads, group, head_dim], fresh
        [2, num_kv_heads, head_dim] -> attended, like query."""
        position = self.request.first_position + row
        self.keys[:, -1], self.values[:, -1] = fresh
        self.positions[:, -1], self.received[:, -1] = position, 0
        scores = query @ self.keys.transpose(1, 2) * self.shape.scale
        if self.shape.sliding_window is not None:
            outside = self.positions <= position - self.shape.sliding_window
            scores.masked_fill_(outside[:, None], float("-inf"))
        weights = scores.softmax(-1)
        self.received += weights.sum(1)
        attended = torch.matmul(weights, self.values)
        given_up = self._least_received(position)
        for kept in (self.keys, self.values, self.positions, self.received):
            kept[self.heads, given_up] = kept[:, -1].clone()
        self.rows[self.heads, given_up] = row
        return attended

    def _least_received(self, position: int) -> torch.Tensor:
        """int64 [num_kv_heads], a place in each head: of the tokens outside the recent window the
        one that received least, of equals the oldest."""
        newest = self.positions > position - recent_window(self.request.budget)
        received = self.received.masked_fill(newest, float("inf"))
        least = received == received.amin(1, keepdim=True)
        return self.positions.masked_fill(~least, position + 1).argmin(1)

    def save(self, cache: LayerKVCache, codes: torch.Tensor, scales: torch.Tensor | None) -> None:
        """Writes the tokens that came in, as `codes` and `scales` of the request's rows, and all
        scores."""
        assert cache.attention_received is not None
        assert cache.kept_positions is not None
        slots = self.request.slots
        cache.attention_received.flatten(0, 1)[slots] = self.received[:, :-1].T
        cache.kept_positions.flatten(0, 1)[slots] = self.positions[:, :-1].T.int()
        head, place = (self.rows >= 0).nonzero(as_tuple=True)
        row = self.rows[head, place]
        storage = movable(cache.storage).flatten(0, 1)
        storage[slots[place], :, head] = movable(codes)[row, :, head]
        if scales is not None and cache.scales is not None:
            cache.scales.flatten(0, 1)[slots[place], :, head] = scales[row, :, head]


def _read(cache: LayerKVCache, slots: torch.Tensor) -> torch.Tensor:
    """fp32 [slots, 2, num_kv_heads, head_dim]."""
    codes = movable(cache.storage).flatten(0, 1).index_select(0, slots)
    if cache.scales is None:
        return codes.float()
    scales = cache.scales.flatten(0, 1).index_select(0, slots)
    return dequantize_rows(codes.view(cache.storage.dtype), scales)
