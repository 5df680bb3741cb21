"""Cuts in a vocabulary from the likeliest token down, without sorting it.

Order the tokens of a row by (logit descending, id ascending). Top-k, top-p and min-p each keep a
prefix of that order, so whatever they keep together is one prefix, and one prefix is two numbers:
the logit of its last token, and that token's id. A drawn token is found the same way: it is the
last token of the shortest prefix whose mass exceeds u times the mass kept. So everything in
sampling is one question, "where does the shortest prefix end whose count, or mass, is enough?",
and `find_end` answers it exactly by a search over the values that a logit can have.

A token's place is its distance below the largest logit, d = largest - logit >= 0; its mass is
exp(-d / temperature). Non-negative fp32 numbers are ordered as their bits are when read as
integers, so the search divides an interval of integers and needs no more steps than a number has
bits: with WAYS pivots a pass, each pass divides it by WAYS, and 11 passes always suffice for 8.
Each pass also notes the nearest and the farthest token in the interval, and the search is over
when they are one value: after 5 to 8 passes on average for 151,936 normally distributed logits.
It is a radix select in which a digit costs one pass over the row; the row, once read, comes from
the L2 cache (151,936 fp32 logits are 0.6 MB).

Sums of masses are fp32, lane by lane and then across lanes, the same way in every pass. Sums of
non-negative numbers grow with what is added, also as rounded, so the search sees a monotone
function: it ends at the first value where that function is enough, whatever the rounding.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
INFINITE = tl.constexpr(0x7F800000)  # the bits of fp32 infinity: where a logit of -inf is
GONE = tl.constexpr(0x7FFFFFFF)  # farther than any number: tokens beyond a cut, or no tokens
NO_TOKEN = tl.constexpr(0x7FFFFFFF)


@triton.jit
def largest_logit(logits, columns, BLOCK: tl.constexpr):
    """The largest of a row; NaN counts as -inf."""
    column = tl.arange(0, BLOCK)[None, :]
    largest = tl.full([1, BLOCK], float("-inf"), tl.float32)
    for start in range(0, columns, BLOCK):
        inside = start + column < columns
        values = tl.load(logits + start + column, mask=inside, other=float("-inf"))
        largest = tl.maximum(largest, values.to(tl.float32))  # of a number and NaN the number
    return tl.max(largest)


@triton.jit
def load_keys(logits, column, columns, largest, cut_key, cut_id):
    """Distances below the largest logit, as ordered integers; more than cut_key beyond the cut.

    A NaN's bits are above those of infinity: it is beyond every cut.
    """
    values = tl.load(logits + column, mask=column < columns, other=float("-inf")).to(tl.float32)
    key = (largest - values).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    key = tl.where(values == largest, 0, key)  # equal infinities have no difference
    return tl.where((key == cut_key) & (column > cut_id), GONE, key)


@triton.jit
def mass_of(key, scale):
    """exp(-distance / temperature), scale being -log2(e) / temperature: 1 for the largest."""
    return tl.exp2(key.to(tl.float32, bitcast=True) * scale)


@triton.jit
def find_tied(logits, columns, largest, cut_key, cut_id, key, rank, BLOCK: tl.constexpr):
    """The id of the rank-th token with this key in order of ids; the last if there are fewer."""
    column = tl.arange(0, BLOCK)[None, :]
    place = -1
    if rank == 1:
        first = tl.full([1, BLOCK], NO_TOKEN, tl.int32)
        for start in range(0, columns, BLOCK):
            here = start + column
            keys = load_keys(logits, here, columns, largest, cut_key, cut_id)
            first = tl.minimum(first, tl.where(keys == key, here, NO_TOKEN))
        place = tl.min(first)
    else:
        seen = 0
        start = 0
        while (start < columns) & (seen < rank):
            here = start + column
            keys = load_keys(logits, here, columns, largest, cut_key, cut_id)
            tied = (keys == key).to(tl.int32)
            reached = seen + tl.cumsum(tied, 1)
            place = tl.maximum(place, tl.max(tl.where((tied > 0) & (reached <= rank), here, -1)))
            seen += tl.sum(tied)
            start += BLOCK
    return place


@triton.jit
def find_end(
    logits,
    columns,
    largest,
    scale,
    cut_key,
    cut_id,
    wanted,
    MASS: tl.constexpr,
    STRICT: tl.constexpr,
    BLOCK: tl.constexpr,
    WAYS: tl.constexpr,
):
    """The last token of the shortest prefix that holds enough, of the tokens within the cut.

    Enough: `wanted` tokens, or all; with MASS at least the fraction `wanted` of all their mass
    (at most 1), and with STRICT more than that (below 1). However little is wanted, one token.
    Returns its key, its id, and the whole amount.
    """
    column = tl.arange(0, BLOCK)[None, :]
    way = tl.arange(0, WAYS)[:, None]
    # Prefixes up to `low` are too short, those up to `high` are enough.
    low, high = -1, cut_key
    before, reached = 0.0, 0.0
    whole, target = -1.0, 0.0
    while (high - low > 1) | (whole < 0.0):
        step = (high - low + WAYS - 1) // WAYS
        pivots = tl.minimum(low + step * (way + 1), high)
        amounts = tl.zeros([WAYS, BLOCK], tl.float32)
        nearest = tl.full([1, BLOCK], GONE, tl.int32)
        farthest = tl.full([1, BLOCK], -1, tl.int32)
        for start in range(0, columns, BLOCK):
            key = load_keys(logits, start + column, columns, largest, cut_key, cut_id)
            amount = mass_of(key, scale) if MASS else 1.0
            amounts += tl.where(key <= pivots, amount, 0.0)
            nearest = tl.minimum(nearest, tl.where(key > low, key, GONE))
            farthest = tl.maximum(farthest, tl.where(key <= high, key, -1))
        sums = tl.sum(amounts, 1)
        if whole < 0.0:
            whole = tl.max(sums)
            target = whole * wanted if MASS else tl.minimum(wanted, whole)
        short = sums <= target if STRICT else sums < target
        steps = tl.sum(short.to(tl.int32))
        before = tl.maximum(before, tl.max(tl.where(short, sums, 0.0)))
        reached = tl.min(tl.where(short, float("inf"), sums))
        new_low = tl.where(steps > 0, low + step * steps, low)
        new_high = tl.minimum(low + step * (steps + 1), high)
        low = tl.maximum(new_low, tl.min(nearest) - 1)
        high = tl.minimum(new_high, tl.max(farthest))
    # Its rank among the tokens of its key: equal tokens have equal mass.
    each = mass_of(high, scale) if MASS else 1.0
    rank = (target - before) / each
    rank = tl.floor(rank) + 1.0 if STRICT else tl.ceil(rank)
    rank = tl.minimum(tl.maximum(rank, 1.0), tl.cast(columns, tl.float32)).to(tl.int32)
    place = cut_id
    if (reached > target) | MASS:  # else all of them are kept
        place = find_tied(logits, columns, largest, cut_key, cut_id, high, rank, BLOCK)
    return high, place, whole


@triton.jit
def walk(mass, column, before, target, token, last):
    """One tile further in search of the first id where the masses so far exceed the target.

    before: the mass of the tiles before. token: what was found there, or NO_TOKEN. last: the last
    id with mass. Returns the three after this tile. However sums are rounded, a token without
    mass is not found; and if the target lies beyond all of them, `last` is the token.
    """
    after = before + tl.sum(mass)
    if after > target:
        over = (before + tl.cumsum(mass, 1) > target) & (mass > 0.0)
        token = tl.minimum(token, tl.min(tl.where(over, column, NO_TOKEN)))
    return after, token, tl.maximum(last, tl.max(tl.where(mass > 0.0, column, 0)))


@triton.jit
def draw_in_id_order(
    logits, columns, largest, scale, cut_key, cut_id, uniform, BLOCK: tl.constexpr
):
    """The first id at which the mass of it and all lower ids exceeds uniform times all mass."""
    column = tl.arange(0, BLOCK)[None, :]
    masses = tl.zeros([1, BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        here = start + column
        keys = load_keys(logits, here, columns, largest, cut_key, cut_id)
        masses += tl.where(keys <= cut_key, mass_of(keys, scale), 0.0)
    whole = tl.sum(masses)
    before, token, last, start = 0.0, NO_TOKEN, 0, 0
    while (start < columns) & (token == NO_TOKEN):
        here = start + column
        keys = load_keys(logits, here, columns, largest, cut_key, cut_id)
        mass = tl.where(keys <= cut_key, mass_of(keys, scale), 0.0)
        before, token, last = walk(mass, here, before, whole * uniform, token, last)
        start += BLOCK
    return tl.where(token == NO_TOKEN, last, token), whole
