"""Paged attention against float64, under the sanitizer, with NaN in every slot that is nobody's."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import kernels.paged_attention as module
from kernels.checks import FLOATS
from kernels.devices import Device
from kernels.errors import KernelInputError
from kernels.paged_attention import paged_attention
from kernels.paged_attention_kernel import paged_attention_kernel
from kernels.paged_attention_launch import Launch, choose_launch
from kernels.testing.architectures import ARCHITECTURES
from kernels.testing.faults import OutOfBoundsError
from kernels.testing.sanitizer import sanitize
from tests.kernels.paged_batches import E4M3, OPTIONS, SPLITS, Batch, batch_of, batches
from tests.kernels.strategies import SEEDS

MIXED = [(5, 70), (1, 133), (17, 17), (1, 1)]


@settings(max_examples=15)
@given(data=st.data(), options=OPTIONS, num_splits=SPLITS)
def test_a_ragged_batch_is_as_accurate_as_torch(
    device: str, data: st.DataObject, options: dict[str, Any], num_splits: int | None
) -> None:
    batch = data.draw(batches(device))
    batch.assert_accurate(batch.attend(num_splits=num_splits, **options), **options)


@pytest.mark.slow
@settings(max_examples=400)
@given(data=st.data(), options=OPTIONS, num_splits=SPLITS)
def test_many_ragged_batches_are_as_accurate_as_torch(
    device: str, data: st.DataObject, options: dict[str, Any], num_splits: int | None
) -> None:
    batch = data.draw(batches(device, largest=300))
    batch.assert_accurate(batch.attend(num_splits=num_splits, **options), **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"window": 64}, {"window": 256, "softcap": 50.0}, {"num_splits": 7}]
)
@pytest.mark.parametrize("heads", [(4, 4), (8, 2), (5, 1), (9, 3)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_long_lengths_with_prefill_and_decode_together(
    device: str, dtype: torch.dtype, heads: tuple[int, int], options: dict[str, Any]
) -> None:
    lens = [(1, 1328), (5, 18), (129, 463)]
    batch = batch_of(lens, device, heads=heads, head_dim=128, dtype=dtype)
    out = batch.attend(**options)
    seen = {name: value for name, value in options.items() if name != "num_splits"}
    batch.assert_accurate(out, **seen)


@pytest.mark.parametrize("head_dim", [1, 40, 80, 96, 128, 256])
def test_heads_of_no_power_of_two_are_padded(device: str, head_dim: int) -> None:
    batch = batch_of([(3, 40), (1, 65)], device, head_dim=head_dim, dtype=torch.float16)
    batch.assert_accurate(batch.attend())


@pytest.mark.parametrize("cache_dtype", [torch.int8, E4M3])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_cache_of_codes_is_read_as_its_numbers(
    device: str, dtype: torch.dtype, cache_dtype: torch.dtype
) -> None:
    """int8 and e4m3 with a scale for each token and head, in prefill and in a split decode."""
    for lens, num_splits in (([(5, 70), (33, 40)], 1), ([(1, 70), (1, 150)], 2)):
        batch = batch_of(lens, device, dtype=dtype, cache_dtype=cache_dtype, heads=(9, 3))
        batch.assert_accurate(batch.attend(num_splits=num_splits))


def test_one_kv_head_may_serve_71(device: str) -> None:
    """Falcon 7B: a program's rows are those of one token."""
    batch = batch_of([(3, 40), (1, 9)], device, heads=(71, 1), head_dim=16)
    batch.assert_accurate(batch.attend())


