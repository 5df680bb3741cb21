"""Turns keys on their way into the paged cache, so that they are never written in between."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

import triton
import triton.language as tl

from kernels.rotation import load_rest, rotated_pairs, store_pairs, store_rest
from kernels.row_quantization import codes_of, largest_magnitude, scale_of


@triton.jit
def write_rotated_keys(
    rows,
    cache_rows,
    scale_places,
    kept,
    cos,
    sin,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    CODING: tl.constexpr,
):
    """Keys at pointers [HEADS], turned, into the cache: a row is two tiles of pairs, and a rest."""
    first, second = rotated_pairs(rows, kept, cos, sin, HEADS, ROTARY_DIM, HALF, INTERLEAVED)
    if REST > 0:
        rest = load_rest(rows, kept, HEAD_DIM, ROTARY_DIM, REST)
    if CODING != "as it is":
        first, second = first.to(tl.float32), second.to(tl.float32)
        magnitude = tl.maximum(largest_magnitude(first), largest_magnitude(second))
        if REST > 0:
            rest = rest.to(tl.float32)
            magnitude = tl.maximum(magnitude, largest_magnitude(rest))
        scale = scale_of(magnitude, CODING)
        tl.store(scale_places, scale, mask=kept)
        first, second = codes_of(first, scale, CODING), codes_of(second, scale, CODING)
        if REST > 0:
            rest = codes_of(rest, scale, CODING)
    store_pairs(cache_rows, first, second, kept, HEADS, ROTARY_DIM, HALF, INTERLEAVED)
    if REST > 0:
        store_rest(cache_rows, rest, kept, HEAD_DIM, ROTARY_DIM, REST)
