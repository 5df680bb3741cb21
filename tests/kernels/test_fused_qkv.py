"""The fused kernel equals its parts bit for bit, and they are measured in their own tests."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import KernelInputError
from kernels.fused_qkv import choose_launch, fused_qkv, fused_qkv_kernel, fused_qkv_reference
from kernels.kv_cache_write import kv_cache_write
from kernels.rotary import rotary
from kernels.rotary_table import rotary_table
from kernels.testing.accuracy import assert_as_accurate_as_torch
from kernels.testing.faults import SanitizerError, WriteRaceError
from kernels.testing.sanitizer import sanitize
from tests.kernels.caches import CODES, LAYOUTS, Cache, cache_of, slots_of
from tests.kernels.on_device import bits, on, watched
from tests.kernels.strategies import DTYPES, SEEDS, rows_of

DIMS = st.sampled_from([(64, 64), (128, 128), (80, 32), (80, 80), (7, 4), (2, 2)])
HEADS = st.sampled_from([(1, 1), (4, 4), (9, 3), (8, 1), (5, 2), (0, 2)])
POSITIONS = 64


def table_of(rotary_dim: int) -> torch.Tensor:
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim
    return rotary_table(10000.0**-exponents, POSITIONS)


def positions_of(tokens: int, seed: int) -> torch.Tensor:
    return torch.randint(0, POSITIONS, (tokens,), generator=torch.Generator().manual_seed(seed))


def one_after_the_other(
    qkv: torch.Tensor,
    heads: tuple[int, int],
    positions: torch.Tensor,
    table: torch.Tensor,
    cache: Cache,
    slots: torch.Tensor,
    *,
    interleaved: bool,
) -> torch.Tensor:
    query_heads, key_heads = heads
    query, key, value = qkv.unflatten(1, (query_heads + 2 * key_heads, -1)).split(
        (query_heads, key_heads, key_heads), dim=1
    )
    query, key = rotary(query, key, positions, table, interleaved=interleaved)
    kv_cache_write(key, value, cache.key, cache.value, slots, **cache.scale_arguments)
    return query


@settings(max_examples=60)
@given(
    tokens=st.sampled_from([0, 1, 2, 5]),
    heads=HEADS,
    dims=DIMS,
    dtype=DTYPES,
    codes=st.sampled_from([None, *CODES]),
    layout=LAYOUTS,
    interleaved=st.booleans(),
    padding=st.booleans(),
    gap=st.sampled_from([0, 1, 8]),
    seed=SEEDS,
)
def test_it_equals_rotary_and_then_the_cache_write_bit_for_bit(
    device: str,
    tokens: int,
    heads: tuple[int, int],
    dims: tuple[int, int],
    dtype: torch.dtype,
    codes: torch.dtype | None,
    layout: str,
    interleaved: bool,
    padding: bool,
    gap: int,
    seed: int,
) -> None:
    """And nothing else in the cache changes; NaN lies between the rows that are read."""
    (query_heads, key_heads), (head_dim, rotary_dim) = heads, dims
    width = (query_heads + 2 * key_heads) * head_dim
    qkv = on(device, rows_of((tokens, width), dtype, seed, padding=gap))
    positions = positions_of(tokens, seed).to(device)
    table = table_of(rotary_dim).to(device)
    slots = slots_of(tokens, 12, seed, padding).to(device)
    shape = (codes or dtype, 3, 4, key_heads, head_dim, layout)
    cache, wanted = cache_of(device, *shape), cache_of(device, *shape)
    with watched(device) as sanitizer:
        query = fused_qkv(
            qkv,
            positions,
            table,
            cache.key,
            cache.value,
            slots,
            interleaved=interleaved,
            **cache.scale_arguments,
        )
        sanitizer.require_written(query=query)
    parts = one_after_the_other(
        qkv, heads, positions, table, wanted, slots, interleaved=interleaved
    )
    assert query.shape == (tokens, query_heads, head_dim)
    assert torch.equal(bits(query), bits(parts))
    for written, expected in zip(cache.memory, wanted.memory, strict=True):
        assert torch.equal(written, expected)


@settings(max_examples=30)
@given(heads=HEADS, dims=DIMS, dtype=DTYPES, interleaved=st.booleans(), seed=SEEDS)
def test_it_is_as_accurate_as_torch(
    device: str,
    heads: tuple[int, int],
    dims: tuple[int, int],
    dtype: torch.dtype,
    interleaved: bool,
    seed: int,
) -> None:
    (query_heads, key_heads), (head_dim, rotary_dim) = heads, dims
    qkv = rows_of((4, (query_heads + 2 * key_heads) * head_dim), dtype, seed)
    positions, table = positions_of(4, seed), table_of(rotary_dim)
    slots = slots_of(4, 4, seed, padding=False)
    results = []
    for values in (qkv.double(), qkv):
        storage = torch.zeros(1, 4, 2, key_heads, head_dim, dtype=values.dtype)
        query = fused_qkv_reference(
            values, positions, table, storage[:, :, 0], storage[:, :, 1], slots,
            interleaved=interleaved,
        )  # fmt: skip
        results.append((query, storage))
    storage = torch.zeros(1, 4, 2, key_heads, head_dim, dtype=dtype, device=device)
    query = fused_qkv(
        qkv.to(device), positions.to(device), table.to(device), storage[:, :, 0], storage[:, :, 1],
        slots.to(device), interleaved=interleaved,
    )  # fmt: skip
    (true_query, true_storage), (peer_query, peer_storage) = results
    if query_heads:
        assert_as_accurate_as_torch(query.cpu(), true_query, peer_query)
    assert_as_accurate_as_torch(storage.cpu(), true_storage, peer_storage)


@pytest.mark.parametrize("codes", CODES)
def test_padding_turns_its_queries_and_writes_no_key(device: str, codes: torch.dtype) -> None:
    """A captured graph always has the same number of tokens; NaN in unused ones stays there."""
    qkv = rows_of((3, 6 * 16), torch.bfloat16, 0)
    qkv[1] = float("nan")
    cache = cache_of(device, codes, 2, 4, 2, 16)
    before = bits(cache.storage).clone()
    positions = torch.tensor([3, 0, 9], device=device)
    slots = torch.tensor([-1, -1, 6], device=device)
    with watched(device):
        query = fused_qkv(
            qkv.to(device), positions, table_of(16).to(device), cache.key, cache.value, slots,
            **cache.scale_arguments,
        )  # fmt: skip
    assert query[[0, 2]].isfinite().all()
    assert query[1].isnan().all()
    changed = (bits(cache.storage) != before).flatten(2).any(-1)
    assert changed.nonzero().tolist() == [[1, 2]]


def test_two_tokens_in_one_slot_are_a_race() -> None:
    qkv = rows_of((2, 3 * 16), torch.float32, 0)
    cache = cache_of("cpu", torch.float32, 2, 4, 1, 16)
    slots = torch.tensor([5, 5])
    with pytest.raises(WriteRaceError), sanitize():
        fused_qkv(qkv, positions_of(2, 0), table_of(16), cache.key, cache.value, slots)


def test_a_position_beyond_the_table_is_seen_by_the_sanitizer() -> None:
    qkv = rows_of((1, 3 * 16), torch.float32, 0)
    cache = cache_of("cpu", torch.float32, 2, 4, 1, 16)
    position = torch.tensor([POSITIONS])
    with pytest.raises(SanitizerError, match="'table'"), sanitize():
        fused_qkv(qkv, position, table_of(16), cache.key, cache.value, torch.tensor([0]))


def test_offsets_in_the_cache_are_64_bit() -> None:
    """Blocks of 2^30 elements, and a slot's stride that leads back to the first one."""
    cache = torch.zeros(16)
    slot, position = torch.tensor([5], dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    with sanitize():
        fused_qkv_kernel[(3,)](
            torch.ones(48), torch.zeros(16), position, table_of(16), cache, cache.clone(),
            None, None, slot, 48, 16, 2**30, -(2**31), 2**30, 0, 0, 0,
            QUERY_HEADS=1, KEY_HEADS=1, HEADS=4, HEAD_DIM=16, ROTARY_DIM=16, HALF=8, REST=0,
            COLUMNS=16, BLOCK_SIZE=2, INTERLEAVED=False, CODING="as it is",
        )  # fmt: skip
    assert cache.eq(1).all()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "gfx942"])
