"""The copies between the KV cache and the swap space, on tensors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.attention.backend import LayerKVCache
from infra_lab.attention.kv_cache import KVCacheFormat
from infra_lab.step import BlockCopy, ScheduledRequest, SchedulerOutput
from infra_lab.worker.host_kv_cache import (
    PinnedKVCache,
    host_kv_cache,
    written_blocks,
)
from infra_lab.worker.kv_cache import copy_blocks

NUM_BLOCKS, NUM_HOST_BLOCKS, BLOCK_SIZE = 6, 5, 2
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


FORMATS = [
    KVCacheFormat(3, 4, BLOCK_SIZE, torch.float32),
    KVCacheFormat(3, 4, BLOCK_SIZE, torch.bfloat16),
    KVCacheFormat(3, 4, BLOCK_SIZE, torch.float32, "int8_per_token_head"),
    KVCacheFormat(3, 4, BLOCK_SIZE, torch.bfloat16, "fp8_per_token_head", sparse=True),
    KVCacheFormat(3, 4, 16, torch.float32, "int8_per_channel_keys"),
]
every_format = pytest.mark.parametrize(
    "form", FORMATS, ids=lambda form: f"{form.kv_cache_dtype}-{form.dtype}".replace("torch.", "")
)


def make_caches(form: KVCacheFormat = FORMATS[0], device: str = "cpu") -> list[LayerKVCache]:
    """Three layers, filled with any finite numbers their types can hold."""
    torch.manual_seed(0)
    caches = [form.allocate(NUM_BLOCKS, torch.device(device)) for _ in range(3)]
    for cache in caches:
        for tensor in cache.tensors:
            tensor.copy_(torch.randint(-100, 100, tensor.shape))
    return caches


def contents(caches: list[LayerKVCache]) -> list[torch.Tensor]:
    return [tensor.double().cpu() for cache in caches for tensor in cache.tensors]


def pairs(num_sources: int, num_targets: int) -> st.SearchStrategy[list[BlockCopy]]:
    copy = st.builds(BlockCopy, st.integers(1, num_sources - 1), st.integers(1, num_targets - 1))
    return st.lists(copy, max_size=4, unique_by=lambda one: one.target)


def check_copies(
    form: KVCacheFormat,
    device: str,
    outs: list[BlockCopy],
    within: list[BlockCopy],
    ins: list[BlockCopy],
) -> None:
    """In the order of a step, against the same on plain lists of numbers."""
    caches = make_caches(form, device)
    host = host_kv_cache(caches, NUM_HOST_BLOCKS)
    before = contents(caches)
    host.swap_out(outs)
    host.before_write(copy.target for copy in within)
    copy_blocks(caches, within)
    host.swap_in(ins)
    host.before_read()
    for tensor, old in zip(contents(caches), before, strict=True):
        expected = dict(enumerate(old.tolist()))
        kept = dict.fromkeys(range(NUM_HOST_BLOCKS), torch.zeros_like(old[0]).tolist())
        kept |= {copy.target: expected[copy.source] for copy in outs}
        expected |= {copy.target: expected[copy.source] for copy in within}
        expected |= {copy.target: kept[copy.source] for copy in ins}
        assert tensor.tolist() == [expected[block] for block in range(NUM_BLOCKS)]


@every_format
@given(
    pairs(NUM_BLOCKS, NUM_HOST_BLOCKS),
    pairs(NUM_BLOCKS, NUM_BLOCKS),
    pairs(NUM_HOST_BLOCKS, NUM_BLOCKS),
)
def test_blocks_go_out_then_within_then_in(
    form: KVCacheFormat, outs: list[BlockCopy], within: list[BlockCopy], ins: list[BlockCopy]
) -> None:
    check_copies(form, "cpu", outs, within, ins)


@needs_gpu
@every_format
@given(
    pairs(NUM_BLOCKS, NUM_HOST_BLOCKS),
    pairs(NUM_BLOCKS, NUM_BLOCKS),
    pairs(NUM_HOST_BLOCKS, NUM_BLOCKS),
)
def test_on_a_gpu_too(
    form: KVCacheFormat, outs: list[BlockCopy], within: list[BlockCopy], ins: list[BlockCopy]
) -> None:
    check_copies(form, "cuda", outs, within, ins)


@needs_gpu
def test_a_gpus_host_memory_is_pinned_and_its_copies_may_go_on_until_a_block_is_written() -> None:
    caches = make_caches(device="cuda")
    host = host_kv_cache(caches, NUM_HOST_BLOCKS)
    assert isinstance(host, PinnedKVCache)
    assert all(tensor.is_pinned() for tensor in host._host)
    host.swap_out([BlockCopy(3, 1)])
    host.before_write([1, 2])
    assert host._being_read == {3}
    host.before_write([3])
    assert host._being_read == set()


def test_bandwidth_is_measured_and_leaves_the_cache_as_it_was() -> None:
    caches = make_caches()
    before = contents(caches)
    host = host_kv_cache(caches, NUM_HOST_BLOCKS)
    assert host.measure_bytes_per_s() > 0
    assert all(map(torch.equal, contents(caches), before))
    assert host.bytes_per_block == 3 * BLOCK_SIZE * 2 * 3 * 4 * 4


def test_written_blocks_are_those_of_the_new_tokens() -> None:
    step = SchedulerOutput(
        [
            ScheduledRequest("a", [1, 2, 3], 3, [7, 8, 9], samples=True),
            ScheduledRequest("b", [1], 4, [4, 5, 6], samples=True),
        ]
    )
    assert written_blocks(step, BLOCK_SIZE) == {8, 9, 6}
