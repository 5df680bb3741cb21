"""Turning pairs of elements by an angle: the device functions of rotary position embedding.

Which two elements make a pair is the layout: i and i + rotary_dim / 2 (Llama), or 2i and 2i + 1
(GPT-J, called interleaved). Either way a tile of pairs is two tiles [heads, HALF], loaded and
stored with neighbours in memory side by side in a thread.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rotate(first, second, cos, sin):
    """(a cos - b sin, b cos + a sin), fp32.

    With fma spelled out, no compiler can choose another: kernels that rotate agree in every bit.
    """
    return tl.fma(first, cos, -(second * sin)), tl.fma(second, cos, first * sin)


@triton.jit
def load_turn(table, position, ROTARY_DIM: tl.constexpr, HALF: tl.constexpr):
    """cos and sin [1, HALF] of a position, from a row of `rotary_table`."""
    column = tl.arange(0, HALF)[None, :]
    mask = column < ROTARY_DIM // 2
    row = table + position * ROTARY_DIM
    cos = tl.load(row + column, mask=mask, other=1.0)
    sin = tl.load(row + ROTARY_DIM // 2 + column, mask=mask, other=0.0)
    return cos, sin


@triton.jit
def load_pairs(
    rows,
    there,
    ROWS: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """The first and the second elements [ROWS, HALF] of the pairs of rows at pointers [ROWS]."""
    if INTERLEAVED:
        column = tl.arange(0, 2 * HALF)[None, :]
        mask = there[:, None] & (column < ROTARY_DIM)
        both = tl.load(rows[:, None] + column, mask=mask, other=0.0)
        first, second = tl.split(tl.reshape(both, (ROWS, HALF, 2)))
    else:
        column = tl.arange(0, HALF)[None, :]
        mask = there[:, None] & (column < ROTARY_DIM // 2)
        first = tl.load(rows[:, None] + column, mask=mask, other=0.0)
        second = tl.load(rows[:, None] + ROTARY_DIM // 2 + column, mask=mask, other=0.0)
    return first, second


@triton.jit
def store_pairs(
    rows,
    first,
    second,
    there,
    ROWS: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """What `load_pairs` loads; of any type."""
    if INTERLEAVED:
        column = tl.arange(0, 2 * HALF)[None, :]
        both = tl.reshape(tl.join(first, second), (ROWS, 2 * HALF))
        tl.store(rows[:, None] + column, both, mask=there[:, None] & (column < ROTARY_DIM))
    else:
        column = tl.arange(0, HALF)[None, :]
        mask = there[:, None] & (column < ROTARY_DIM // 2)
        tl.store(rows[:, None] + column, first, mask=mask)
        tl.store(rows[:, None] + ROTARY_DIM // 2 + column, second, mask=mask)


@triton.jit
def rotated_pairs(
    rows,
    there,
    cos,
    sin,
    ROWS: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """`load_pairs`, turned and rounded to the type they are loaded in."""
    first, second = load_pairs(rows, there, ROWS, ROTARY_DIM, HALF, INTERLEAVED)
    dtype = first.dtype
    first, second = rotate(first.to(tl.float32), second.to(tl.float32), cos, sin)
    return first.to(dtype), second.to(dtype)


@triton.jit
def load_rest(rows, there, HEAD_DIM: tl.constexpr, ROTARY_DIM: tl.constexpr, REST: tl.constexpr):
    """The elements [rows, REST] that do not turn."""
    column = ROTARY_DIM + tl.arange(0, REST)[None, :]
    return tl.load(rows[:, None] + column, mask=there[:, None] & (column < HEAD_DIM), other=0.0)


@triton.jit
def store_rest(
    rows, rest, there, HEAD_DIM: tl.constexpr, ROTARY_DIM: tl.constexpr, REST: tl.constexpr
):
    column = ROTARY_DIM + tl.arange(0, REST)[None, :]
    tl.store(rows[:, None] + column, rest, mask=there[:, None] & (column < HEAD_DIM))


@triton.jit
def rotate_heads(
    source,
    target,
    source_head_stride,
    target_head_stride,
    first_head,
    num_heads,
    cos,
    sin,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """HEADS heads of one token, which starts at `source` and goes to `target`."""
    head = first_head + tl.arange(0, HEADS)
    there = head < num_heads
    from_rows = source + head.to(tl.int64) * source_head_stride
    to_rows = target + head.to(tl.int64) * target_head_stride
    first, second = rotated_pairs(from_rows, there, cos, sin, HEADS, ROTARY_DIM, HALF, INTERLEAVED)
    store_pairs(to_rows, first, second, there, HEADS, ROTARY_DIM, HALF, INTERLEAVED)
    if REST > 0:
        rest = load_rest(from_rows, there, HEAD_DIM, ROTARY_DIM, REST)
        store_rest(to_rows, rest, there, HEAD_DIM, ROTARY_DIM, REST)