@pytest.mark.parametrize("key_heads", [1, 3, 8, 128])
@pytest.mark.parametrize("dims", [(2, 2), (64, 64), (80, 32), (128, 128), (1024, 1024)])
def test_a_launch_fits_any_model_and_any_number_of_tokens(
    arch: str, key_heads: int, dims: tuple[int, int]
) -> None:
    launch = choose_launch(key_heads, *dims, arch)
    assert launch.columns >= dims[0]
    assert launch.num_warps in (1, 2, 4)
    assert 2**20 * launch.programs_of_a_token(128, 128) < 2**31


def test_wrong_tensors_are_refused_with_what_was_wanted() -> None:
    qkv, positions = torch.zeros(3, 6 * 16), torch.zeros(3, dtype=torch.int64)
    table, slots = table_of(16), torch.zeros(3, dtype=torch.int64)
    cache = cache_of("cpu", torch.float32, 2, 4, 2, 16)
    k, v = cache.key, cache.value

    def refused(message: str, *arguments: torch.Tensor) -> None:
        with pytest.raises(KernelInputError, match=message):
            fused_qkv(*arguments)

    refused("qkv is float64, wanted float16", qkv.double(), positions, table, k, v, slots)
    refused(r"qkv has shape \(3, 6, 16\), wanted \[num_tokens", qkv.view(3, 6, 16), positions,
            table, k, v, slots)  # fmt: skip
    refused("adjacent", torch.zeros(96, 3).t(), positions, table, k, v, slots)
    refused("rows of 95, wanted a multiple of head_dim 16", qkv[:, :95], positions, table, k, v,
            slots)  # fmt: skip
    refused("rows of 48, .* keys and values of 2 heads", qkv[:, :48], positions, table, k, v,
            slots)  # fmt: skip
    refused(r"positions has shape \(2,\)", qkv, positions[:2], table, k, v, slots)
    refused("rotary_dim is 32 and head_dim 16", qkv, positions, table_of(32), k, v, slots)
    refused("key_cache has shape", qkv, positions, table, k[0], v[0], slots)
    refused("key_cache is float16, wanted float32 or int8", qkv, positions, table, k.half(),
            v.half(), slots)  # fmt: skip
    refused("one device", qkv, positions, table.to("meta"), k, v, slots)


