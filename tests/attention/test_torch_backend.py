"""The torch backend against dense attention in float64, over arbitrary ragged batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infra_lab.attention import torch_backend
from infra_lab.attention.backend import AttentionMetadata, AttentionShape, LayerKVCache
from infra_lab.attention.torch_backend import TorchAttentionBackend

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    shape: AttentionShape
    block_size: int
    context_lens: list[int]
    query_lens: list[int]
    seed: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    num_kv_heads = draw(st.integers(1, 3))
    shape = AttentionShape(
        num_heads=num_kv_heads * draw(st.integers(1, 4)),
        num_kv_heads=num_kv_heads,
        head_dim=draw(st.sampled_from([1, 4, 12, 16])),
        scale=0.3,
        sliding_window=draw(st.none() | st.integers(1, 12)),
    )
    requests = draw(
        st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), min_size=1, max_size=6)
    )
    return Case(
        shape,
        draw(st.sampled_from([1, 3, 4, 16])),
        [context for context, _ in requests],
        [query for _, query in requests],
        draw(st.integers(0, 1000)),
    )


@dataclass
class Step:
    """A batch laid into a cache at scattered blocks, with every request's keys and values."""

    metadata: AttentionMetadata
    cache: LayerKVCache
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]


def lay_out(case: Case) -> Step:
    generator = np.random.default_rng(case.seed)
    torch.manual_seed(case.seed)
    shape, size = case.shape, case.block_size
    seq_lens = [c + q for c, q in zip(case.context_lens, case.query_lens, strict=True)]
    blocks_of = [-(-length // size) for length in seq_lens]
    num_blocks = 1 + sum(blocks_of) + 3
    order = iter(generator.permutation(np.arange(1, num_blocks)).tolist())
    tables = [[next(order) for _ in range(count)] for count in blocks_of]
    padded = np.zeros((len(tables), max(blocks_of)), dtype=np.int64)
    for row, table in zip(padded, tables, strict=True):
        row[: len(table)] = table
    cache_shape = (num_blocks, size, shape.num_kv_heads, shape.head_dim)
    # Other requests' leftovers lie in the cache: large, so that reading one would show.
    cache = LayerKVCache(torch.full(cache_shape, 50.0), torch.full(cache_shape, 50.0))
    keys = [torch.randn(length, shape.num_kv_heads, shape.head_dim) for length in seq_lens]
    values = [torch.randn(length, shape.num_kv_heads, shape.head_dim) for length in seq_lens]
    slots = []
    for table, context, length, key, value in zip(
        tables, case.context_lens, seq_lens, keys, values, strict=True
    ):
        for position in range(length):
            block, offset = table[position // size], position % size
            if position < context:
                cache.key[block, offset], cache.value[block, offset] = (
                    key[position],
                    value[position],
                )
            else:
                slots.append(block * size + offset)
    starts = np.concatenate([[0], np.cumsum(case.query_lens)]).astype(np.int64)
    fresh = [slice(context, None) for context in case.context_lens]
    return Step(
        AttentionMetadata(starts, np.array(seq_lens), padded, np.array(slots)),
        cache,
        torch.randn(int(starts[-1]), shape.num_heads, shape.head_dim),
        torch.cat([key[part] for key, part in zip(keys, fresh, strict=True)]),
        torch.cat([value[part] for value, part in zip(values, fresh, strict=True)]),
        keys,
        values,
    )


def dense_attention(case: Case, step: Step) -> torch.Tensor:
    """Each query against all keys at or before its position, in float64."""
    shape, rows = case.shape, []
    row = 0
    for context, length, key, value in zip(
        case.context_lens, case.query_lens, step.keys, step.values, strict=True
    ):
        for position in range(context, context + length):
            first = 0
            if shape.sliding_window is not None:
                first = max(0, position - shape.sliding_window + 1)
            heads = []
            for head in range(shape.num_heads):
                kv_head = head // shape.group_size
                seen = slice(first, position + 1)
                query = step.query[row, head].double()
                scores = key[seen, kv_head].double() @ query * shape.scale
                heads.append(scores.softmax(-1) @ value[seen, kv_head].double())
            rows.append(torch.stack(heads))
            row += 1
    return torch.stack(rows)


def attend(case: Case, step: Step) -> torch.Tensor:
    backend = TorchAttentionBackend(case.shape, case.block_size, torch.float32, CPU)
    out = torch.full_like(step.query, float("nan"))
    backend.forward(step.query, step.key, step.value, step.cache, backend.plan(step.metadata), out)
    return out


@settings(max_examples=80)
@given(cases())
def test_every_query_attends_to_exactly_its_past(case: Case) -> None:
    step = lay_out(case)
    torch.testing.assert_close(
        attend(case, step).double(), dense_attention(case, step), atol=2e-5, rtol=2e-5
    )


@settings(max_examples=30)
@given(cases())
def test_new_keys_and_values_lie_in_the_cache_at_their_slots(case: Case) -> None:
    step = lay_out(case)
    attend(case, step)
    row = case.shape.num_kv_heads * case.shape.head_dim
    slots = torch.from_numpy(step.metadata.slot_mapping)
    for cached, new in ((step.cache.key, step.key), (step.cache.value, step.value)):
        assert torch.equal(cached.view(-1, row)[slots], new.reshape(-1, row))
        assert int((cached.view(-1, row) != 50.0).any(-1).sum()) <= sum(
            c + q for c, q in zip(case.context_lens, case.query_lens, strict=True)
        )


@settings(max_examples=30)
@given(cases())
def test_a_small_tile_splits_decodes_without_changing_them(case: Case) -> None:
    case = Case(
        case.shape, case.block_size, case.context_lens, [1] * len(case.query_lens), case.seed
    )
    step = lay_out(case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_backend, "TILE_BYTES", 512)
        split = attend(case, step)
    torch.testing.assert_close(split.double(), dense_attention(case, step), atol=2e-5, rtol=2e-5)


def test_the_tile_holds_one_group_and_not_the_whole_batch() -> None:
    shape = AttentionShape(4, 2, 16, 0.25)
    case = Case(shape, 4, [40] * 64, [1] * 64, 0)
    step = lay_out(case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_backend, "TILE_BYTES", 44 * 2 * 16 * 4 * 8)
        backend = TorchAttentionBackend(shape, 4, torch.float32, CPU)
        plan = backend.plan(step.metadata)
        out = torch.empty_like(step.query)
        backend.forward(step.query, step.key, step.value, step.cache, plan, out)
    assert [len(group.mask) for group in plan.decode_groups] == [8] * 8
    assert backend._key_tile.numel() == 8 * 44 * 2 * 16
