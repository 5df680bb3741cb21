"""Attention over a quantized cache: what every query sees, however its tokens were cut into steps,
against dense attention in float64 over keys and values quantized here, one number at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infra_lab.attention.backend import AttentionBackend, AttentionMetadata, AttentionShape
from infra_lab.attention.channel_keys_backend import ChannelKeysBackend
from infra_lab.attention.kv_cache import KVCacheFormat, LayerKVCache
from infra_lab.attention.torch_backend import TorchAttentionBackend
from infra_lab.config import TOKENS_PER_KEY_GROUP as GROUP

CPU = torch.device("cpu")
Rounding = Callable[[np.ndarray], np.ndarray]
FORMATS = ("int8_per_token_head", "fp8_per_token_head", "int8_per_channel_keys")
every_format = pytest.mark.parametrize("kv_cache_dtype", FORMATS)


@dataclass(frozen=True)
class Case:
    """Requests of these lengths, each computed in steps of these sizes, taken in turns."""

    shape: AttentionShape
    block_size: int
    lengths: list[int]
    cuts: list[list[int]]
    seed: int


@st.composite
def cases(draw: st.DrawFn, most_requests: int = 3) -> Case:
    num_kv_heads = draw(st.integers(1, 2))
    shape = AttentionShape(
        num_heads=num_kv_heads * draw(st.integers(1, 3)),
        num_kv_heads=num_kv_heads,
        head_dim=draw(st.sampled_from([1, 4, 16])),
        scale=0.3,
        sliding_window=draw(st.none() | st.integers(1, 40)),
    )
    count = draw(st.integers(1, most_requests))
    sizes = st.lists(st.sampled_from([1, 1, 2, 7, 15, 16, 17, 33]), min_size=1, max_size=5)
    return Case(
        shape,
        draw(st.sampled_from([16, 32])),
        draw(st.lists(st.integers(1, 70), min_size=count, max_size=count)),
        draw(st.lists(sizes, min_size=count, max_size=count)),
        draw(st.integers(0, 1000)),
    )


class Run:
    """Keys, values and queries of a case, and what the backend makes of them step by step."""

    def __init__(self, case: Case, kv_cache_dtype: str) -> None:
        torch.manual_seed(case.seed)
        shape, self.case, self.kv_cache_dtype = case.shape, case, kv_cache_dtype
        heads = (2, shape.num_kv_heads, shape.head_dim)
        self.key_values = [
            clear_of_ties(torch.randn(length, *heads), kv_cache_dtype) for length in case.lengths
        ]
        self.queries = [torch.randn(n, shape.num_heads, shape.head_dim) for n in case.lengths]
        self.outputs = [torch.full_like(query, float("nan")) for query in self.queries]
        per_request = [-(-length // case.block_size) for length in case.lengths]
        order = torch.randperm(sum(per_request) + 2).add(1).tolist()
        self.tables = [[order.pop() for _ in range(count)] for count in per_request]
        layout = KVCacheFormat(
            shape.num_kv_heads, shape.head_dim, case.block_size, torch.float32, kv_cache_dtype
        )
        self.cache = layout.allocate(sum(per_request) + 3, CPU)
        for tensor in self.cache.tensors:  # others' leftovers: NaN, or large codes
            tensor.view(torch.uint8).fill_(0x7F if tensor.element_size() == 1 else 0xFF)
        self.backend: AttentionBackend[Any] = (
            ChannelKeysBackend
            if kv_cache_dtype == "int8_per_channel_keys"
            else TorchAttentionBackend
        )(shape, case.block_size, torch.float32, CPU)

    def run(self) -> None:
        computed = [0] * len(self.tables)
        turn = 0
        while computed != self.case.lengths:
            sizes = [
                min(cut[turn % len(cut)], length - done)
                for cut, length, done in zip(
                    self.case.cuts, self.case.lengths, computed, strict=True
                )
            ]
            self.step(computed, sizes)
            computed = [done + size for done, size in zip(computed, sizes, strict=True)]
            turn += 1

    def step(self, computed: list[int], sizes: list[int]) -> None:
        size = self.case.block_size
        members = [index for index, count in enumerate(sizes) if count]
        tables = np.zeros((len(members), max(len(self.tables[i]) for i in members)), np.int64)
        slots, rows = [], []
        for row, index in zip(tables, members, strict=True):
            row[: len(self.tables[index])] = self.tables[index]
            span = range(computed[index], computed[index] + sizes[index])
            slots += [int(row[p // size]) * size + p % size for p in span]
            rows.append(slice(span.start, span.stop))
        lens = np.array([sizes[index] for index in members])
        metadata = AttentionMetadata(
            np.concatenate([[0], np.cumsum(lens)]),
            np.array([computed[index] for index in members]) + lens,
            tables,
            np.array(slots),
        )
        pairs = list(zip(members, rows, strict=True))
        query = torch.cat([self.queries[index][row] for index, row in pairs])
        key_value = torch.cat([self.key_values[index][row] for index, row in pairs])
        out = torch.full_like(query, float("nan"))
        self.backend.forward(query, key_value, self.cache, self.backend.plan(metadata), out)
        for (index, row), piece in zip(pairs, out.split(lens.tolist()), strict=True):
            self.outputs[index][row] = piece


def clear_of_ties(key_values: torch.Tensor, kv_cache_dtype: str) -> torch.Tensor:
    """The same but for numbers at the middle between two codes: fp32 and float64 may differ in
    which way those go."""
    keys, values = (part.double().numpy() for part in key_values.unbind(1))
    if kv_cache_dtype != "int8_per_channel_keys":
        keys = moved(keys, 0.0, *row_rule(keys, kv_cache_dtype))
    for start in range(0, len(keys) - GROUP + 1, GROUP):
        if kv_cache_dtype == "int8_per_channel_keys":
            group = keys[start : start + GROUP]
            keys[start : start + GROUP] = moved(group, *channel_rule(group), np.rint)
    values = moved(values, 0.0, *row_rule(values, kv_cache_dtype))
    return torch.from_numpy(np.stack([keys, values], axis=1)).float()


def moved(numbers: np.ndarray, centre: Any, scale: np.ndarray, rounding: Rounding) -> np.ndarray:
    codes = (numbers - centre) / scale
    close = rounding(codes * (1 + 1e-4)) != rounding(codes * (1 - 1e-4))
    return np.where(close, centre + codes * 1.003 * scale, numbers)


def row_rule(rows: np.ndarray, kv_cache_dtype: str) -> tuple[np.ndarray, Rounding]:
    """Scales of each row, and how a number that was divided by them becomes a code."""
    largest = np.abs(rows).max(-1, keepdims=True)
    if kv_cache_dtype == "fp8_per_token_head":
        return largest / 448, rounded_to_e4m3
    return largest / 127, np.rint


def rounded_to_e4m3(codes: np.ndarray) -> np.ndarray:
    exponent = np.maximum(np.floor(np.log2(np.maximum(np.abs(codes), 1e-30))), -6)
    step = 2.0 ** (exponent - 3)
    return np.asarray(np.clip(np.rint(codes / step) * step, -448, 448))


def channel_rule(group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Centre and scale of each channel of one group [tokens, ..., head_dim]."""
    low, high = group.min(0), group.max(0)
    return (low + high) / 2, (high - low) / 254