@pytest.mark.slow
@settings(max_examples=400)
@given(
    heads=st.tuples(st.integers(1, 9), st.integers(1, 5)),
    half=st.integers(1, 64),
    rest=st.integers(0, 40),
    dtype=DTYPES,
    codes=st.sampled_from([None, *CODES]),
    interleaved=st.booleans(),
    power=st.integers(-40, 12),
    seed=SEEDS,
)
def test_it_equals_its_parts_widely(
    device: str,
    heads: tuple[int, int],
    half: int,
    rest: int,
    dtype: torch.dtype,
    codes: torch.dtype | None,
    interleaved: bool,
    power: int,
    seed: int,
) -> None:
    head_dim = 2 * half + rest
    width = (heads[0] + 2 * heads[1]) * head_dim
    qkv = rows_of((5, width), dtype, seed, scale=2.0**power).to(device)
    positions, table = positions_of(5, seed).to(device), table_of(2 * half).to(device)
    slots = slots_of(5, 12, seed, padding=True).to(device)
    shape = (codes or dtype, 3, 4, heads[1], head_dim)
    cache, wanted = cache_of(device, *shape), cache_of(device, *shape)
    with watched(device):
        query = fused_qkv(
            qkv,
            positions,
            table,
            cache.key,
            cache.value,
            slots,
            interleaved=interleaved,
            **cache.scale_arguments,
        )
    parts = one_after_the_other(
        qkv, heads, positions, table, wanted, slots, interleaved=interleaved
    )
    assert torch.equal(bits(query), bits(parts))
    for written, expected in zip(cache.memory, wanted.memory, strict=True):
        assert torch.equal(written, expected)
