"""Scatters the keys and values of a step's new tokens into the paged KV cache.

Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with
PagedAttention", section 4.3: the scheduler's `slot_mapping` says where each token goes, slot =
block * block_size + offset. Answers "what does a step do between the projections and attention,
and what does an 8-bit KV cache cost there?". The work is moving bytes: of a token 2 * kv_heads *
head_dim elements are read and as many written; with codes of one byte, and a scale of four bytes
a row, about half as many bytes are written, and read by every later step.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
import triton
import triton.language as tl

from kernels.checks import (
    FLOATS,
    require_adjacent,
    require_dimensions,
    require_dtype,
    require_runnable,
    require_shape,
)
from kernels.devices import device_of, warp_size
from kernels.paged_cache import (
    aot_target,
    place_of,
    require_target,
    write_rows,
    writers,
)
from kernels.row_quantization import Coding, quantize_rows_reference
from kernels.testing.cases import AotCase, by_launch


@triton.jit(do_not_specialize=["num_rows"])
def kv_cache_write_kernel(
    key,
    value,
    key_cache,
    value_cache,
    key_scales,
    value_scales,
    slot_mapping,
    num_rows,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    cache_block_stride,
    cache_slot_stride,
    cache_head_stride,
    scale_block_stride,
    scale_slot_stride,
    scale_head_stride,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CODING: tl.constexpr,
):
    """One program writes ROWS rows of keys and as many of values; a row is a token's head."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < num_rows
    token, head = (row // HEADS).to(tl.int64), (row % HEADS).to(tl.int64)
    slot = tl.load(slot_mapping + token, mask=there, other=-1).to(tl.int64)
    kept = there & (slot >= 0)
    column = tl.arange(0, COLUMNS)[None, :]
    mask = kept[:, None] & (column < HEAD_DIM)
    key_rows = key + token * key_token_stride + head * key_head_stride
    value_rows = value + token * value_token_stride + head * value_head_stride
    keys = tl.load(key_rows[:, None] + column, mask=mask, other=0.0)
    values = tl.load(value_rows[:, None] + column, mask=mask, other=0.0)
    place = place_of(
        slot, head, cache_block_stride, cache_slot_stride, cache_head_stride, BLOCK_SIZE
    )
    key_scale_places = key_scales
    value_scale_places = value_scales
    if CODING != "as it is":
        scale_place = place_of(
            slot, head, scale_block_stride, scale_slot_stride, scale_head_stride, BLOCK_SIZE
        )
        key_scale_places = key_scales + scale_place
        value_scale_places = value_scales + scale_place
    write_rows(keys, key_cache + place, key_scale_places, kept, HEAD_DIM, COLUMNS, CODING)
    write_rows(values, value_cache + place, value_scale_places, kept, HEAD_DIM, COLUMNS, CODING)


@dataclass(frozen=True)
class Launch:
    """Rows and padded columns of one program, and its warps."""

    rows: int
    columns: int
    num_warps: int


def choose_launch(head_dim: int, element_bytes: int, arch: str) -> Launch:
    """32 bytes of keys and 32 of values a thread: two 128-bit loads of each are under way.

    More of them need registers, and with them warps that could be resident (fp32 with twice as
    many: 0.62 of the warps); fewer leave codes to be stored with 64 bits.
    """
    columns = triton.next_power_of_2(head_dim)
    rows = max(1, 4096 // (element_bytes * columns))
    return Launch(rows, columns, num_warps=128 // warp_size(arch))


def kv_cache_write(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    key_scales: torch.Tensor | None = None,
    value_scales: torch.Tensor | None = None,
) -> None:
    """Writes key[i] and value[i] into the caches' slot slot_mapping[i].

    key, value: [num_tokens, num_kv_heads, head_dim] fp16, bf16 or fp32, of one dtype.
    key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_dim] of that dtype, int8
    or float8_e4m3fn, both with the same strides: two tensors, or storage[:, :, 0] and
    storage[:, :, 1]. The last dimension of all four is adjacent, other strides are free.
    slot_mapping: int32 or int64 [num_tokens], adjacent: block * block_size + offset. A negative
    slot is padding and not written. That slots differ and lie within the cache is the caller's
    word: to look would mean to wait for the GPU.
    key_scales, value_scales: fp32 [num_blocks, block_size, num_kv_heads] of any strides, for int8
    and e4m3 only: code * scale is the value (`row_quantization` says how both are chosen, and
    what becomes of zeros, tiny numbers, infinities and NaN).
    Raises KernelInputError for tensors that do not fit.
    """
    name = "kv_cache_write"
    require_dtype(name, "key", key, FLOATS)
    require_dtype(name, "value", value, (key.dtype,))
    require_dimensions(name, "key", key, "[num_tokens, num_kv_heads, head_dim]")
    tokens = key.shape[0]
    target = require_target(
        name, tokens, key.dtype, key_cache, value_cache, slot_mapping, key_scales, value_scales
    )
    for what, tensor in (("key", key), ("value", value)):
        require_shape(name, what, tensor, (tokens, target.heads, target.head_dim))
        require_adjacent(name, what, tensor)
    require_runnable(name, key=key, value=value, **target.tensors)
    num_rows = tokens * target.heads
    if num_rows == 0:
        return
    device = device_of(key)
    launch = choose_launch(target.head_dim, key.element_size(), device.arch)
    kv_cache_write_kernel[(triton.cdiv(num_rows, launch.rows),)](
        key,
        value,
        num_rows=num_rows,
        key_token_stride=key.stride(0),
        key_head_stride=key.stride(1),
        value_token_stride=value.stride(0),
        value_head_stride=value.stride(1),
        **target.arguments,
        HEADS=target.heads,
        HEAD_DIM=target.head_dim,
        BLOCK_SIZE=target.block_size,
        ROWS=launch.rows,
        COLUMNS=launch.columns,
        CODING=target.coding(device),
        num_warps=launch.num_warps,
    )


def kv_cache_write_reference(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    key_scales: torch.Tensor | None = None,
    value_scales: torch.Tensor | None = None,
) -> None:
    """The same, one token after the other; the caches may be float64 too."""
    block_size = key_cache.shape[1]
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot < 0:
            continue
        place = slot // block_size, slot % block_size
        for rows, cache, scales in (
            (key[token], key_cache, key_scales),
            (value[token], value_cache, value_scales),
        ):
            if scales is None:
                cache[place] = rows
            else:
                cache[place], scales[place] = quantize_rows_reference(rows, cache.dtype)


def _cases(dtype: str, coding: Coding, heads: int, head_dim: int) -> Iterator[AotCase]:
    target, constants = aot_target(dtype, coding)
    strides = [f"{what}_{of}_stride" for what in ("key", "value") for of in ("token", "head")]
    element_bytes = 4 if dtype == "fp32" else 2
    launches = by_launch(partial(choose_launch, head_dim, element_bytes), writers(coding))
    for launch, architectures in launches.items():
        yield AotCase(
            kernel="kv_cache_write",
            config=f"{dtype} {coding} heads={heads} dim={head_dim} "
            f"block={launch.rows}x{launch.columns} warps={launch.num_warps}",
            function=kv_cache_write_kernel,
            arguments={
                **dict.fromkeys(("key", "value"), f"*{dtype}"),
                **target,
                **dict.fromkeys(("num_rows", *strides), "i32"),
            },
            constants={
                **constants,
                "HEADS": heads,
                "HEAD_DIM": head_dim,
                "BLOCK_SIZE": 16,
                "ROWS": launch.rows,
                "COLUMNS": launch.columns,
                "CODING": coding,
            },
            num_warps=launch.num_warps,
            any_alignment=frozenset({"num_rows"}),
            architectures=architectures,
        )


# The default model (3 heads of 64), Phi-2 (80), Llama-3 8B (128); codes by instruction and by hand.
AOT_CASES = (
    *_cases("bf16", "as it is", 3, 64),
    *_cases("fp16", "as it is", 8, 128),
    *_cases("fp32", "as it is", 8, 128),
    *_cases("bf16", "as it is", 32, 80),
    *_cases("bf16", "int8", 8, 128),
    *_cases("fp32", "int8", 8, 64),
    *_cases("bf16", "e4m3", 8, 128),
    *_cases("bf16", "native e4m3", 8, 128),
    *_cases("fp16", "native e4m3", 32, 80),
)
