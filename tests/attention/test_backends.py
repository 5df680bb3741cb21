"""Both CPU backends against dense attention in float64, over arbitrary ragged batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infra_lab.attention import torch_backend
from infra_lab.attention.backend import (
    AttentionBackend,
    AttentionMetadata,
    AttentionShape,
    LayerKVCache,
)
from infra_lab.attention.native_backend import NativeAttentionBackend
from infra_lab.attention.torch_backend import TorchAttentionBackend
from infra_lab.native.library import NativeUnavailableError

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
    key_value: torch.Tensor
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
    cache_shape = (num_blocks, size, 2, shape.num_kv_heads, shape.head_dim)
    # Other requests' leftovers lie in the cache: large, so that reading one would show.
    cache = LayerKVCache(torch.full(cache_shape, 50.0))
    keys = [torch.randn(length, shape.num_kv_heads, shape.head_dim) for length in seq_lens]
    values = [torch.randn(length, shape.num_kv_heads, shape.head_dim) for length in seq_lens]
    slots = []
    for table, context, length, key, value in zip(
        tables, case.context_lens, seq_lens, keys, values, strict=True
    ):
        for position in range(length):
            block, offset = table[position // size], position % size
            if position < context:
                cache.key[block, offset] = key[position]
                cache.value[block, offset] = value[position]
            else:
                slots.append(block * size + offset)
    starts = np.concatenate([[0], np.cumsum(case.query_lens)]).astype(np.int64)
    pairs = [torch.stack(pair, dim=1) for pair in zip(keys, values, strict=True)]
    fresh = [pair[context:] for pair, context in zip(pairs, case.context_lens, strict=True)]
    return Step(
        AttentionMetadata(starts, np.array(seq_lens), padded, np.array(slots)),
        cache,
        torch.randn(int(starts[-1]), shape.num_heads, shape.head_dim),
        torch.cat(fresh),
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


def make_torch(shape: AttentionShape, block_size: int) -> TorchAttentionBackend:
    return TorchAttentionBackend(shape, block_size, torch.float32, CPU)


def make_native(shape: AttentionShape, block_size: int) -> NativeAttentionBackend:
    try:
        return NativeAttentionBackend(shape, block_size)
    except NativeUnavailableError as reason:
        pytest.skip(f"no compiled kernel here: {reason}")


Make = Callable[[AttentionShape, int], AttentionBackend[Any]]
both = pytest.mark.parametrize("make", [make_torch, make_native])


def attend(make: Make, case: Case, step: Step) -> torch.Tensor:
    backend = make(case.shape, case.block_size)
    out = torch.full_like(step.query, float("nan"))
    backend.forward(step.query, step.key_value, step.cache, backend.plan(step.metadata), out)
    return out


def assert_right(out: torch.Tensor, case: Case, step: Step) -> None:
    torch.testing.assert_close(out.double(), dense_attention(case, step), atol=2e-5, rtol=2e-5)


@both
@settings(max_examples=80)
@given(case=cases())
def test_every_query_attends_to_exactly_its_past(make: Make, case: Case) -> None:
    step = lay_out(case)
    assert_right(attend(make, case, step), case, step)


@both
@settings(max_examples=60)
@given(case=cases(), length=st.integers(1, 200))
def test_decodes_of_any_length_attend_to_their_past(make: Make, case: Case, length: int) -> None:
    """Longer than the kernel's chunk of positions, and with no chunk of a prompt beside them."""
    contexts = [(context * length) % 200 for context in case.context_lens]
    case = Case(case.shape, case.block_size, contexts, [1] * len(contexts), case.seed)
    step = lay_out(case)
    assert_right(attend(make, case, step), case, step)


@both
@settings(max_examples=40)
@given(
    case=cases(),
    head_dim=st.sampled_from([1, 8, 40, 64, 80, 128]),
    pairs=st.lists(st.tuples(st.integers(0, 150), st.integers(1, 210)), min_size=1, max_size=3),
    window=st.none() | st.integers(1, 130),
)
def test_chunks_over_several_tiles_attend_to_their_past(
    make: Make, case: Case, head_dim: int, pairs: list[tuple[int, int]], window: int | None
) -> None:
    shape = replace(case.shape, head_dim=head_dim, sliding_window=window)
    contexts, queries = [context for context, _ in pairs], [query for _, query in pairs]
    case = Case(shape, case.block_size, contexts, queries, case.seed)
    step = lay_out(case)
    assert_right(attend(make, case, step), case, step)


