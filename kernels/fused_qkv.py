"""From the fused projection straight into attention's inputs: split, rotary, cache write.

What does fusing small kernels save? One after the other, splitting is free (views), rotary reads
and writes queries and keys, and the cache write reads keys and values again and writes them: in
one launch the rotated keys never go to memory. Of a token with h query and k key heads of d
elements, (h + 2k)d elements are read and as many written, against (h + 3k)d each: a seventh less
for Llama-3 8B, and one launch instead of two, which is what counts at decode.

Every result equals that of `rotary` and then `kv_cache_write` bit for bit: the device functions
are the same, and a rotated key is rounded to its dtype before it becomes codes.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
import triton
import triton.language as tl

from kernels.checks import FLOATS, require_adjacent, require_dtype, require_runnable
from kernels.devices import device_of, warp_size
from kernels.errors import KernelInputError
from kernels.kv_cache_write import kv_cache_write_reference
from kernels.paged_cache import (
    aot_target,
    place_of,
    require_target,
    write_rows,
    writers,
)
from kernels.rotary import choose_launch as rotary_launch
from kernels.rotary import rotary_reference
from kernels.rotary_table import require_rotary
from kernels.rotated_keys import write_rotated_keys
from kernels.rotation import load_turn, rotate_heads
from kernels.row_quantization import Coding
from kernels.testing.cases import AotCase, by_launch


@triton.jit
def fused_qkv_kernel(
    qkv,
    query_out,
    positions,
    table,
    key_cache,
    value_cache,
    key_scales,
    value_scales,
    slot_mapping,
    qkv_stride,
    query_out_stride,
    cache_block_stride,
    cache_slot_stride,
    cache_head_stride,
    scale_block_stride,
    scale_slot_stride,
    scale_head_stride,
    QUERY_HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    CODING: tl.constexpr,
):
    """One program takes HEADS heads of one token: of queries, of keys or of values."""
    QUERY_GROUPS: tl.constexpr = (QUERY_HEADS + HEADS - 1) // HEADS
    KEY_GROUPS: tl.constexpr = (KEY_HEADS + HEADS - 1) // HEADS
    GROUPS: tl.constexpr = QUERY_GROUPS + 2 * KEY_GROUPS
    token = (tl.program_id(0) // GROUPS).to(tl.int64)
    group = tl.program_id(0) % GROUPS
    row = qkv + token * qkv_stride
    if group < QUERY_GROUPS:
        cos, sin = load_turn(table, tl.load(positions + token).to(tl.int64), ROTARY_DIM, HALF)
        rotate_heads(
            row,
            query_out + token * query_out_stride,
            HEAD_DIM,
            HEAD_DIM,
            group * HEADS,
            QUERY_HEADS,
            cos,
            sin,
            HEADS,
            HEAD_DIM,
            ROTARY_DIM,
            HALF,
            REST,
            INTERLEAVED,
        )
    else:
        slot = tl.load(slot_mapping + token).to(tl.int64)
        is_key = group < QUERY_GROUPS + KEY_GROUPS
        first_head = (group - QUERY_GROUPS - tl.where(is_key, 0, KEY_GROUPS)) * HEADS
        head = first_head + tl.arange(0, HEADS)
        kept = (head < KEY_HEADS) & (slot >= 0)
        key_rows = row + (QUERY_HEADS + head) * HEAD_DIM
        place = place_of(
            slot, head, cache_block_stride, cache_slot_stride, cache_head_stride, BLOCK_SIZE
        )
        if CODING != "as it is":
            scale_place = place_of(
                slot, head, scale_block_stride, scale_slot_stride, scale_head_stride, BLOCK_SIZE
            )
            key_scale_places = key_scales + scale_place
            value_scale_places = value_scales + scale_place
        else:
            key_scale_places = None
            value_scale_places = None
        if is_key:
            cos, sin = load_turn(table, tl.load(positions + token).to(tl.int64), ROTARY_DIM, HALF)
            write_rotated_keys(
                key_rows,
                key_cache + place,
                key_scale_places,
                kept,
                cos,
                sin,
                HEADS,
                HEAD_DIM,
                ROTARY_DIM,
                HALF,
                REST,
                INTERLEAVED,
                CODING,
            )
        else:
            column = tl.arange(0, COLUMNS)[None, :]
            mask = kept[:, None] & (column < HEAD_DIM)
            value_rows = key_rows + KEY_HEADS * HEAD_DIM
            values = tl.load(value_rows[:, None] + column, mask=mask, other=0.0)
            write_rows(
                values, value_cache + place, value_scale_places, kept, HEAD_DIM, COLUMNS, CODING
            )


@dataclass(frozen=True)
class Launch:
    """Heads of one program, of each the padded pairs, the rest that does not turn, and all."""

    heads: int
    half: int
    rest: int
    columns: int
    num_warps: int

    def programs_of_a_token(self, query_heads: int, key_heads: int) -> int:
        query_groups: int = triton.cdiv(query_heads, self.heads)
        key_groups: int = triton.cdiv(key_heads, self.heads)
        return query_groups + 2 * key_groups


def choose_launch(key_heads: int, head_dim: int, rotary_dim: int, arch: str) -> Launch:
    """The tiles of `rotary`, and at most 16 elements of values a thread.

    With more (a rotary_dim of 32 of 80, in one warp) it takes 128 registers, a quarter of the
    warps, and no byte comes sooner.
    """
    turn = rotary_launch(key_heads, head_dim, rotary_dim, arch)
    columns = triton.next_power_of_2(head_dim)
    num_warps = max(turn.num_warps, turn.heads * columns // (16 * warp_size(arch)))
    return Launch(turn.heads, turn.half, turn.rest, columns, min(4, num_warps))


def fused_qkv(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    table: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    interleaved: bool = False,
    key_scales: torch.Tensor | None = None,
    value_scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """Turned queries; turned keys, and values, go to the cache.

    qkv: [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim] fp16, bf16 or fp32, a token's
    elements adjacent, tokens at any distance; num_kv_heads and head_dim are the cache's.
    positions, table, interleaved: as in `rotary`. Caches, scales, slot_mapping: as in
    `kv_cache_write`; queries of a negative slot are turned like any other.
    Returns queries [num_tokens, num_heads, head_dim], a new contiguous tensor.
    Raises KernelInputError for tensors that do not fit.
    """
    name = "fused_qkv"
    require_dtype(name, "qkv", qkv, FLOATS)
    if qkv.dim() != 2:
        raise KernelInputError(
            f"{name}: qkv has shape {tuple(qkv.shape)}, wanted [num_tokens, (num_heads + 2 * "
            "num_kv_heads) * head_dim]"
        )
    require_adjacent(name, "qkv", qkv)
    tokens, width = qkv.shape
    target = require_target(
        name, tokens, qkv.dtype, key_cache, value_cache, slot_mapping, key_scales, value_scales
    )
    key_heads, head_dim = target.heads, target.head_dim
    query_heads, left = divmod(width - 2 * key_heads * head_dim, head_dim)
    if left or query_heads < 0:
        raise KernelInputError(
            f"{name}: qkv has rows of {width}, wanted a multiple of head_dim {head_dim} that "
            f"holds keys and values of {key_heads} heads, as the cache has them"
        )
    rotary_dim = require_rotary(name, tokens, head_dim, positions, table)
    require_runnable(name, qkv=qkv, positions=positions, table=table, **target.tensors)
    queries = torch.empty((tokens, query_heads, head_dim), dtype=qkv.dtype, device=qkv.device)
    device = device_of(qkv)
    launch = choose_launch(key_heads, head_dim, rotary_dim, device.arch)
    programs = tokens * launch.programs_of_a_token(query_heads, key_heads)
    if programs == 0:
        return queries
    fused_qkv_kernel[(programs,)](
        qkv,
        queries,
        positions,
        table,
        **target.arguments,
        qkv_stride=qkv.stride(0),
        query_out_stride=queries.stride(0),
        QUERY_HEADS=query_heads,
        KEY_HEADS=key_heads,
        HEADS=launch.heads,
        HEAD_DIM=head_dim,
        ROTARY_DIM=rotary_dim,
        HALF=launch.half,
        REST=launch.rest,
        COLUMNS=launch.columns,
        BLOCK_SIZE=target.block_size,
        INTERLEAVED=interleaved,
        CODING=target.coding(device),
        num_warps=launch.num_warps,
    )
    return queries


def fused_qkv_reference(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    table: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    interleaved: bool = False,
    key_scales: torch.Tensor | None = None,
    value_scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """One step after the other in the dtype of qkv; float64 caches take float64."""
    key_heads, head_dim = key_cache.shape[2:]
    heads = qkv.view(qkv.shape[0], -1, head_dim)
    queries, keys = heads[:, : -2 * key_heads], heads[:, -2 * key_heads : -key_heads]
    keys = rotary_reference(keys, positions, table, interleaved=interleaved)
    kv_cache_write_reference(
        keys, heads[:, -key_heads:], key_cache, value_cache, slot_mapping, key_scales, value_scales
    )
    return rotary_reference(queries, positions, table, interleaved=interleaved)


def _cases(
    dtype: str,
    coding: Coding,
    heads: tuple[int, int],
    head_dim: int,
    rotary_dim: int,
    *,
    interleaved: bool = False,
) -> Iterator[AotCase]:
    query_heads, key_heads = heads
    target, constants = aot_target(dtype, coding)
    choose = partial(choose_launch, key_heads, head_dim, rotary_dim)
    for launch, architectures in by_launch(choose, writers(coding)).items():
        yield AotCase(
            kernel="fused_qkv",
            config=f"{dtype} {coding} {'interleaved ' if interleaved else ''}"
            f"heads={query_heads}+{key_heads} dim={rotary_dim}/{head_dim} "
            f"block={launch.heads}x{2 * launch.half} warps={launch.num_warps}",
            function=fused_qkv_kernel,
            arguments={
                **dict.fromkeys(("qkv", "query_out"), f"*{dtype}"),
                "positions": "*i64",
                "table": "*fp32",
                **target,
                **dict.fromkeys(("qkv_stride", "query_out_stride"), "i32"),
            },
            constants={
                **constants,
                "QUERY_HEADS": query_heads,
                "KEY_HEADS": key_heads,
                "HEADS": launch.heads,
                "HEAD_DIM": head_dim,
                "ROTARY_DIM": rotary_dim,
                "HALF": launch.half,
                "REST": launch.rest,
                "COLUMNS": launch.columns,
                "BLOCK_SIZE": 16,
                "INTERLEAVED": interleaved,
                "CODING": coding,
            },
            num_warps=launch.num_warps,
            architectures=architectures,
        )


# The default model, Llama-3 8B, Phi-2 (32 of 80 elements turn), GPT-J (64 of 256, interleaved).
AOT_CASES = (
    *_cases("bf16", "as it is", (9, 3), 64, 64),
    *_cases("bf16", "as it is", (32, 8), 128, 128),
    *_cases("fp32", "as it is", (32, 8), 128, 128),
    *_cases("bf16", "int8", (32, 8), 128, 128),
    *_cases("bf16", "e4m3", (32, 8), 128, 128),
    *_cases("bf16", "native e4m3", (32, 8), 128, 128),
    *_cases("fp16", "int8", (32, 32), 80, 32),
    *_cases("fp16", "as it is", (16, 16), 256, 64, interleaved=True),
)