def rounded_rows(rows: np.ndarray, kv_cache_dtype: str) -> np.ndarray:
    scale, rounding = row_rule(rows, kv_cache_dtype)
    return np.asarray(rounding(rows / scale) * scale)


def rounded_keys(keys: np.ndarray, kv_cache_dtype: str) -> np.ndarray:
    """Keys [tokens, head_dim] of one head, as codes; of an incomplete group as they are."""
    if kv_cache_dtype != "int8_per_channel_keys":
        return rounded_rows(keys, kv_cache_dtype)
    result = keys.copy()
    for start in range(0, len(keys) - GROUP + 1, GROUP):
        group = keys[start : start + GROUP]
        centre, scale = channel_rule(group)
        result[start : start + GROUP] = centre + np.rint((group - centre) / scale) * scale
    return result


def seen_keys(keys: np.ndarray, position: int, kv_cache_dtype: str) -> np.ndarray:
    """Keys [position + 1, head_dim] of one head as the query at `position` sees them."""
    seen = rounded_keys(keys, kv_cache_dtype)[: position + 1]
    if kv_cache_dtype == "int8_per_channel_keys":
        own = position // GROUP * GROUP
        seen[own:] = keys[own : position + 1]
    return seen


def expected(run: Run, index: int) -> np.ndarray:
    shape, length = run.case.shape, run.case.lengths[index]
    out = np.zeros((length, shape.num_heads, shape.head_dim))
    for kv_head in range(shape.num_kv_heads):
        keys, values = run.key_values[index][:, :, kv_head].double().numpy().transpose(1, 0, 2)
        read = rounded_rows(values, run.kv_cache_dtype)
        for position in range(length):
            first = max(0, position + 1 - (shape.sliding_window or length))
            seen = seen_keys(keys, position, run.kv_cache_dtype)[first:]
            for head in range(kv_head * shape.group_size, (kv_head + 1) * shape.group_size):
                query = run.queries[index][position, head].double().numpy()
                weights = np.exp(shape.scale * (seen @ query))
                out[position, head] = weights @ read[first : position + 1] / weights.sum()
    return out


