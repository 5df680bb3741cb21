"""Rotary position embedding of queries and keys, in one launch.

Su et al. 2021, "RoFormer", eq. 34: the pair i of a head turns by position * inv_freq[i], so that
a score depends on the distance of query and key only. Answers "how does RoPE encode position, and
what does it cost?": 3 FLOPs an element, so it is bound by bytes: queries and keys are read and
written once, and 4 * rotary_dim bytes of cos and sin a token (2.5 % more for Llama-3 8B in bf16).
Why angles come from a table is told in `rotary_table`.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
import triton
import triton.language as tl

from kernels.checks import FLOATS, require_adjacent, require_dtype, require_runnable, require_shape
from kernels.devices import device_of, warp_size
from kernels.errors import KernelInputError
from kernels.rotary_table import require_rotary
from kernels.rotation import load_turn, rotate_heads
from kernels.testing.cases import AotCase, by_launch


@triton.jit
def rotary_kernel(
    query,
    key,
    query_out,
    key_out,
    positions,
    table,
    query_token_stride,
    query_head_stride,
    key_token_stride,
    key_head_stride,
    query_out_token_stride,
    query_out_head_stride,
    key_out_token_stride,
    key_out_head_stride,
    QUERY_HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """One program turns HEADS heads of one token, of queries or of keys."""
    QUERY_GROUPS: tl.constexpr = (QUERY_HEADS + HEADS - 1) // HEADS
    GROUPS: tl.constexpr = QUERY_GROUPS + (KEY_HEADS + HEADS - 1) // HEADS
    token = (tl.program_id(0) // GROUPS).to(tl.int64)
    group = tl.program_id(0) % GROUPS
    cos, sin = load_turn(table, tl.load(positions + token).to(tl.int64), ROTARY_DIM, HALF)
    if group < QUERY_GROUPS:
        rotate_heads(
            query + token * query_token_stride,
            query_out + token * query_out_token_stride,
            query_head_stride,
            query_out_head_stride,
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
        rotate_heads(
            key + token * key_token_stride,
            key_out + token * key_out_token_stride,
            key_head_stride,
            key_out_head_stride,
            (group - QUERY_GROUPS) * HEADS,
            KEY_HEADS,
            cos,
            sin,
            HEADS,
            HEAD_DIM,
            ROTARY_DIM,
            HALF,
            REST,
            INTERLEAVED,
        )


@dataclass(frozen=True)
class Launch:
    """Heads of one program, padded pairs and elements that do not turn, and its warps."""

    heads: int
    half: int
    rest: int
    num_warps: int

    def programs_of_a_token(self, query_heads: int, key_heads: int) -> int:
        groups: int = triton.cdiv(query_heads, self.heads) + triton.cdiv(key_heads, self.heads)
        return groups


def choose_launch(key_heads: int, head_dim: int, rotary_dim: int, arch: str) -> Launch:
    """8 pairs a thread, two vectors of 128 bits in 16-bit types.

    As many heads as keys have, so that no lane idles there (queries have a multiple of them), but
    1024 to 2048 elements: smaller programs fill the slots of a processor before its registers.
    """
    half = triton.next_power_of_2(rotary_dim // 2)
    rest = triton.next_power_of_2(head_dim - rotary_dim) if head_dim > rotary_dim else 0
    most = max(1, 2048 // triton.next_power_of_2(2 * half + rest))
    heads = min(most, max(most // 2, triton.next_power_of_2(key_heads)))
    return Launch(heads, half, rest, max(1, min(4, heads * half // (8 * warp_size(arch)))))


def rotary(
    query: torch.Tensor,
    key: torch.Tensor,
    positions: torch.Tensor,
    table: torch.Tensor,
    *,
    interleaved: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys turned by their positions, in new contiguous tensors.

    query: [num_tokens, num_heads, head_dim] and key: [num_tokens, num_kv_heads, head_dim], fp16,
    bf16 or fp32, the last dimension adjacent, other strides free. positions: int32 or int64
    [num_tokens], each one a row of `table`; to look would mean to wait for the GPU. table: fp32
    [max_positions, rotary_dim] of `rotary_table`; elements from rotary_dim on stay as they are.
    interleaved: pairs are (2i, 2i + 1), not (i, i + rotary_dim / 2).
    Raises KernelInputError for tensors that do not fit.
    """
    query_out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    key_out = torch.empty(key.shape, dtype=key.dtype, device=key.device)
    _launch("rotary", query, key, query_out, key_out, positions, table, interleaved)
    return query_out, key_out


def rotary_(
    query: torch.Tensor,
    key: torch.Tensor,
    positions: torch.Tensor,
    table: torch.Tensor,
    *,
    interleaved: bool = False,
) -> None:
    """`rotary` in place; elements that do not turn are not touched."""
    _launch("rotary_", query, key, query, key, positions, table, interleaved)


