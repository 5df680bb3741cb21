"""Sampling a token from each row of logits: temperature, min-p, top-k and top-p in one launch.

Min-p, then top-k, then top-p, each of what the one before left, as `infra_lab.sampling` does it:
equal logits are ordered by id, so top-k keeps exactly k tokens and top-p the shortest prefix
whose mass reaches p, at least one token. How that is found without sorting is explained in
`token_order`. The idea of selecting by thresholds instead of sorting is that of FlashInfer's
sampling kernels (Ye et al. 2025); there the threshold is searched by rejection or on
probabilities, here on the bits of logits, which ends exactly, ties included.

Answers "why does top-p sampling not need a sort?". Passes over a row of logits, after the first
from L2: greedy 2; nothing filtered 3; else 1, and for each of top-k, top-p and the draw a search
of at most 11 (5 to 8 on average for normally distributed logits) and at most 1 for a tied id.
1 more writes the probabilities.
One program does a row, so a batch of a few rows leaves most of a large GPU idle.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernels.checks import (
    FLOATS,
    as_rows,
    require_dimensions,
    require_dtype,
    require_runnable,
    require_shape,
)
from kernels.errors import KernelInputError
from kernels.testing.cases import AotCase
from kernels.token_order import (
    INFINITE,
    LOG2_E,
    draw_in_id_order,
    find_end,
    find_tied,
    largest_logit,
    load_keys,
    mass_of,
)

MAX_VOCABULARY = 2**24  # counts are exact in fp32 up to here
# Beyond these a temperature makes all tokens alike, or all but the largest impossible.
COLDEST, HOTTEST = tl.constexpr(1e-30), tl.constexpr(1e30)
LAST_BELOW_ONE = tl.constexpr(1.0 - 2.0**-24)


@triton.jit
def sample_kernel(
    logits,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    uniforms,
    seeds,
    offsets,
    token_ids,
    probabilities,
    logits_stride,
    columns,
    HAS_TOP_K: tl.constexpr,
    HAS_TOP_P: tl.constexpr,
    HAS_MIN_P: tl.constexpr,
    SEEDED: tl.constexpr,
    PROBABILITIES: tl.constexpr,
    BLOCK: tl.constexpr,
    WAYS: tl.constexpr,
):
    """One program samples one row."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * logits_stride
    given_temperature = tl.load(temperatures + row)
    top_k = tl.load(top_ks + row) if HAS_TOP_K else 0
    top_p = tl.load(top_ps + row) if HAS_TOP_P else 1.0
    min_p = tl.load(min_ps + row) if HAS_MIN_P else 0.0
    if SEEDED:
        uniform = tl.rand(tl.load(seeds + row), tl.load(offsets + row))
    else:
        uniform = tl.load(uniforms + row)
    uniform = tl.minimum(tl.maximum(uniform, 0.0), LAST_BELOW_ONE)

    largest = largest_logit(logits, columns, BLOCK)
    greedy = (given_temperature > 0.0) == 0  # also of NaN
    temperature = tl.where(greedy, 1.0, given_temperature)
    temperature = tl.minimum(tl.maximum(temperature, COLDEST), HOTTEST)
    scale = -LOG2_E / temperature
    # What is kept: keys below cut_key, and of those equal to it ids up to cut_id.
    cut_key, cut_id = tl.cast(INFINITE, tl.int32), tl.cast(columns - 1, tl.int32)
    token, whole = tl.cast(0, tl.int32), 1.0
    if largest == float("-inf"):
        cut_key = -1
    elif greedy:
        cut_key, cut_id = 0, find_tied(logits, columns, largest, cut_key, cut_id, 0, 1, BLOCK)
        token = cut_id
    else:
        # The outer conditions are constants: a filter that is not there is not compiled.
        if HAS_MIN_P:  # noqa: SIM102
            if min_p > 0.0:
                reach = tl.maximum(-tl.log(min_p), 0.0) * temperature
                cut_key = tl.minimum(cut_key, reach.to(tl.int32, bitcast=True))
        if HAS_TOP_K:  # noqa: SIM102
            if (top_k > 0) & (top_k < columns):
                cut_key, cut_id, _ = find_end(
                    logits, columns, largest, scale, cut_key, cut_id,
                    tl.cast(top_k, tl.float32), False, False, BLOCK, WAYS,
                )  # fmt: skip
        if HAS_TOP_P:  # noqa: SIM102
            if top_p < 1.0:
                cut_key, cut_id, _ = find_end(
                    logits, columns, largest, scale, cut_key, cut_id,
                    top_p, True, False, BLOCK, WAYS,
                )  # fmt: skip
        if (top_k > 0) | (top_p < 1.0) | (min_p > 0.0):
            _, token, whole = find_end(
                logits, columns, largest, scale, cut_key, cut_id,
                uniform, True, True, BLOCK, WAYS,
            )  # fmt: skip
        else:
            token, whole = draw_in_id_order(
                logits, columns, largest, scale, cut_key, cut_id, uniform, 2 * BLOCK
            )
    tl.store(token_ids + row, token.to(tl.int64))
    if PROBABILITIES:
        probabilities += row * columns
        column = tl.arange(0, BLOCK)[None, :]
        for start in range(0, columns, BLOCK):
            here = start + column
            keys = load_keys(logits, here, columns, largest, cut_key, cut_id)
            mass = tl.where(keys <= cut_key, mass_of(keys, scale), 0.0)
            tl.store(probabilities + here, mass / whole, mask=here < columns)