@every_format
@settings(max_examples=15)
@given(case=cases(2))
def test_every_query_sees_the_keys_and_values_that_its_format_gives_back(
    kv_cache_dtype: str, case: Case
) -> None:
    run = Run(case, kv_cache_dtype)
    run.run()
    for index in range(len(case.lengths)):
        difference = np.abs(run.outputs[index].double().numpy() - expected(run, index))
        assert difference.max() < 2e-5


@every_format
@settings(max_examples=25)
@given(case=cases(), data=st.data())
def test_neither_cuts_nor_neighbours_nor_leftovers_change_a_bit_of_the_cache(
    kv_cache_dtype: str, case: Case, data: st.DataObject
) -> None:
    run = Run(case, kv_cache_dtype)
    run.run()
    index = data.draw(st.integers(0, len(case.lengths) - 1))
    alone = Run(Case(case.shape, 16, [case.lengths[index]], [[1000]], 0), kv_cache_dtype)
    alone.key_values, alone.queries = [run.key_values[index]], [run.queries[index]]
    alone.run()
    assert torch.equal(contents(run, index), contents(alone, 0))
    torch.testing.assert_close(run.outputs[index], alone.outputs[0], atol=1e-5, rtol=1e-5)


def contents(run: Run, index: int) -> torch.Tensor:
    """All bytes that mean something: codes and scales, per-channel ones of complete groups, and
    the keys of the last group if it is not complete."""
    length, table, cache = run.case.lengths[index], run.tables[index], run.cache

    def of_tokens(tensor: torch.Tensor, count: int) -> torch.Tensor:
        return tensor[table].flatten(0, 1)[:count].contiguous().view(torch.uint8).flatten()

    assert cache.scales is not None
    parts = [of_tokens(cache.value, length), of_tokens(cache.scales, length)]
    if cache.channel_ranges is None or cache.recent_keys is None:
        return torch.cat([*parts, of_tokens(cache.key, length)])
    complete, left = divmod(length, GROUP)
    parts += [of_tokens(cache.key, complete * GROUP), of_tokens(cache.channel_ranges, complete)]
    recent = cache.recent_keys[table[-1], :left]
    return torch.cat([*parts, recent.contiguous().view(torch.uint8).flatten()])