def _launch(
    name: str,
    query: torch.Tensor,
    key: torch.Tensor,
    query_out: torch.Tensor,
    key_out: torch.Tensor,
    positions: torch.Tensor,
    table: torch.Tensor,
    interleaved: bool,
) -> None:
    require_dtype(name, "query", query, FLOATS)
    require_dtype(name, "key", key, (query.dtype,))
    if query.dim() != 3 or key.dim() != 3:
        raise KernelInputError(
            f"{name}: query has shape {tuple(query.shape)} and key {tuple(key.shape)}, wanted "
            "[num_tokens, heads, head_dim] for both"
        )
    tokens, query_heads, head_dim = query.shape
    key_heads = key.shape[1]
    require_shape(name, "key", key, (tokens, key_heads, head_dim))
    require_adjacent(name, "query", query)
    require_adjacent(name, "key", key)
    rotary_dim = require_rotary(name, tokens, head_dim, positions, table)
    require_runnable(name, query=query, key=key, positions=positions, table=table)
    launch = choose_launch(key_heads, head_dim, rotary_dim, device_of(query).arch)
    programs = tokens * launch.programs_of_a_token(query_heads, key_heads)
    if programs == 0:
        return
    rotary_kernel[(programs,)](
        query,
        key,
        query_out,
        key_out,
        positions,
        table,
        *query.stride()[:2],
        *key.stride()[:2],
        *query_out.stride()[:2],
        *key_out.stride()[:2],
        QUERY_HEADS=query_heads,
        KEY_HEADS=key_heads,
        HEADS=launch.heads,
        HEAD_DIM=head_dim,
        ROTARY_DIM=rotary_dim,
        HALF=launch.half,
        REST=0 if query_out is query else launch.rest,
        INTERLEAVED=interleaved,
        num_warps=launch.num_warps,
    )


def rotary_reference(
    x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, *, interleaved: bool = False
) -> torch.Tensor:
    """x [num_tokens, heads, head_dim] turned, in its own dtype: the truth in float64."""
    half = table.shape[1] // 2
    cos, sin = table[positions.long()].to(x.dtype).unsqueeze(1).chunk(2, dim=-1)
    turned = x.clone()
    if interleaved:
        first, second = x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]
        places = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    else:
        first, second = x[..., :half], x[..., half : 2 * half]
        places = slice(0, half), slice(half, 2 * half)
    turned[..., places[0]] = first * cos - second * sin
    turned[..., places[1]] = second * cos + first * sin
    return turned


def _cases(
    dtype: str,
    heads: tuple[int, int],
    head_dim: int,
    rotary_dim: int,
    *,
    interleaved: bool = False,
    in_place: bool = False,
) -> Iterator[AotCase]:
    query_heads, key_heads = heads
    inputs = ("query", "key", "query_out", "key_out")
    strides = [f"{what}_{of}_stride" for what in inputs for of in ("token", "head")]
    layout = ("interleaved " if interleaved else "") + ("in place " if in_place else "")
    launches = by_launch(partial(choose_launch, key_heads, head_dim, rotary_dim))
    for launch, architectures in launches.items():
        yield AotCase(
            kernel="rotary",
            config=f"{dtype} {layout}heads={query_heads}+{key_heads} dim={rotary_dim}/{head_dim} "
            f"block={launch.heads}x{2 * launch.half} warps={launch.num_warps}",
            function=rotary_kernel,
            arguments={
                **dict.fromkeys(inputs, f"*{dtype}"),
                "positions": "*i64",
                "table": "*fp32",
                **dict.fromkeys(strides, "i32"),
            },
            constants={
                "QUERY_HEADS": query_heads,
                "KEY_HEADS": key_heads,
                "HEADS": launch.heads,
                "HEAD_DIM": head_dim,
                "ROTARY_DIM": rotary_dim,
                "HALF": launch.half,
                "REST": 0 if in_place else launch.rest,
                "INTERLEAVED": interleaved,
            },
            num_warps=launch.num_warps,
            architectures=architectures,
        )


# The default model, Llama-3 8B, Phi-2 (32 of 80 elements turn) and a head of 80 that turns whole,
# Llama-3 70B, GPT-J (64 of 256).
AOT_CASES = (
    *_cases("bf16", (9, 3), 64, 64),
    *_cases("bf16", (32, 8), 128, 128),
    *_cases("fp16", (32, 32), 80, 32),
    *_cases("fp16", (32, 32), 80, 32, in_place=True),
    *_cases("fp16", (32, 32), 80, 80),
    *_cases("fp32", (64, 8), 128, 128),
    *_cases("fp16", (16, 16), 256, 64, interleaved=True),
    *_cases("bf16", (32, 8), 128, 128, interleaved=True),
)
