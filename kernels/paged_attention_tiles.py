"""The inner loop of paged attention: query rows against tiles of keys, found through the table.

How does attention run in one pass over the keys? It keeps, for each row, the largest score so
far, the sum of exponentials and the weighted sum of values, and scales both down when a larger
score comes (Milakov and Gimelshein 2018, alg. 3; Dao 2023, "FlashAttention-2", alg. 1). In base
2, where an exponential is one instruction.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

import triton
import triton.language as tl

from kernels.e4m3 import e4m3_values
from kernels.hyperbolic import tanh

SMALLEST_NORMAL = tl.constexpr(1.1754943508222875e-38)


@triton.jit
def as_numbers(codes, DTYPE: tl.constexpr):
    """What is cached, as numbers: floats, int8, or e4m3 (as uint8 where the GPU has none)."""
    if codes.dtype == tl.uint8:
        return e4m3_values(codes).to(DTYPE)
    else:
        return codes.to(DTYPE)


@triton.jit
def attend(
    state,
    query,
    position,
    begin,
    end,
    num_keys,
    table,
    keys,
    values,
    key_scales,
    value_scales,
    key_strides,
    value_strides,
    key_scale_strides,
    value_scale_strides,
    window,
    scale,
    cap,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    MASKED: tl.constexpr,
):
    """The softmax so far, taken on over the keys in [begin, end), in tiles of BLOCK_N.

    Without MASKED every row sees all of these keys. With it, rows see those of the first
    num_keys that the causal mask and the window leave them; other keys are not touched.
    scale, cap: of scores in base 2, see the kernel.
    """
    row_max, row_sum, accumulator, unit = state
    BLOCK_D: tl.constexpr = query.shape[1]
    d = tl.arange(0, BLOCK_D)
    in_head = d < HEAD_DIM if HEAD_DIM < BLOCK_D else tl.full((BLOCK_D,), True, tl.int1)
    for start in tl.range(begin, end, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        known = key < num_keys if MASKED else tl.full((BLOCK_N,), True, tl.int1)
        block = tl.load(table + key // BLOCK_SIZE, mask=known, other=0).to(tl.int64)
        slot = key % BLOCK_SIZE  # times a stride in 32 bits: in 64 a fourth of the programs go
        place = block * key_strides[0] + slot * key_strides[1]
        mask = in_head[:, None] & known[None, :]
        k = tl.load(keys + place[None, :] + d[:, None], mask=mask, other=0.0)
        scores = tl.dot(query, as_numbers(k, query.dtype), input_precision="ieee")
        if HAS_SCALES:
            place = block * key_scale_strides[0] + slot * key_scale_strides[1]
            scores *= (scale * tl.load(key_scales + place, mask=known, other=0.0))[None, :]
        else:
            scores *= scale
        if HAS_SOFTCAP:
            scores = cap * tanh(scores, query.dtype == tl.float32)
        if MASKED:
            seen = known[None, :] & (key[None, :] <= position[:, None])
            if HAS_WINDOW:
                seen &= key[None, :] > position[:, None] - window
            scores = tl.where(seen, scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        shift = tl.where(new_max == float("-inf"), 0.0, new_max)  # rows that saw no key yet
        weights = tl.math.exp2(scores - shift[:, None])
        decay = tl.math.exp2(row_max - shift)
        row_max = new_max
        row_sum = row_sum * decay + tl.sum(weights, 1)
        if HAS_SCALES:
            # The accumulator counts in units of the largest value scale so far: a weight times
            # a small scale would be lost in fp16.
            place = block * value_scale_strides[0] + slot * value_scale_strides[1]
            value_scale = tl.load(value_scales + place, mask=known, other=0.0)
            new_unit = tl.maximum(unit, tl.max(value_scale, 0))
            weights *= (value_scale / new_unit)[None, :]
            decay *= unit / new_unit
            unit = new_unit
        place = block * value_strides[0] + slot * value_strides[1]
        mask = known[:, None] & in_head[None, :]
        v = tl.load(values + place[:, None] + d[None, :], mask=mask, other=0.0)
        accumulator = tl.dot(
            weights.to(query.dtype),
            as_numbers(v, query.dtype),
            accumulator * decay[:, None],
            input_precision="ieee",
        )
    return row_max, row_sum, accumulator, unit
