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