@every_format
@settings(max_examples=30)
@given(seed=st.integers(0, 1000), outlier=st.sampled_from([0.0, 10.0]), length=st.integers(1, 70))
def test_the_error_of_attention_is_what_that_of_keys_and_values_allows(
    kv_cache_dtype: str, seed: int, outlier: float, length: int
) -> None:
    """With scores off by at most d, weights are off by a factor of exp(2 d), whatever the keys."""
    shape = AttentionShape(2, 2, 16, 0.25)
    run = Run(Case(shape, 16, [length], [[1000]], seed), kv_cache_dtype)
    run.key_values[0][:, 0, :, 3] += outlier
    run.key_values[0] = clear_of_ties(run.key_values[0], kv_cache_dtype)
    run.run()
    keys, values = run.key_values[0].double().numpy().transpose(1, 2, 0, 3)
    for position in (length // 2, length - 1):
        for head in range(2):
            own, seen = keys[head, : position + 1], values[head, : position + 1]
            read = rounded_rows(seen, kv_cache_dtype)
            query = run.queries[0][position, head].double().numpy()
            weights = np.exp(0.25 * (own @ query))
            exact = weights @ seen / weights.sum()
            key_error = np.abs(seen_keys(keys[head], position, kv_cache_dtype) - own).max()
            off = 0.25 * np.abs(query).sum() * key_error
            bound = np.abs(read - seen).max() + (np.exp(2 * off) - 1) * np.abs(seen).max()
            error = np.abs(run.outputs[0][position, head].double().numpy() - exact).max()
            assert error <= bound + 1e-5


@every_format
def test_a_block_is_copied_whole_by_its_id(kv_cache_dtype: str) -> None:
    """What copy-on-write does: the copy is read as the original is, in every format."""
    case = Case(AttentionShape(2, 1, 8, 0.3), 32, [41], [[9]], 0)
    run, other = Run(case, kv_cache_dtype), Run(case, kv_cache_dtype)
    run.run()
    other.step([0], [40])
    spare = [block for block in range(1, 5) if block not in other.tables[0]][:2]
    other.cache.copy_blocks(other.tables[0], spare)
    for tensor in other.cache.tensors:
        tensor.view(torch.uint8)[other.tables[0]] = 0x7E
    other.tables = [spare]
    other.step([40], [1])
    torch.testing.assert_close(run.outputs[0][40], other.outputs[0][40], atol=1e-6, rtol=1e-6)


def test_blocks_that_swap_places_keep_their_content() -> None:
    cache = LayerKVCache(torch.arange(6.0).view(3, 2, 1, 1, 1), torch.arange(6.0).view(3, 2, 1, 1))
    cache.copy_blocks([0, 1], [1, 0])
    for tensor in cache.tensors:
        assert tensor.flatten().tolist() == [2, 3, 0, 1, 4, 5]


@pytest.mark.parametrize(
    ("kv_cache_dtype", "block_size", "bytes_per_token"),
    [
        ("auto", 16, 2 * 3 * 64 * 4),
        ("int8_per_token_head", 16, 2 * 3 * (64 + 4)),
        ("fp8_per_token_head", 32, 2 * 3 * (64 + 4)),
        # Codes, a value's scale, two numbers a channel for 16 tokens, 16 whole keys in each block.
        ("int8_per_channel_keys", 16, 3 * (2 * 64 + 4 + 64 * 8 // 16 + 64 * 4)),
        ("int8_per_channel_keys", 128, 3 * (2 * 64 + 4 + 64 * 8 // 16 + 64 * 4 // 8)),
    ],
)
def test_a_format_counts_all_its_bytes(
    kv_cache_dtype: str, block_size: int, bytes_per_token: int
) -> None:
    """SmolLM2's 3 KV heads of 64, one layer, in fp32."""
    layout = KVCacheFormat(3, 64, block_size, torch.float32, kv_cache_dtype)
    assert layout.block_bytes == bytes_per_token * block_size
    cache = layout.allocate(2, CPU)
    assert sum(tensor.nbytes for tensor in cache.tensors) == 2 * layout.block_bytes
