"""Split-KV, "flash-decoding": one softmax computed in pieces, and put together exactly.

Why is decoding one long sequence slow, and what helps? A request's keys are read by as many
programs as it has KV heads, eight in Llama 3 8B, while a GPU has a hundred processors. Splits of
the keys are attended to by programs of their own; each leaves the softmax of its keys alone and
the logarithm of its denominator. The whole is their mean with weights 2^lse (Milakov and
Gimelshein 2018, section 3.1; Dao et al. 2023, "Flash-Decoding for long-context inference").

Merging reads num_splits * rows * (head_dim + 1) fp32 numbers once: bound by memory.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.checks import FLOATS, require_adjacent, require_dtype, require_runnable, require_shape
from kernels.errors import KernelInputError
from kernels.testing.cases import AotCase

MAX_SPLITS = 128
CHUNK = 8  # splits that are in flight together
NUM_WARPS = 4


def choose_num_splits(
    programs: int, processors: int, tiles: int, max_splits: int = MAX_SPLITS
) -> int:
    """Into how many pieces to split the keys, so that the processors are busy.

    programs: those of a launch without splits. processors: how many programs the GPU runs at a
    time. tiles: tiles of keys of the longest request; a split has at least one.

    Splits come in waves: with s of them the last of ceil(programs * s / processors) waves is
    partly filled. Taken is the smallest number whose filling is within 85 % of the best, among
    those that shorten a program: 7 splits of 12 tiles take as long as 6. No splits where 80 % of
    the processors are busy anyway. The rule of FlashAttention-2 (`num_splits_heuristic`).
    """
    if programs <= 0 or tiles <= 1 or programs >= 0.8 * processors:
        return 1
    filling = {}
    for splits in range(1, min(max_splits, processors, tiles) + 1):
        if splits == 1 or triton.cdiv(tiles, splits) < triton.cdiv(tiles, splits - 1):
            waves = programs * splits / processors
            filling[splits] = waves / -(-programs * splits // processors)
    good_enough = 0.85 * max(filling.values())
    return next(splits for splits, filled in filling.items() if filled >= good_enough)


@triton.jit(do_not_specialize=["rows", "num_splits"])
def merge_splits_kernel(
    partial_out,
    partial_lse,
    out,
    out_token_stride,
    out_head_stride,
    rows,
    num_heads,
    num_splits,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SPLITS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One program merges the splits of one row, a head of a token.

    A split that saw no key has lse -inf; what lies in its partial_out is not looked at.
    """
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK_D)
    all_splits = tl.arange(0, SPLITS)
    lse = tl.load(
        partial_lse + all_splits.to(tl.int64) * rows + row,
        mask=all_splits < num_splits,
        other=float("-inf"),
    )
    largest = tl.max(lse, 0)
    largest = tl.where(largest == float("-inf"), 0.0, largest)
    weight_sum = tl.sum(tl.math.exp2(lse - largest), 0)
    total = tl.zeros((BLOCK_D,), tl.float32)
    for start in tl.range(0, num_splits, CHUNK):
        split = start + tl.arange(0, CHUNK)
        place = split.to(tl.int64) * rows + row
        chunk_lse = tl.load(partial_lse + place, mask=split < num_splits, other=float("-inf"))
        values = tl.load(
            partial_out + place[:, None] * HEAD_DIM + d[None, :],
            mask=(chunk_lse != float("-inf"))[:, None] & (d < HEAD_DIM)[None, :],
            other=0.0,
        )
        total += tl.sum(values * tl.math.exp2(chunk_lse - largest)[:, None], 0)
    merged = total / tl.where(weight_sum == 0.0, 1.0, weight_sum)
    place = out + (row // num_heads) * out_token_stride + (row % num_heads) * out_head_stride
    tl.store(place + d, merged.to(out.dtype.element_ty), mask=d < HEAD_DIM)


def merge_splits(partial_out: torch.Tensor, partial_lse: torch.Tensor, out: torch.Tensor) -> None:
    """Writes into `out` the softmax over all keys from those over the splits.

    partial_out: fp32 [num_splits, num_tokens, num_heads, head_dim], contiguous, each split's
    result normalised. partial_lse: fp32 [num_splits, num_tokens, num_heads], contiguous: log2 of
    each split's sum of 2^score, -inf where it saw no key; partial_out is ignored there. out:
    [num_tokens, num_heads, head_dim] of a float type, the elements of a head adjacent; 0 where no
    split saw a key. Raises KernelInputError for tensors that do not fit.
    """
    name = "merge_splits"
    require_dtype(name, "partial_out", partial_out, (torch.float32,))
    require_dtype(name, "partial_lse", partial_lse, (torch.float32,))
    require_dtype(name, "out", out, FLOATS)
    if partial_out.dim() != 4 or not 1 <= partial_out.shape[0] <= MAX_SPLITS:
        raise KernelInputError(
            f"{name}: partial_out has shape {tuple(partial_out.shape)}, wanted "
            f"[1 to {MAX_SPLITS} splits, num_tokens, num_heads, head_dim]"
        )
    require_shape(name, "partial_lse", partial_lse, partial_out.shape[:3])
    require_shape(name, "out", out, partial_out.shape[1:])
    if not (partial_out.is_contiguous() and partial_lse.is_contiguous()):
        raise KernelInputError(f"{name}: partial_out and partial_lse must be contiguous")
    require_adjacent(name, "out", out, "head")
    require_runnable(name, partial_out=partial_out, partial_lse=partial_lse, out=out)
    num_splits, num_tokens, num_heads, head_dim = partial_out.shape
    if out.numel() == 0:
        return
    rows = num_tokens * num_heads
    merge_splits_kernel[(rows,)](
        partial_out,
        partial_lse,
        out,
        out.stride(0),
        out.stride(1),
        rows,
        num_heads,
        num_splits,
        HEAD_DIM=head_dim,
        BLOCK_D=triton.next_power_of_2(head_dim),
        SPLITS=triton.next_power_of_2(num_splits),
        CHUNK=CHUNK,
        num_warps=NUM_WARPS,
    )


def merge_splits_reference(partial_out: torch.Tensor, partial_lse: torch.Tensor) -> torch.Tensor:
    """The weighted mean, in the dtype of its arguments: [num_tokens, num_heads, head_dim]."""
    largest = partial_lse.amax(0)
    weights = torch.exp2(partial_lse - torch.where(largest.isinf(), 0, largest))
    weights = (weights / weights.sum(0).clamp(min=torch.finfo(weights.dtype).tiny))[..., None]
    return torch.where(weights == 0, 0, partial_out * weights).sum(0)


def _case(dtype: str, head_dim: int, splits: int) -> AotCase:
    return AotCase(
        kernel="merge_splits",
        config=f"{dtype} head_dim={head_dim} splits={splits}",
        function=merge_splits_kernel,
        arguments={
            **dict.fromkeys(("partial_out", "partial_lse"), "*fp32"),
            "out": f"*{dtype}",
            **dict.fromkeys(("out_token_stride", "out_head_stride"), "i32"),
            **dict.fromkeys(("rows", "num_heads", "num_splits"), "i32"),
        },
        constants={
            "HEAD_DIM": head_dim,
            "BLOCK_D": triton.next_power_of_2(head_dim),
            "SPLITS": splits,
            "CHUNK": CHUNK,
        },
        num_warps=NUM_WARPS,
        any_alignment=frozenset({"rows", "num_heads", "num_splits"}),
    )


AOT_CASES = (
    _case("bf16", 64, 2),
    _case("bf16", 128, 32),
    _case("fp16", 128, MAX_SPLITS),
    _case("bf16", 256, MAX_SPLITS),
)