@settings(max_examples=300)
@given(
    group=st.integers(1, 128),
    head_dim=st.integers(1, 256),
    types=st.sampled_from(
        [(dtype, cache) for dtype in FLOATS for cache in (dtype, torch.int8, E4M3)]
    ),
    max_query_len=st.integers(1, 9000),
    arch=st.sampled_from(sorted(ARCHITECTURES)),
)
def test_a_launch_has_rows_for_a_token_and_fits_the_matrix_instruction(
    group: int, head_dim: int, types: tuple[torch.dtype, torch.dtype], max_query_len: int, arch: str
) -> None:
    launch = choose_launch(group, head_dim, *types, max_query_len, arch)
    assert launch.block_m >= max(16, group)
    assert launch.block_n >= 16
    assert launch.block_m.bit_count() == launch.block_n.bit_count() == 1
    assert launch.num_warps in (4, 8)
    if group * max_query_len <= 32:
        assert launch.block_m <= 32  # no request has several blocks of rows
        assert launch.block_m // group >= max_query_len


# Exact laws.


@pytest.mark.parametrize("lens", [MIXED, [(1, 200), (1, 3), (1, 65)]])
@pytest.mark.parametrize("num_splits", [2, 5])
def test_splits_of_the_keys_change_roundings_only(
    device: str, lens: list[tuple[int, int]], num_splits: int
) -> None:
    batch = batch_of(lens, device)
    whole = batch.attend(num_splits=1)
    torch.testing.assert_close(batch.attend(num_splits=num_splits), whole, rtol=1e-5, atol=1e-6)
    windowed = batch.attend(num_splits=1, window=37)
    parts = batch.attend(num_splits=num_splits, window=37)
    torch.testing.assert_close(parts, windowed, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cache_dtype", [None, torch.int8])
def test_the_size_and_order_of_blocks_do_not_matter(
    device: str, cache_dtype: torch.dtype | None
) -> None:
    """Bit for bit: tiles are of keys, wherever these are."""
    lens = [(5, 70), (1, 133)]
    first, *others = (
        batch_of(lens, device, block_size=block_size, cache_dtype=cache_dtype, spare_blocks=spare)
        for block_size, spare in ((16, 1), (1, 0), (3, 7), (17, 2), (128, 0))
    )
    expected = first.attend(num_splits=1)
    for other in others:
        assert torch.equal(other.attend(num_splits=1), expected)


@settings(max_examples=5)
@given(seed=SEEDS, num_splits=st.sampled_from([1, 3]))
def test_the_rows_of_a_request_do_not_depend_on_its_neighbours(
    device: str, seed: int, num_splits: int
) -> None:
    """Bit for bit, for one number of splits: batch invariance."""
    batch = batch_of(MIXED, device, seed=seed, dtype=torch.bfloat16)
    together = batch.attend(num_splits=num_splits)
    for index in range(len(MIXED)):
        alone = batch.request(index).attend(num_splits=num_splits, max_query_len=17)
        start, end = batch.query_start_loc[index : index + 2].tolist()
        assert torch.equal(alone, together[start:end])


@pytest.mark.parametrize("options", [{}, {"window": 19}, {"window": 90}])
def test_prefill_in_chunks_equals_prefill_at_once(device: str, options: dict[str, Any]) -> None:
    """With tiles that all rows of a block see whole, and tiles that some see."""
    length = 170
    batch = batch_of([(length, length)], device)
    at_once = batch.attend(num_splits=1, **options)
    batch.assert_accurate(at_once, **options)
    for start, end in ((0, 31), (31, 96), (96, 97), (97, length)):
        chunk = replace(
            batch,
            query=batch.query[start:end],
            query_start_loc=batch.query_start_loc.new_tensor([0, end - start]),
            seq_lens=batch.seq_lens.new_tensor([end]),
        )
        out = chunk.attend(num_splits=1, **options)
        torch.testing.assert_close(out, at_once[start:end], rtol=1e-5, atol=1e-6)


def test_permuting_kv_heads_with_their_groups_permutes_the_result(device: str) -> None:
    batch = batch_of([(3, 70), (1, 20)], device, heads=(6, 3))
    order = torch.tensor([2, 0, 1])
    permuted = replace(
        batch,
        query=batch.query.unflatten(1, (3, 2))[:, order].flatten(1, 2),
        key_cache=batch.key_cache[:, :, order],
        value_cache=batch.value_cache[:, :, order],
    )
    expected = batch.attend().unflatten(1, (3, 2))[:, order].flatten(1, 2)
    assert torch.equal(permuted.attend(), expected)


def test_a_window_of_one_gives_the_value_of_the_token_itself(device: str) -> None:
    """Bit for bit: its weight is 1."""
    batch = batch_of([(5, 70)], device, heads=(2, 2), dtype=torch.float16)
    own = batch.reference(torch.float64, window=1).half()
    assert torch.equal(batch.attend(window=1, num_splits=2), own)


def test_a_window_longer_than_the_sequence_is_none(device: str) -> None:
    batch = batch_of(MIXED, device)
    whole = batch.attend(num_splits=1)
    assert torch.equal(batch.attend(num_splits=1, window=133), whole)
    assert torch.equal(batch.attend(num_splits=1, window=2**40), whole)


# Faults that kernels of this kind have had.


def test_tokens_without_a_key_get_zeros(device: str) -> None:
    """flashinfer#4452: five query tokens, two keys; the first three stand before position 0."""
    batch = batch_of([(5, 2), (2, 0), (1, 4)], device)
    for num_splits in (1, 3):
        out = batch.attend(num_splits=num_splits)
        assert out[[0, 1, 2, 5, 6]].eq(0).all()
        batch.assert_accurate(out)


def test_an_empty_request_between_others_is_nobodys_concern(device: str) -> None:
    """flash-attention#2842: lengths 61, 0 and 50 in the split path."""
    batch = batch_of([(1, 61), (0, 0), (1, 50)], device)
    out = batch.attend(num_splits=4)
    batch.assert_accurate(out)
    assert torch.equal(out[:1], batch.request(0).attend(num_splits=4))
    assert torch.equal(out[1:], batch.request(2).attend(num_splits=4))


def test_a_length_beyond_the_block_table_is_refused_where_the_host_knows_it(device: str) -> None:
    """flash-attention#2709. The table has room for 5 + 2 blocks of 16."""
    batch = batch_of([(1, 70)], device)
    batch.attend(max_seq_len=112)
    with pytest.raises(KernelInputError, match=r"max_seq_len is 113, .* has room for 112 tokens"):
        batch.attend(max_seq_len=113)


@pytest.mark.parametrize("num_splits", [1, 3])
def test_keys_beyond_the_block_table_are_absent_where_only_the_gpu_knows(
    device: str, num_splits: int
) -> None:
    """The sanitizer would see a read of the table's next row, or beyond it."""
    batch = batch_of([(1, 64), (3, 20)], device)
    table = batch.block_tables[:, :4].contiguous()
    expected = replace(batch, block_tables=table).attend(num_splits=num_splits)[:1]
    longer = replace(batch, block_tables=table, seq_lens=batch.seq_lens.new_tensor([1000, 20]))
    out = longer.attend(num_splits=num_splits)
    torch.testing.assert_close(out[:1], expected, rtol=1e-5, atol=1e-6)


def test_the_length_decides_and_not_the_listed_blocks(device: str) -> None:
    """pegainfer#291: 16 tokens fill a block of 16; another block is listed, full of NaN."""
    batch = batch_of([(1, 16)], device, block_size=16, spare_blocks=1)
    spare = 1 - int(batch.block_tables[0, 0])
    table = batch.block_tables.clone()
    table[0, 1:] = spare
    out = replace(batch, block_tables=table).attend()
    assert torch.equal(out, batch.attend())
    assert out.isfinite().all()


def test_the_cap_comes_before_the_mask(device: str) -> None:
    """flash-attention PR#1025: a capped -inf is -cap, and tokens would see the future."""
    batch = batch_of([(9, 9)], device, heads=(2, 2))
    out = batch.attend(softcap=1.0)
    batch.assert_accurate(out, softcap=1.0)
    first = batch.request(0).reference(torch.float64, window=1)[0]
    torch.testing.assert_close(out[0].double(), first, rtol=1e-6, atol=1e-6)


def test_a_score_beyond_the_cap_counts_as_its_tanh(device: str) -> None:
    """unsloth-zoo PR#593: under a cap of 30 a score of 124 is 30 tanh(124 / 30), not 124."""
    batch = batch_of([(1, 2)], device, heads=(1, 1), head_dim=1)
    keys, values = torch.zeros_like(batch.key_cache), torch.zeros_like(batch.value_cache)
    block = int(batch.block_tables[0, 0])
    keys[block, :2, 0, 0] = keys.new_tensor([124.0, 60.0])
    values[block, 1] = 1.0
    query = torch.ones_like(batch.query)
    capped = replace(batch, query=query, key_cache=keys, value_cache=values)
    high, low = (30.0 * math.tanh(score / 30.0) for score in (124.0, 60.0))
    out = capped.attend(scale=1.0, softcap=30.0)
    assert math.isclose(out.item(), 1 / (1 + math.exp(high - low)), rel_tol=1e-5)


def test_small_scores_keep_their_digits_under_a_large_cap(device: str) -> None:
    """In fp32 tanh near 0 must be as exact as its argument: 50 * tanh(s / 50) is about s."""
    batch = batch_of([(9, 9)], device, heads=(4, 4))
    for softcap in (50.0, 1000.0):
        batch.assert_accurate(batch.attend(softcap=softcap), softcap=softcap)


def test_scales_are_applied_to_their_own_side(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys have the scale 1/2, values 2; exactly the cache of the products, bit for bit."""
    tiles = Launch(block_m=64, block_n=32, num_warps=8, num_stages=3, peel=True)
    monkeypatch.setattr(module, "choose_launch", lambda *_: tiles)
    batch = batch_of(MIXED, device, dtype=torch.float16, cache_dtype=E4M3)
    assert batch.key_scales is not None
    assert batch.value_scales is not None
    coded = replace(
        batch,
        key_scales=torch.full_like(batch.key_scales, 0.5),
        value_scales=torch.full_like(batch.value_scales, 2.0),
        query=batch.query * 0.02,
    )
    plain = replace(
        coded,
        key_cache=batch.key_cache.half() * 0.5,
        value_cache=batch.value_cache.half() * 2.0,
        key_scales=None,
        value_scales=None,
    )
    assert torch.equal(coded.attend(), plain.attend())


def test_scales_are_applied_to_their_own_side_in_fp32(device: str) -> None:
    """Keys have the scale 1/2, values 2: the same as a cache of the products."""
    batch = batch_of([(5, 70), (1, 33)], device, cache_dtype=E4M3)
    assert batch.key_scales is not None
    assert batch.value_scales is not None
    coded = replace(
        batch,
        key_scales=torch.full_like(batch.key_scales, 0.5),
        value_scales=torch.full_like(batch.value_scales, 2.0),
    )
    plain = replace(
        batch,
        key_cache=batch.key_cache.float() * 0.5,
        value_cache=batch.value_cache.float() * 2.0,
        key_scales=None,
        value_scales=None,
    )
    options = {"scale": 0.001, "num_splits": 1}
    torch.testing.assert_close(
        coded.attend(**options), plain.attend(**options), rtol=1e-5, atol=1e-3
    )


def test_weights_survive_small_value_scales_in_fp16(device: str) -> None:
    """Values of about 1e-4 have the scale 1e-6, which times a weight is no fp16 number."""
    batch = batch_of([(1, 150), (4, 90)], device, dtype=torch.float16, cache_dtype=torch.int8)
    assert batch.value_scales is not None
    batch = replace(batch, value_scales=batch.value_scales * 2.0**-14)
    batch.assert_accurate(batch.attend())


def test_a_smaller_value_scale_makes_a_smaller_result(device: str) -> None:
    """Scales of about 1e-4: times a weight that is hardly an fp16 number. Bit for bit, a smaller
    scale makes a smaller result."""
    batch = batch_of([(1, 150), (4, 90)], device, dtype=torch.float16, cache_dtype=torch.int8)
    assert batch.value_scales is not None
    small = replace(batch, value_scales=batch.value_scales * 2.0**-7)
    out, expected = small.attend(num_splits=1), batch.attend(num_splits=1) * 2.0**-7
    ordinary = out.abs() > 2 * torch.finfo(torch.float16).smallest_normal
    assert ordinary.float().mean() > 0.5
    assert torch.equal(out[ordinary], expected[ordinary])


def test_tokens_of_zeros_have_the_scale_zero(device: str) -> None:
    batch = batch_of([(1, 5)], device, cache_dtype=torch.int8)
    assert batch.key_scales is not None
    assert batch.value_scales is not None
    zeros = torch.zeros_like(batch.key_scales)
    out = replace(batch, key_scales=zeros, value_scales=zeros).attend()
    assert out.eq(0).all()


def test_e4m3_without_scales_is_itself(device: str) -> None:
    batch = batch_of([(3, 40)], device, dtype=torch.bfloat16, cache_dtype=E4M3)
    batch = replace(batch, key_scales=None, value_scales=None)
    batch.assert_accurate(batch.attend(scale=0.001), scale=0.001)


def test_e4m3_is_read_alike_by_instruction_and_by_hand(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device != "cpu":
        pytest.skip("a GPU has one of the two ways")
    batch = batch_of(MIXED, device, dtype=torch.bfloat16, cache_dtype=E4M3)
    by_hand = batch.attend(num_splits=1)
    hopper = Device("sm_90", (9, 0), 132, has_fp8=True)
    monkeypatch.setattr(module, "device_of", lambda tensor: hopper)
    torch.testing.assert_close(batch.attend(num_splits=1), by_hand)


@pytest.mark.parametrize("arch", sorted(ARCHITECTURES))
def test_the_launches_of_every_architecture_are_right(
    device: str, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other tiles, and e4m3 read by an instruction or by hand."""
    if device != "cpu":
        pytest.skip("a GPU is of one architecture")
    monkeypatch.setattr(module, "device_of", lambda tensor: Device(arch, (0, 0), 132, True))
    for lens in ([(5, 70), (40, 40)], [(1, 90)]):
        batch = batch_of(lens, device, dtype=torch.bfloat16, cache_dtype=E4M3)
        batch.assert_accurate(batch.attend())


def test_indices_of_32_and_64_bits_are_taken_and_no_others(device: str) -> None:
    lens = [(3, 40), (1, 20)]
    narrow = batch_of(lens, device, index_dtype=torch.int32)
    wide = batch_of(lens, device, index_dtype=torch.int64)
    assert torch.equal(narrow.attend(), wide.attend())
    with pytest.raises(KernelInputError, match="seq_lens is float64, wanted int32 or int64"):
        replace(narrow, seq_lens=narrow.seq_lens.double()).attend()


def test_the_result_may_be_written_into_a_wider_buffer(device: str) -> None:
    batch = batch_of([(3, 70), (1, 20)], device)
    buffer = torch.full((batch.query.shape[0], 6, 48), float("nan"), device=device)
    out = buffer[:, 1:5, :32]
    for num_splits in (1, 2):
        assert batch.attend(out=out, num_splits=num_splits) is out
        assert torch.equal(out, batch.attend(num_splits=num_splits))
    assert buffer[:, 0].isnan().all()
    assert buffer[:, :, 32:].isnan().all()


def test_nothing_to_do_launches_nothing(device: str) -> None:
    batch = batch_of([(0, 30), (0, 0)], device)
    assert batch.attend(max_query_len=0).shape == (0, 4, 32)
    nobody = replace(
        batch,
        block_tables=batch.block_tables[:0],
        seq_lens=batch.seq_lens[:0],
        query_start_loc=batch.query_start_loc[:1],
    )
    assert nobody.attend().shape == (0, 4, 32)


class _GridRecorder:
    """Stands in for a kernel and keeps the grids of its launches."""

    def __init__(self) -> None:
        self.grids: list[tuple[int, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        self.grids.append(grid)
        return lambda *arguments, **constants: None


class _NoWaiting(TorchDispatchMode):
    """Raises where a tensor's values would come to the host."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        assert func not in (
            torch.ops.aten._local_scalar_dense.default,
            torch.ops.aten._to_copy.default,
        )
        return func(*args, **(kwargs or {}))


def test_the_host_does_not_wait_for_the_lengths(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be on the GPU, where a step that is still running writes them."""
    batch = batch_of(MIXED, device, cache_dtype=E4M3)
    recorder = _GridRecorder()
    monkeypatch.setattr(module, "paged_attention_kernel", recorder)
    with _NoWaiting():
        paged_attention(
            batch.query, batch.key_cache, batch.value_cache, batch.block_tables, batch.seq_lens,
            batch.query_start_loc, 17, scale=1.0, key_scales=batch.key_scales,
            value_scales=batch.value_scales, num_splits=1,
        )  # fmt: skip
    assert len(recorder.grids) == 1


@pytest.mark.parametrize("lens", [[(65_536, 65_536)], [(1, 16)] * 65_536])
def test_65536_tokens_lie_along_the_first_axis(
    device: str, monkeypatch: pytest.MonkeyPatch, lens: list[tuple[int, int]]
) -> None:
    """vLLM PR#52381: the other axes of a grid end at 65,535."""
    recorder = _GridRecorder()
    monkeypatch.setattr(module, "paged_attention_kernel", recorder)
    query_lens = torch.tensor([query_len for query_len, _ in lens])
    starts = torch.cat([torch.zeros(1), query_lens.cumsum(0)]).to(device, torch.int32)
    cache = torch.zeros(1, 16, 1, 16, device=device)
    table = torch.zeros(len(lens), 1, dtype=torch.int32, device=device)
    seq_lens = torch.tensor([seq_len for _, seq_len in lens], device=device)
    query = torch.zeros(65_536, 1, 16, device=device)
    longest = int(query_lens.max())
    paged_attention(query, cache, cache, table, seq_lens, starts, longest, scale=1.0)
    ((x, y, z),) = recorder.grids
    assert x >= 1024
    assert (y, z) == (1, 1)


def test_offsets_into_the_cache_are_64_bit(device: str) -> None:
    """Block 2 of blocks 2^30 elements apart: not there, but no sum or product has wrapped."""
    if device != "cpu":
        pytest.skip("a GPU does not say where it read")
    ones, keys = torch.ones(1, 1, 16), torch.ones(1, 1, 1, 16)
    table, starts = torch.tensor([[2]], dtype=torch.int32), torch.tensor([0, 1])
    names = [name for name in paged_attention_kernel.arg_names if name.endswith("_stride")]
    strides = dict.fromkeys(names, 0) | {"key_block_stride": 2**30, "value_block_stride": 2**30}
    with sanitize(), pytest.raises(OutOfBoundsError, match="load out of bounds in 16 lanes"):
        paged_attention_kernel[(1, 1, 1)](
            query=ones, key_cache=keys, value_cache=keys, key_scales=keys, value_scales=keys,
            block_tables=table, seq_lens=torch.tensor([1]), query_start_loc=starts,
            out=ones, partial_lse=ones, **strides, num_requests=1, num_tokens=1, capacity=16,
            window=1, scale=1.0, cap=0.0, GROUP=1, HEAD_DIM=16, BLOCK_SIZE=16, BLOCK_M=16,
            BLOCK_N=16, SEARCH=False, PEEL=False, SPLIT=False, HAS_WINDOW=False,
            HAS_SOFTCAP=False, HAS_SCALES=False,
        )  # fmt: skip


def _refused(batch: Batch, message: str, **options: Any) -> None:
    with pytest.raises(KernelInputError, match=message):
        batch.attend(**options)


def test_wrong_tensors_are_refused_with_what_was_wanted(device: str) -> None:
    batch = batch_of([(2, 20), (1, 5)], device)
    cache = batch.key_cache
    _refused(
        replace(batch, query=batch.query[0]), r"query has shape \(4, 32\), wanted \[num_tokens"
    )
    _refused(replace(batch, query=batch.query.double()), "query is float64, wanted float16 or")
    _refused(replace(batch, query=batch.query[..., :16]), "head_dim 16, key_cache 32")
    _refused(replace(batch, query=batch.query[:, :3]), "3 query heads and 2 KV heads")
    _refused(replace(batch, key_cache=cache[0]), "key_cache has shape .* wanted .num_blocks")
    _refused(replace(batch, key_cache=cache.half()), "key_cache is float16, wanted float32 or int8")
    _refused(replace(batch, value_cache=cache[:1]), "value_cache has shape")
    _refused(replace(batch, value_cache=cache.half()), "value_cache is float16, wanted float32")
    _refused(replace(batch, seq_lens=batch.seq_lens[:1]), r"seq_lens has shape \(1,\), wanted \(2,")
    _refused(replace(batch, query_start_loc=batch.seq_lens), r"query_start_loc has .* wanted \(3,")
    _refused(replace(batch, block_tables=batch.block_tables[0]), "block_tables has shape")
    sideways = cache.transpose(1, 3).contiguous().transpose(1, 3)
    _refused(replace(batch, key_cache=sideways), r"of key_cache must be adjacent.*contiguous\(\)")
    far = torch.empty(cache.shape, device="meta").as_strided(cache.shape, (64, 2**28, 32, 1))
    _refused(replace(batch, value_cache=far), f"value_cache lie up to {15 * 2**28} elements apart")
    _refused(replace(batch, query=batch.query.to("meta")), "one device")
    _refused(batch, "out has shape", out=batch.query[:1].clone())
    _refused(batch, "out is float16, wanted float32", out=batch.query.half())


def test_wrong_scales_are_refused_with_what_was_wanted(device: str) -> None:
    plain = batch_of([(2, 20)], device)
    coded = batch_of([(2, 20)], device, cache_dtype=torch.int8)
    assert coded.key_scales is not None
    one = {"key_scales": coded.key_scales}
    _refused(replace(coded, value_scales=None), "key_scales alone: give both")
    _refused(replace(coded, key_scales=None, value_scales=None), "int8 cache needs key_scales")
    _refused(replace(plain, **one, value_scales=coded.value_scales), "this one is torch.float32")
    _refused(replace(coded, key_scales=coded.key_scales[:1]), "key_scales has shape")
    _refused(replace(coded, key_scales=coded.key_scales.half()), "key_scales is float16")


def test_wrong_numbers_are_refused_with_what_was_wanted(device: str) -> None:
    batch = batch_of([(2, 20), (1, 5)], device)
    _refused(batch, "query has 3 tokens, 2 requests of at most max_query_len=1", max_query_len=1)
    _refused(batch, "window is 0, wanted None or at least 1", window=0)
    _refused(batch, "num_splits is 0, wanted None or 1 to 128", num_splits=0)
    _refused(batch, "num_splits is 129", num_splits=129)
    for scale in (math.nan, math.inf):
        _refused(batch, f"scale is {scale}, wanted a finite number", scale=scale)
    for softcap in (-30.0, math.nan, math.inf):
        _refused(batch, f"softcap is {softcap}, wanted a number above 0, or 0", softcap=softcap)


def test_more_kv_heads_than_the_grid_has_room_for_are_refused(device: str) -> None:
    """They lie along its second axis, which ends at 65,535."""
    batch = batch_of([(1, 1)], device, heads=(65_536, 65_536), head_dim=1, block_size=1)
    _refused(batch, "65536 KV heads, wanted at most 65535")