@dataclass(frozen=True)
class Launch:
    """block: tokens of a tile. ways: pivots of a pass of the search."""

    block: int
    ways: int
    num_warps: int


def choose_launch(vocabulary: int) -> Launch:
    """4 tokens a thread and 8 sums for each: 8 tokens spill, and 4 sums need half as many more
    passes for a third less work in each. Warps do not wait for each other within a pass, so 16
    of them hide the way to L2 without copies ahead.
    """
    block = min(2048, max(256, triton.next_power_of_2(vocabulary)))
    return Launch(block, ways=8, num_warps=block // 128)


class Sampled(NamedTuple):
    """token_ids: int64 [rows]. probabilities: fp32 [rows, vocabulary] that each token was drawn
    from, or None where not asked for.
    """

    token_ids: torch.Tensor
    probabilities: torch.Tensor | None


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    *,
    top_k: torch.Tensor | None = None,
    top_p: torch.Tensor | None = None,
    min_p: torch.Tensor | None = None,
    uniform: torch.Tensor | None = None,
    seeds: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
    return_probabilities: bool = False,
) -> Sampled:
    """Draws one token a row; a row's token depends on nothing but that row.

    logits: [rows, vocabulary] fp16, bf16 or fp32, of any row stride, 1 to 2^24 tokens.
    temperature: fp32 [rows]; 0 (or less, or NaN) is greedy: the lowest id of the largest logits.
    top_k: int32 [rows]; 0 or less keeps all. top_p: fp32 [rows]; 1 keeps all, 0 the likeliest.
    min_p: fp32 [rows]; drops tokens less likely than this times the likeliest; 0 drops none.
    uniform: fp32 [rows] in [0, 1); or seeds and offsets: int64 [rows], a row's number then being
    Philox 4x32-10 (Salmon et al. 2011) of its seed as key and its offset as counter.

    The token is the first, likeliest first, at which the mass so far exceeds uniform times the
    mass kept; in a row without filters, lowest id first. So the same uniform gives the same
    token as `infra_lab.sampling.sample_row`, unless it lies within rounding of a boundary.

    Exact: the order, by the fp32 difference to the largest logit and by id, and what top_k keeps.
    Masses are fp32: what top_p keeps and the token are those of exact sums for some top_p and
    uniform within (vocabulary / 2048 + 40) 2^-23 of the given, and what min_p keeps is that of
    one within a factor of 1 +- 2^-20. A token of less than 2^-24 of the mass may never be drawn.

    A NaN logit counts as -inf. Tokens of -inf are never drawn, unless a row has no others: then
    the token is 0 and the probabilities are 0. Logits of +inf share all the mass.
    Raises KernelInputError for tensors that do not fit. Values in the parameters are not checked
    (they are on the GPU): whatever they are, the token is one of the vocabulary.
    """
    require_dtype("sample", "logits", logits, FLOATS)
    require_dimensions("sample", "logits", logits, "[rows, vocabulary]")
    rows, columns = as_rows("sample", "logits", logits).shape
    if not 1 <= columns <= MAX_VOCABULARY:
        raise KernelInputError(
            f"sample: a vocabulary of {columns}, wanted 1 to {MAX_VOCABULARY} tokens"
        )
    if (uniform is None) == (seeds is None) or (seeds is None) != (offsets is None):
        raise KernelInputError("sample: give either uniform, or seeds and offsets")
    given = {
        "temperature": (temperature, torch.float32),
        "top_k": (top_k, torch.int32),
        "top_p": (top_p, torch.float32),
        "min_p": (min_p, torch.float32),
        "uniform": (uniform, torch.float32),
        "seeds": (seeds, torch.int64),
        "offsets": (offsets, torch.int64),
    }
    parameters: dict[str, torch.Tensor] = {}
    for name, (tensor, dtype) in given.items():
        if tensor is not None:
            require_dtype("sample", name, tensor, (dtype,))
            require_shape("sample", name, tensor, (rows,))
            parameters[name] = tensor.contiguous()
    require_runnable("sample", logits=logits, **parameters)
    token_ids = torch.empty(rows, dtype=torch.int64, device=logits.device)
    probabilities = (
        torch.empty(rows, columns, dtype=torch.float32, device=logits.device)
        if return_probabilities
        else None
    )
    if rows == 0:
        return Sampled(token_ids, probabilities)
    launch = choose_launch(columns)
    unused = parameters["temperature"]
    sample_kernel[(rows,)](
        logits,
        *(parameters.get(name, unused) for name in given),
        token_ids,
        unused if probabilities is None else probabilities,
        logits.stride(0),
        columns,
        HAS_TOP_K=top_k is not None,
        HAS_TOP_P=top_p is not None,
        HAS_MIN_P=min_p is not None,
        SEEDED=seeds is not None,
        PROBABILITIES=return_probabilities,
        BLOCK=launch.block,
        WAYS=launch.ways,
        num_warps=launch.num_warps,
    )
    return Sampled(token_ids, probabilities)