@settings(max_examples=40)
@given(context=st.integers(0, 100), lens=st.lists(st.integers(2, 70), min_size=1, max_size=5))
def test_the_kernel_gives_a_chunk_the_same_bits_however_it_is_cut(
    context: int, lens: list[int]
) -> None:
    """Tiles of keys begin at fixed positions, so no sum depends on the cut."""
    shape = AttentionShape(6, 2, 32, 0.2)
    case = Case(shape, 16, [context], [sum(lens)], 1)
    step = lay_out(case)
    whole = attend(make_native, case, step)
    start = 0
    for length in lens:
        part = replace(
            step.metadata,
            query_start_loc=np.array([0, length]),
            seq_lens=np.array([context + start + length]),
            slot_mapping=step.metadata.slot_mapping[start : start + length],
        )
        rows = slice(start, start + length)
        out = torch.empty_like(step.query[rows])
        backend = make_native(shape, 16)
        backend.forward(step.query[rows], step.key_value[rows], step.cache, backend.plan(part), out)
        assert torch.equal(out, whole[rows])
        start += length


@both
@pytest.mark.parametrize("head_dim", [64, 128, 80])
@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0])
def test_large_and_small_scores_are_weighed_right(make: Make, head_dim: int, size: float) -> None:
    shape = AttentionShape(6, 2, head_dim, head_dim**-0.5)
    case = Case(shape, 16, [0, 63, 64, 150], [1, 1, 1, 1], 3)
    step = lay_out(case)
    step.query.mul_(size)
    torch.testing.assert_close(
        attend(make, case, step).double(), dense_attention(case, step), atol=2e-4, rtol=2e-4
    )


@both
@settings(max_examples=30)
@given(case=cases(), decodes_only=st.booleans())
def test_nan_that_others_left_in_the_cache_reaches_nobody(
    make: Make, case: Case, decodes_only: bool
) -> None:
    """A freed block may hold anything, and a block's last slots are not written yet."""
    if decodes_only:
        case = replace(case, query_lens=[1] * len(case.query_lens))
    step = lay_out(case)
    left = step.cache.storage == 50.0
    step.cache.storage[left] = float("nan")
    assert_right(attend(make, case, step), case, step)


@both
@settings(max_examples=30)
@given(case=cases())
def test_new_keys_and_values_lie_in_the_cache_at_their_slots(make: Make, case: Case) -> None:
    step = lay_out(case)
    before = step.cache.storage.clone()
    attend(make, case, step)
    slots = torch.from_numpy(step.metadata.slot_mapping)
    rows = step.cache.storage.flatten(0, 1)
    assert torch.equal(rows[slots], step.key_value)
    untouched = torch.ones(len(rows), dtype=torch.bool)
    untouched[slots] = False
    assert torch.equal(rows[untouched], before.flatten(0, 1)[untouched])


@settings(max_examples=30)
@given(case=cases())
def test_a_small_tile_splits_decodes_without_changing_them(case: Case) -> None:
    case = Case(
        case.shape, case.block_size, case.context_lens, [1] * len(case.query_lens), case.seed
    )
    step = lay_out(case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_backend, "TILE_BYTES", 1024)
        out = attend(make_torch, case, step)
    assert_right(out, case, step)


def test_the_tile_holds_one_group_and_not_the_whole_batch() -> None:
    shape = AttentionShape(4, 2, 16, 0.25)
    case = Case(shape, 4, [40] * 64, [1] * 64, 0)
    step = lay_out(case)
    token = 2 * 2 * 16
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_backend, "TILE_BYTES", 44 * token * 4 * 8)
        backend = make_torch(shape, 4)
        plan = backend.plan(step.metadata)
        backend.forward(step.query, step.key_value, step.cache, plan, torch.empty_like(step.query))
    assert [len(group.mask) for group in plan.decode_groups] == [8] * 8
    assert backend._tile.numel() == 8 * 44 * token


def test_queries_may_be_a_slice_of_a_wider_tensor() -> None:
    shape = AttentionShape(4, 2, 16, 0.25)
    case = Case(shape, 4, [9, 70], [1, 1], 0)
    step = lay_out(case)
    wide = torch.cat((step.query, torch.randn(2, 3, 16)), dim=1)
    step.query = wide[:, :4]
    for make in (make_torch, make_native):
        out = torch.empty(2, 4, 16)
        backend = make(shape, 4)
        backend.forward(step.query, step.key_value, step.cache, backend.plan(step.metadata), out)
        assert_right(out, case, step)
