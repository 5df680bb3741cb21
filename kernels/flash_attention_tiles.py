"""What flash attention's forward and backward kernels share: where a program stands, which tiles
it visits, and what a score is.

Query i of a sequence sees key j if j <= i + (key_len - query_len), when causal: the last query
sees the last key. A window of w keeps the last w of those keys. Tiles that no query of a tile
sees are never loaded; tiles that every query sees whole need no mask.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

import triton
import triton.language as tl

from kernels.hyperbolic import tanh

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def place_of_program(tiles, heads, LAST_FIRST: tl.constexpr):
    """Tile, head and sequence of a program: all on the grid's x, whose limit is 2^31.

    LAST_FIRST: under a causal mask the last tiles have the most to do, and should start first.
    """
    program = tl.program_id(0)
    tile = program % tiles
    if LAST_FIRST:
        tile = tiles - 1 - tile
    return tile, (program // tiles) % heads, (program // tiles // heads).to(tl.int64)


@triton.jit
def sequence(starts, batch, length, VARLEN: tl.constexpr):
    """First token of sequence `batch` in its buffer, and its length."""
    start = batch * 0
    if VARLEN:
        start = tl.load(starts + batch)
        length = tl.load(starts + batch + 1) - start
    return start.to(tl.int64), length


@triton.jit
def load_rows(
    base, first, stride, limit,
    ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, CHECKED: tl.constexpr,
):  # fmt: skip
    """Rows first .. first + ROWS of [rows, HEAD_DIM]; 0 beyond `limit` and beyond HEAD_DIM.

    Without CHECKED all rows are known to lie below `limit`.
    """
    row = tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, PADDED_DIM)[None, :]
    places = base + tl.cast(first, tl.int64) * stride + (row * stride + column)
    if CHECKED and HEAD_DIM < PADDED_DIM:
        return tl.load(places, mask=(first + row < limit) & (column < HEAD_DIM), other=0.0)
    elif CHECKED:
        return tl.load(places, mask=first + row < limit, other=0.0)
    elif HEAD_DIM < PADDED_DIM:
        return tl.load(places, mask=column < HEAD_DIM, other=0.0)
    else:
        return tl.load(places)


@triton.jit
def store_rows(
    base, first, stride, limit, values,
    ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
):  # fmt: skip
    """The one rounding: fp32 values to the type of the tensor, rows below `limit` only."""
    row = tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, PADDED_DIM)[None, :]
    places = base + (first + row).to(tl.int64) * stride + column
    mask = (first + row < limit) & (column < HEAD_DIM)
    tl.store(places, values.to(base.dtype.element_ty), mask=mask)


@triton.jit
def is_visible(
    query, key, query_len, key_len, window, CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr
):
    """Whether a query of the sequence sees a key; the two broadcast against each other."""
    if CAUSAL:  # no query below query_len then sees a key beyond key_len
        diagonal = query + (key_len - query_len)
        if HAS_WINDOW:
            return (key <= diagonal) & (key > diagonal - window)
        else:
            return key <= diagonal
    else:
        return (key < key_len) & (query >= 0)


@triton.jit
def key_range(
    first, query_len, key_len, window,
    ROWS: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr,
):  # fmt: skip
    """The keys that any of queries first .. first + ROWS sees, from a multiple of KEYS on."""
    offset = key_len - query_len
    begin = 0
    end = key_len
    if CAUSAL:
        end = tl.maximum(tl.minimum(first + ROWS, query_len) + offset, 0)
    if HAS_WINDOW:
        begin = tl.maximum(first + offset - window + 1, 0) // KEYS * KEYS
    return begin, end


@triton.jit
def full_key_range(
    first, end, query_len, key_len, window,
    ROWS: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr,
):  # fmt: skip
    """Within `key_range`, the tiles of KEYS that every one of the queries sees whole."""
    offset = key_len - query_len
    full_begin = 0
    full_end = key_len
    if CAUSAL:
        full_end = tl.maximum(first + offset + 1, 0)
    if HAS_WINDOW:
        last = tl.minimum(first + ROWS, query_len) - 1
        full_begin = tl.cdiv(tl.maximum(last + offset - window + 1, 0), KEYS) * KEYS
        full_begin = tl.minimum(full_begin, end)
    return full_begin, tl.maximum(full_end // KEYS * KEYS, full_begin)


@triton.jit
def query_range(
    first, query_len, key_len, window,
    ROWS: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr,
):  # fmt: skip
    """The queries that see any of keys first .. first + KEYS, from a multiple of ROWS on."""
    offset = key_len - query_len
    last = tl.minimum(first + KEYS, key_len) - 1
    begin = 0
    end = query_len
    if CAUSAL:
        begin = tl.maximum(first - offset, 0) // ROWS * ROWS
    if HAS_WINDOW:
        end = tl.minimum(tl.maximum(last - offset + window, 0), query_len)
    return begin, end


@triton.jit
def load_lse(base, row, limit):
    """In units of log 2; infinite where a row sees nothing or is none: its weights are 0."""
    lse = tl.load(base + row, mask=row < limit, other=float("inf")) * LOG2_E
    return tl.where(lse == float("-inf"), float("inf"), lse)


@triton.jit
def weights_and_slope(
    product, lse, scale, softcap, visible,
    HAS_SOFTCAP: tl.constexpr, MASKED: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """The weights of a tile of q k products, and how a score grows with its scaled product."""
    if HAS_SOFTCAP:
        share = tanh(product * (scale / softcap), PRECISE)
        score = share * (softcap * LOG2_E)
        slope = 1.0 - share * share
    else:
        score = product * (scale * LOG2_E)
        slope = 1.0
    if MASKED:
        score = tl.where(visible, score, float("-inf"))
    return tl.exp2(score - lse), slope
