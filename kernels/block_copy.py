"""Moves whole blocks of the paged KV cache: within it, and between it and a staging buffer.

What happens when two sequences share a block and one of them writes? Copy-on-write (Kwon et al.
2023, section 4.4): the block is copied in every layer, and only then written. And what does a
swap to host memory need? One long transfer instead of thousands of short ones: blocks are
gathered into a buffer first, and scattered from one on their way back (section 4.5).

Bytes are moved whatever they mean, in words of up to 128 bits: every byte is read and written
once. All layers go in one launch: the kernel finds their tensors by their addresses, which
travel with the block ids in one small table.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.checks import MAX_GRID_Y, require_runnable
from kernels.errors import KernelInputError
from kernels.testing.cases import AotCase

MAX_LAYERS = MAX_GRID_Y  # layers lie along the grid's second axis


@triton.jit(do_not_specialize=["num_pairs"])
def block_copy_kernel(
    table,
    num_pairs,
    source_stride,
    target_stride,
    words,
    WORD: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program copies BLOCK words of one block in one layer.

    table: int64, addresses of the source in each layer, then of the target, block ids of the
    source of each pair, then of the target. Strides and sizes count words.
    """
    layer, num_layers = tl.program_id(1), tl.num_programs(1)
    chunks = (words + BLOCK - 1) // BLOCK
    pair, chunk = tl.program_id(0) // chunks, tl.program_id(0) % chunks
    ids = table + 2 * num_layers + pair
    # An address from memory says nothing of its alignment, and without it nothing is vectorised.
    source = tl.load(table + layer).to(tl.pointer_type(WORD))
    target = tl.load(table + num_layers + layer).to(tl.pointer_type(WORD))
    source = tl.multiple_of(source, ALIGNMENT) + tl.load(ids) * source_stride
    target = tl.multiple_of(target, ALIGNMENT) + tl.load(ids + num_pairs) * target_stride
    word = chunk * BLOCK + tl.arange(0, BLOCK)
    mask = word < words
    tl.store(target + word, tl.load(source + word, mask=mask), mask=mask)


@dataclass(frozen=True)
class Launch:
    """The type of a word, what every address is a multiple of, and words of one program."""

    word: tl.dtype
    word_bytes: int
    alignment: int
    block: int
    num_warps: int


