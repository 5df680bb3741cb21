"""Moving blocks of the cache, byte by byte."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.block_copy import (
    block_copy,
    block_copy_kernel,
    block_gather,
    block_scatter,
    choose_launch,
)
from kernels.errors import KernelInputError
from kernels.testing.faults import ReadRaceError, SanitizerError
from kernels.testing.sanitizer import sanitize
from tests.kernels.on_device import bits, watched
from tests.kernels.strategies import SEEDS

DTYPES = st.sampled_from(
    [torch.bfloat16, torch.float32, torch.int8, torch.float8_e4m3fn, torch.float64, torch.bool]
)
# What a block holds: one element, odd sizes, a real block of 16 tokens, two programs' worth.
BLOCKS = st.sampled_from([(1,), (3,), (5, 7), (4, 2, 3, 16), (16, 2, 3, 64), (2, 3000)])


def caches_of(
    device: str, layers: int, blocks: int, block: tuple[int, ...], dtype: torch.dtype, seed: int
) -> list[torch.Tensor]:
    """Random bytes; every bit pattern is a value of some type, NaN included."""
    generator = torch.Generator().manual_seed(seed)
    caches = []
    for _ in range(layers):
        count = blocks * torch.Size(block).numel()
        high = 2 if dtype == torch.bool else 256
        size = count * torch.empty(0, dtype=dtype).element_size()
        random_bytes = torch.randint(0, high, (size,), dtype=torch.uint8, generator=generator)
        caches.append(random_bytes.view(dtype).view(blocks, *block).to(device))
    return caches


@settings(max_examples=60)
@given(layers=st.integers(1, 3), block=BLOCKS, dtype=DTYPES, pairs=st.integers(0, 5), seed=SEEDS)
def test_targets_become_their_sources_and_nothing_else_changes(
    device: str, layers: int, block: tuple[int, ...], dtype: torch.dtype, pairs: int, seed: int
) -> None:
    caches = caches_of(device, layers, 8, block, dtype, seed)
    order = random.Random(seed).sample(range(8), 8)
    targets, free = order[:pairs], order[pairs:]
    sources = [random.Random(seed + pair).choice(free) for pair in range(pairs)]
    wanted = [cache.clone() for cache in caches]
    for cache in wanted:
        for source, target in zip(sources, targets, strict=True):
            cache[target] = cache[source]
    with watched(device, reachable=caches):
        block_copy(caches, sources, targets)
    for cache, expected in zip(caches, wanted, strict=True):
        assert torch.equal(bits(cache), bits(expected))


@settings(max_examples=60)
@given(layers=st.integers(1, 3), block=BLOCKS, dtype=DTYPES, count=st.integers(0, 5), seed=SEEDS)
def test_what_is_gathered_and_scattered_elsewhere_is_a_copy(
    device: str, layers: int, block: tuple[int, ...], dtype: torch.dtype, count: int, seed: int
) -> None:
    """Swapped out of some blocks, and in to others; the host has one contiguous buffer."""
    caches = caches_of(device, layers, 9, block, dtype, seed)
    order = random.Random(seed).sample(range(9), 9)
    away, back = order[:count], order[4 : 4 + count]
    staging = torch.empty((count, layers, *block), dtype=dtype, device=device)
    with watched(device, reachable=[*caches, staging]) as sanitizer:
        gathered = block_gather(caches, away, staging=staging)
        if count and dtype != torch.bool:
            sanitizer.require_written(staging=staging)
    assert gathered is staging
    wanted = [cache.clone() for cache in caches]
    for layer, cache in enumerate(wanted):
        assert torch.equal(bits(staging[:, layer]), bits(cache[away]))
    for cache, before in zip(wanted, caches, strict=True):
        cache[back] = before[away]
    host = staging.cpu()
    with watched(device, reachable=[*caches, staging]):
        block_scatter(host.to(device) if device != "cpu" else staging, caches, back)
    for cache, expected in zip(caches, wanted, strict=True):
        assert torch.equal(bits(cache), bits(expected))


def test_one_tensor_is_one_layer(device: str) -> None:
    (cache,) = caches_of(device, 1, 4, (4, 8), torch.bfloat16, 0)
    with watched(device, reachable=[cache]):
        block_copy(cache, [0], [3])
    assert torch.equal(bits(cache[3]), bits(cache[0]))
    assert block_gather(cache, [2, 2]).shape == (2, 1, 4, 8)


def test_blocks_may_lie_apart(device: str) -> None:
    """Every second block of a larger cache; what lies between is not touched."""
    (whole,) = caches_of(device, 1, 8, (3, 5), torch.float32, 0)
    wanted = whole.clone()
    wanted[6] = wanted[2]
    with watched(device, reachable=[whole[::2]]):
        block_copy(whole[::2], [1], [3])
    assert torch.equal(bits(whole), bits(wanted))


def test_caches_that_start_at_odd_addresses_are_copied_in_narrower_words(device: str) -> None:
    for offset in (1, 2, 4, 8):
        (flat,) = caches_of(device, 1, 1, (16 + 4 * 48,), torch.int8, offset)
        cache = flat[0][offset : offset + 4 * 48].view(4, 48)
        wanted = cache.clone()
        wanted[3] = wanted[0]
        with watched(device, reachable=[cache]):
            block_copy(cache, [0], [3])
        assert torch.equal(bits(cache), bits(wanted))


@pytest.mark.parametrize(
    ("numbers", "bytes_of_a_word", "alignment"),
    [((4096, 65536), 8, 16), ((4096, 24), 8, 8), ((4096, 12), 4, 4), ((6,), 2, 2), ((7,), 1, 1)],
)
def test_words_are_as_wide_as_everything_is_divisible(
    numbers: tuple[int, ...], bytes_of_a_word: int, alignment: int
) -> None:
    launch = choose_launch(*numbers)
    assert (launch.word_bytes, launch.alignment) == (bytes_of_a_word, alignment)


def test_block_offsets_are_64_bit() -> None:
    """Block 4 of blocks 2^30 words apart, found from an address as much before the cache."""
    import triton.language as tl

    cache, out = torch.arange(16), torch.zeros(16, dtype=torch.int64)
    far = 4 * 2**30 * 8
    table = torch.tensor([cache.data_ptr() - far, out.data_ptr() - far, 4, 4])
    with sanitize(reachable=[cache, out]):
        block_copy_kernel[(1,)](table, 1, 2**30, 2**30, 16, WORD=tl.int64, ALIGNMENT=8, BLOCK=16)
    assert torch.equal(out, cache)


def test_unordered_copies_through_a_block_would_be_a_race() -> None:
    """Why a target that is a source is refused: 0 to 1 and 1 to 2 at once."""
    import triton.language as tl

    cache = torch.arange(12).view(3, 4)
    table = torch.tensor([cache.data_ptr(), cache.data_ptr(), 0, 1, 1, 2])
    with pytest.raises(ReadRaceError), sanitize(reachable=[cache]):
        block_copy_kernel[(2,)](table, 2, 4, 4, 4, WORD=tl.int64, ALIGNMENT=8, BLOCK=4)


def test_memory_that_is_not_reachable_is_out_of_bounds() -> None:
    caches = caches_of("cpu", 2, 4, (8,), torch.float32, 0)
    with pytest.raises(SanitizerError, match="out of bounds"), sanitize(reachable=caches[:1]):
        block_copy(caches, [0], [1])


def test_wrong_blocks_are_refused() -> None:
    cache = torch.zeros(4, 2, 8)

    def refused(message: str, sources: object, targets: object) -> None:
        with pytest.raises(KernelInputError, match=message):
            block_copy(cache, sources, targets)  # type: ignore[arg-type]

    refused("names block 4, the cache has 4", [4], [0])
    refused("target_blocks names block -1", [1], [-1])
    refused("2 source_blocks and 1 target_blocks", [1, 2], [3])
    refused("target_blocks names block 3 twice", [1, 2], [3, 3])
    refused("block 1 is a source and a target.*call twice", [0, 1], [1, 2])
    refused("block 1 is a source and a target", [1], [1])
    refused("source_blocks is a tensor, wanted ints on the host", torch.tensor([1]), [0])
    with pytest.raises(KernelInputError, match="blocks names block 1 twice"):
        block_scatter(torch.zeros(2, 1, 2, 8), cache, [1, 1])


def test_wrong_tensors_are_refused_with_what_was_wanted() -> None:
    cache = torch.zeros(4, 2, 8)
    with pytest.raises(KernelInputError, match="0 caches, wanted 1"):
        block_copy([], [], [])
    with pytest.raises(KernelInputError, match=r"caches\[1\] is torch.float16"):
        block_copy([cache, cache.half()], [], [])
    with pytest.raises(KernelInputError, match="each block contiguous: give the storage"):
        block_copy(torch.zeros(4, 16, 2, 8)[:, :, 0], [0], [1])
    with pytest.raises(KernelInputError, match=r"wanted \[num_blocks"):
        block_copy(torch.zeros(4), [0], [1])
    with pytest.raises(KernelInputError, match=r"wanted torch\.float32 \(2, 1, 2, 8\), contiguous"):
        block_gather(cache, [0, 1], staging=torch.zeros(1, 1, 2, 8))
    with pytest.raises(KernelInputError, match=r"staging is torch\.float16"):
        block_scatter(torch.zeros(1, 1, 2, 8).half(), cache, [0])
    with pytest.raises(KernelInputError, match="one device"):
        block_scatter(torch.zeros(1, 1, 2, 8, device="meta"), cache, [0])


@pytest.mark.slow
@settings(max_examples=300)
@given(
    layers=st.integers(1, 4),
    block=st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple),
    dtype=DTYPES,
    pairs=st.integers(1, 7),
    seed=SEEDS,
)
def test_blocks_are_copied_widely(
    device: str, layers: int, block: tuple[int, ...], dtype: torch.dtype, pairs: int, seed: int
) -> None:
    caches = caches_of(device, layers, 16, block, dtype, seed)
    order = random.Random(seed).sample(range(16), 16)
    wanted = [cache.clone() for cache in caches]
    for cache in wanted:
        cache[order[:pairs]] = cache[order[8 : 8 + pairs]]
    with watched(device, reachable=caches):
        block_copy(caches, order[8 : 8 + pairs], order[:pairs])
    for cache, expected in zip(caches, wanted, strict=True):
        assert torch.equal(bits(cache), bits(expected))