def sample_reference(
    logits: torch.Tensor,
    temperature: float,
    *,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    uniform: float,
) -> tuple[int, torch.Tensor]:
    """The same of one row [vocabulary] by sorting, in float64.

    Returns the token and the ids that are kept, in the order in which their masses are added.
    """
    values = logits.float().nan_to_num(nan=float("-inf"), posinf=float("inf"), neginf=float("-inf"))
    distance = values.max() - values
    distance = torch.where(values == values.max(), 0.0, distance).double()
    kept = distance.sort(stable=True).indices
    if not temperature > 0:
        return int(kept[0]), kept[:1]
    mass = (-distance / temperature).exp()
    if min_p > 0:
        kept = kept[distance[kept] / temperature <= -math.log(min(min_p, 1.0))]
    if top_k > 0:
        kept = kept[:top_k]
    if top_p < 1:
        upto = mass[kept].cumsum(0)
        before = upto - mass[kept]
        kept = kept[: max(1, int((before < top_p * upto[-1]).sum()))]
    if top_k <= 0 and top_p >= 1 and min_p <= 0:
        kept = kept.sort().values
    upto = mass[kept].cumsum(0)
    place = int(torch.searchsorted(upto, uniform * upto[-1], right=True))
    return int(kept[min(place, int(mass[kept].nonzero()[-1]))]), kept


def _case(
    dtype: str, vocabulary: int, *, filters: bool, probabilities: bool, seeded: bool = False
) -> AotCase:
    launch = choose_launch(vocabulary)
    pointers = {
        "logits": f"*{dtype}",
        "temperatures": "*fp32",
        "top_ks": "*i32" if filters else "*fp32",
        "top_ps": "*fp32",
        "min_ps": "*fp32",
        "uniforms": "*fp32",
        **dict.fromkeys(("seeds", "offsets"), "*i64" if seeded else "*fp32"),
        "token_ids": "*i64",
        "probabilities": "*fp32",
    }
    marks = {"filters": filters, "probabilities": probabilities, "seeded": seeded}
    names = [name for name, is_so in marks.items() if is_so]
    return AotCase(
        kernel="sample",
        config=f"{dtype} vocabulary={vocabulary} {' '.join(names) or 'plain'}",
        function=sample_kernel,
        arguments={**pointers, "logits_stride": "i32", "columns": "i32"},
        constants={
            "HAS_TOP_K": filters,
            "HAS_TOP_P": filters,
            "HAS_MIN_P": filters,
            "SEEDED": seeded,
            "PROBABILITIES": probabilities,
            "BLOCK": launch.block,
            "WAYS": launch.ways,
        },
        num_warps=launch.num_warps,
    )


AOT_CASES = (
    _case("fp32", 151_936, filters=True, probabilities=False),
    _case("bf16", 128_256, filters=True, probabilities=True),
    _case("fp32", 49_152, filters=False, probabilities=True),
    _case("bf16", 128_256, filters=True, probabilities=False, seeded=True),
)