def choose_launch(*bytes_of: int) -> Launch:
    """The widest word that divides all addresses, strides and sizes.

    8 KiB a program, four vectors of 128 bits a thread: two words of 64 bits go in one instruction
    where all is divisible by 16. Of narrow words 16 a thread: more only cost registers.
    """
    alignment = math.gcd(16, *bytes_of)
    word_bytes = min(8, alignment)
    word = {8: tl.int64, 4: tl.int32, 2: tl.int16, 1: tl.int8}[word_bytes]
    return Launch(word, word_bytes, alignment, min(2048, 8192 // word_bytes), num_warps=4)


def block_copy(
    caches: torch.Tensor | Sequence[torch.Tensor],
    source_blocks: Sequence[int],
    target_blocks: Sequence[int],
) -> None:
    """Copies block source_blocks[i] to block target_blocks[i] in every cache.

    caches: one tensor [num_blocks, ...] of any dtype, or one for each layer, alike in shape,
    dtype and strides, each block contiguous. Give the storage that holds keys and values side by
    side, not its halves. source_blocks, target_blocks: ints on the host, as the scheduler has
    them. A block may be the source of many, but a target neither of two nor a source: the copies
    are made in no order.
    Raises KernelInputError for tensors or blocks that do not fit.
    """
    name = "block_copy"
    layers = _require_layers(name, caches)
    sources = _require_blocks(name, "source_blocks", source_blocks, layers[0])
    targets = _require_blocks(name, "target_blocks", target_blocks, layers[0])
    if len(sources) != len(targets):
        raise KernelInputError(
            f"{name}: {len(sources)} source_blocks and {len(targets)} target_blocks"
        )
    _require_distinct(name, "target_blocks", targets)
    both = sorted(set(sources) & set(targets))
    if both:
        raise KernelInputError(
            f"{name}: block {both[0]} is a source and a target, and copies are made in no order: "
            "call twice"
        )
    stride = layers[0].stride(0) * layers[0].element_size()
    addresses = [layer.data_ptr() for layer in layers]
    _copy(name, _named(layers), addresses, addresses, sources, targets, stride, stride)


def block_gather(
    caches: torch.Tensor | Sequence[torch.Tensor],
    blocks: Sequence[int],
    *,
    staging: torch.Tensor | None = None,
) -> torch.Tensor:
    """Copies blocks of every cache into one contiguous buffer, in the order of `blocks`.

    caches, blocks: as in `block_copy`; a block may be asked for twice. staging: contiguous
    [len(blocks), num_layers, *block], of the caches' dtype; a new one unless given.
    Returns it; `host.copy_(staging, non_blocking=True)` is then one transfer to pinned memory.
    Raises KernelInputError for tensors or blocks that do not fit.
    """
    name = "block_gather"
    layers = _require_layers(name, caches)
    sources = _require_blocks(name, "blocks", blocks, layers[0])
    first = layers[0]
    if staging is None:
        shape = (len(sources), len(layers), *first.shape[1:])
        staging = torch.empty(shape, dtype=first.dtype, device=first.device)
    size, addresses = _require_staging(name, staging, len(sources), layers)
    stride = first.stride(0) * first.element_size()
    from_layers, order = [layer.data_ptr() for layer in layers], list(range(len(sources)))
    tensors = {**_named(layers), "staging": staging}
    _copy(name, tensors, from_layers, addresses, sources, order, stride, size * len(layers))
    return staging


def block_scatter(
    staging: torch.Tensor,
    caches: torch.Tensor | Sequence[torch.Tensor],
    blocks: Sequence[int],
) -> None:
    """Undoes `block_gather`: block blocks[i] of every cache becomes staging[i].

    blocks: as in `block_copy`, no two the same.
    Raises KernelInputError for tensors or blocks that do not fit.
    """
    name = "block_scatter"
    layers = _require_layers(name, caches)
    targets = _require_blocks(name, "blocks", blocks, layers[0])
    _require_distinct(name, "blocks", targets)
    first = layers[0]
    size, addresses = _require_staging(name, staging, len(targets), layers)
    stride = first.stride(0) * first.element_size()
    to_layers, order = [layer.data_ptr() for layer in layers], list(range(len(targets)))
    tensors = {**_named(layers), "staging": staging}
    _copy(name, tensors, addresses, to_layers, order, targets, size * len(layers), stride)


def _copy(
    kernel: str,
    tensors: dict[str, torch.Tensor],
    source_addresses: list[int],
    target_addresses: list[int],
    sources: list[int],
    targets: list[int],
    source_stride: int,
    target_stride: int,
) -> None:
    """One launch; strides in bytes between blocks. The host waits for nothing."""
    like = next(iter(tensors.values()))
    require_runnable(kernel, **tensors)
    size = _block_bytes(like)
    if not sources or size == 0:
        return
    addresses = (*source_addresses, *target_addresses)
    launch = choose_launch(*addresses, source_stride, target_stride, size)
    table = torch.tensor([*addresses, *sources, *targets], dtype=torch.int64)
    words = size // launch.word_bytes
    block_copy_kernel[(len(sources) * triton.cdiv(words, launch.block), len(source_addresses))](
        table.to(like.device, non_blocking=True),
        len(sources),
        source_stride // launch.word_bytes,
        target_stride // launch.word_bytes,
        words,
        WORD=launch.word,
        ALIGNMENT=launch.alignment,
        BLOCK=launch.block,
        num_warps=launch.num_warps,
    )


def _named(layers: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"caches[{index}]": layer for index, layer in enumerate(layers)}


def _block_bytes(cache: torch.Tensor) -> int:
    return math.prod(cache.shape[1:]) * cache.element_size()


def _require_layers(
    kernel: str, caches: torch.Tensor | Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    layers = [caches] if isinstance(caches, torch.Tensor) else list(caches)
    if not 1 <= len(layers) <= MAX_LAYERS:
        raise KernelInputError(f"{kernel}: {len(layers)} caches, wanted 1 to {MAX_LAYERS}")
    first = layers[0]
    for index, layer in enumerate(layers):
        if (layer.shape, layer.dtype, layer.stride()) != (
            first.shape,
            first.dtype,
            first.stride(),
        ):
            raise KernelInputError(
                f"{kernel}: caches must be alike, caches[{index}] is {layer.dtype} of shape "
                f"{tuple(layer.shape)} and strides {layer.stride()}, caches[0] is {first.dtype} "
                f"{tuple(first.shape)} {first.stride()}"
            )
    if first.dim() < 2 or (len(first) and not first[0].is_contiguous()):
        raise KernelInputError(
            f"{kernel}: caches have shape {tuple(first.shape)} and strides {first.stride()}, "
            "wanted [num_blocks, ...] with each block contiguous: give the storage of keys and "
            "values, not a view of one of them"
        )
    return layers


def _require_blocks(
    kernel: str, name: str, blocks: Sequence[int] | torch.Tensor, cache: torch.Tensor
) -> list[int]:
    if isinstance(blocks, torch.Tensor):
        raise KernelInputError(
            f"{kernel}: {name} is a tensor, wanted ints on the host, which can be checked without "
            "waiting for the GPU"
        )
    for block in blocks:
        if not 0 <= block < len(cache):
            raise KernelInputError(
                f"{kernel}: {name} names block {block}, the cache has {len(cache)}"
            )
    return list(blocks)


def _require_distinct(kernel: str, name: str, blocks: list[int]) -> None:
    if len(set(blocks)) < len(blocks):
        twice = next(block for block in blocks if blocks.count(block) > 1)
        raise KernelInputError(f"{kernel}: {name} names block {twice} twice")


def _require_staging(
    kernel: str, staging: torch.Tensor, count: int, layers: list[torch.Tensor]
) -> tuple[int, list[int]]:
    """Bytes of a block, and where each layer's first block lies in the buffer."""
    first = layers[0]
    wanted = (count, len(layers), *first.shape[1:])
    if staging.dtype != first.dtype or staging.shape != wanted or not staging.is_contiguous():
        raise KernelInputError(
            f"{kernel}: staging is {staging.dtype} of shape {tuple(staging.shape)} and strides "
            f"{staging.stride()}, wanted {first.dtype} {wanted}, contiguous"
        )
    size = _block_bytes(first)
    return size, [staging.data_ptr() + layer * size for layer in range(len(layers))]


def _case(alignment: int) -> AotCase:
    launch = choose_launch(alignment)
    return AotCase(
        kernel="block_copy",
        config=f"{launch.word} aligned={launch.alignment} block={launch.block}",
        function=block_copy_kernel,
        arguments={
            "table": "*i64",
            **dict.fromkeys(("num_pairs", "source_stride", "target_stride", "words"), "i32"),
        },
        constants={"WORD": launch.word, "ALIGNMENT": launch.alignment, "BLOCK": launch.block},
        num_warps=launch.num_warps,
        any_alignment=frozenset({"num_pairs"}),
    )


# Every real cache is aligned to 16 bytes; then what odd sizes come to.
AOT_CASES = (_case(16), _case(4), _case(1))
