"""The verification of speculative decoding: which draft tokens stand, and what follows them.

Leviathan, Kalman and Matias 2023, algorithm 1; Chen et al. 2023, algorithm 2. A draft token x,
drawn from q, is accepted with probability min(1, p(x) / q(x)), p being the target's distribution
there. The first one rejected is replaced by a token drawn from max(p - q, 0), normalised, and
what follows it is dropped; if all stand, the bonus token, which the target gave after the last,
is appended.

Answers "why is the output distributed exactly as the target's?": y comes out as the draft with
probability min(p(y), q(y)), and as the replacement with the probability of any rejection,
sum max(p - q, 0), times max(p(y) - q(y), 0) / sum max(p - q, 0); together p(y).

One program does a request: it reads one p and one q for each draft token, and only where a token
was rejected one row of the vocabulary of each, at most twice, the second time up to the token
that is drawn. Rows of accepted tokens are not read.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.checks import as_rows, require_dtype, require_runnable, require_shape
from kernels.draft_requests import (
    Verified,
    check_requests,
    draft_of_request,
    empty_outcome,
    store_outcome,
)
from kernels.errors import KernelInputError
from kernels.testing.cases import AotCase
from kernels.token_order import NO_TOKEN, walk

MAX_VOCABULARY = 2**24
LAST_BELOW_ONE = tl.constexpr(1.0 - 2.0**-24)


@triton.jit
def load_residual(target, draft, column, columns, drafted, HAS_DRAFT: tl.constexpr):
    """p, and max(p - q, 0); NaN counts as 0."""
    inside = column < columns
    p = tl.load(target + column, mask=inside, other=0.0)
    if HAS_DRAFT:
        q = tl.load(draft + column, mask=inside, other=0.0)
    else:
        q = tl.where(column == drafted, 1.0, 0.0)
    return tl.where(p > 0.0, p, 0.0), tl.where(p > q, p - q, 0.0)


@triton.jit
def draw_replacement(
    target, draft, columns, drafted, uniform, HAS_DRAFT: tl.constexpr, BLOCK: tl.constexpr
):
    """A token from max(p - q, 0), lowest id first; from p where rounding left nothing of it."""
    column = tl.arange(0, BLOCK)[None, :]
    all_p = tl.zeros([1, BLOCK], tl.float32)
    residuals = tl.zeros([1, BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        p, mass = load_residual(target, draft, start + column, columns, drafted, HAS_DRAFT)
        all_p += p
        residuals += mass
    whole = tl.sum(residuals)
    from_p = whole == 0.0
    whole = tl.where(from_p, tl.sum(all_p), whole)
    before, token, last, start = 0.0, NO_TOKEN, 0, 0
    while (start < columns) & (token == NO_TOKEN):
        here = start + column
        p, mass = load_residual(target, draft, here, columns, drafted, HAS_DRAFT)
        mass = tl.where(from_p, p, mass)
        before, token, last = walk(mass, here, before, whole * uniform, token, last)
        start += BLOCK
    return tl.where(token == NO_TOKEN, last, token)


@triton.jit(do_not_specialize=["num_draft_tokens"])
def rejection_sample_kernel(
    draft_token_ids,
    cu_num_draft_tokens,
    draft_probabilities,
    target_probabilities,
    bonus_token_ids,
    uniform,
    replacement_uniform,
    output_ids,
    num_accepted,
    draft_stride,
    target_stride,
    num_draft_tokens,
    columns,
    max_draft,
    HAS_DRAFT: tl.constexpr,
    POSITIONS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program verifies one request; POSITIONS > max_draft."""
    request = tl.program_id(0)
    start, count = draft_of_request(cu_num_draft_tokens, request, num_draft_tokens, max_draft)
    position = tl.arange(0, POSITIONS)
    real = position < count
    row = start + position
    drafts = tl.load(draft_token_ids + row, mask=real, other=-1).to(tl.int64)
    known = real & (drafts >= 0) & (drafts < columns)
    p = tl.load(target_probabilities + row * target_stride + drafts, mask=known, other=0.0)
    if HAS_DRAFT:
        q = tl.load(draft_probabilities + row * draft_stride + drafts, mask=known, other=0.0)
    else:
        q = tl.full([POSITIONS], 1.0, tl.float32)
    # u < p / q without the division; strictly, so that no u, not even 0, accepts a p of 0. The
    # product may be rounded up to q, so p >= q is asked for by itself.
    u = tl.load(uniform + row, mask=real, other=0.0)
    accept = known & (p > 0.0) & ((p >= q) | (u * q < p))
    accepted = tl.min(tl.where(real & (accept == 0), position, count))
    if accepted == count:
        last = tl.load(bonus_token_ids + request).to(tl.int64)
    else:
        rejected = start + accepted
        drafted = tl.load(draft_token_ids + rejected).to(tl.int64)
        drafted = tl.where((drafted >= 0) & (drafted < columns), drafted, -1).to(tl.int32)
        last = draw_replacement(
            target_probabilities + rejected * target_stride,
            draft_probabilities + rejected * draft_stride,
            columns,
            drafted,
            tl.minimum(tl.maximum(tl.load(replacement_uniform + request), 0.0), LAST_BELOW_ONE),
            HAS_DRAFT,
            BLOCK,
        ).to(tl.int64)
    store_outcome(
        output_ids, num_accepted, drafts, accepted, count, last, request, max_draft, POSITIONS
    )


@dataclass(frozen=True)
class Launch:
    """block: tokens of a tile. positions: draft tokens and the one after them, a power of two."""

    block: int
    positions: int
    num_warps: int


def choose_launch(vocabulary: int, max_draft: int) -> Launch:
    """8 tokens a thread, of p and of q."""
    block = min(4096, max(256, triton.next_power_of_2(vocabulary)))
    return Launch(block, triton.next_power_of_2(max_draft + 1), num_warps=block // 256)


def rejection_sample(
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    draft_probabilities: torch.Tensor | None,
    target_probabilities: torch.Tensor,
    bonus_token_ids: torch.Tensor,
    *,
    max_draft: int,
    uniform: torch.Tensor,
    replacement_uniform: torch.Tensor,
) -> Verified:
    """Verifies draft tokens so that what comes out is distributed as the target's tokens.

    draft_token_ids: int32 or int64 [num_draft], all requests' one after the other.
    cu_num_draft_tokens: int32 or int64 [requests], where each request's end in it.
    draft_probabilities: fp32 [num_draft, vocabulary] that the draft tokens were drawn from, or
    None for a draft that is certain of its token (n-grams, greedy).
    target_probabilities: fp32 [num_draft, vocabulary] that the target would draw from, filters
    and temperature included (`sample(..., return_probabilities=True)`); one-hot where greedy.
    bonus_token_ids: int32 or int64 [requests], drawn by the target behind the last draft token.
    max_draft: the most draft tokens of a request; what a request has beyond is not looked at.
    uniform: fp32 [num_draft] in [0, 1), one for each draft token. replacement_uniform: fp32
    [requests] in [0, 1). Both are independent of those that drew the draft tokens.

    Returns output ids (accepted tokens, then the replacement or the bonus, then -1) and counts.
    A draft token that the target gives no probability, or a NaN, or that is none of the
    vocabulary, is rejected. The replacement is drawn lowest id first, in fp32 sums; where p does
    not exceed q anywhere (which rounding alone can bring about) it is drawn from p.
    Raises KernelInputError for tensors that do not fit.
    """
    name = "rejection_sample"
    given = check_requests(name, draft_token_ids, cu_num_draft_tokens, bonus_token_ids, max_draft)
    num_draft, requests = len(draft_token_ids), len(cu_num_draft_tokens)
    if target_probabilities.dim() != 2 or not 1 <= target_probabilities.shape[1] <= MAX_VOCABULARY:
        raise KernelInputError(
            f"{name}: target_probabilities has shape {tuple(target_probabilities.shape)}, wanted "
            f"[draft tokens, vocabulary] with a vocabulary of 1 to {MAX_VOCABULARY}"
        )
    columns = target_probabilities.shape[1]
    wanted = {
        "target_probabilities": (target_probabilities, (num_draft, columns)),
        "draft_probabilities": (draft_probabilities, (num_draft, columns)),
        "uniform": (uniform, (num_draft,)),
        "replacement_uniform": (replacement_uniform, (requests,)),
    }
    for key, (tensor, shape) in wanted.items():
        if tensor is None:
            continue
        require_dtype(name, key, tensor, (torch.float32,))
        require_shape(name, key, tensor, shape)
        given[key] = tensor.contiguous() if tensor.dim() == 1 else as_rows(name, key, tensor)
    require_runnable(name, **given)
    outcome = empty_outcome(requests, max_draft, draft_token_ids.device)
    if requests == 0:
        return outcome
    drafts = given.get("draft_probabilities", target_probabilities)
    launch = choose_launch(columns, max_draft)
    rejection_sample_kernel[(requests,)](
        given["draft_token_ids"],
        given["cu_num_draft_tokens"],
        drafts,
        target_probabilities,
        given["bonus_token_ids"],
        given["uniform"],
        given["replacement_uniform"],
        *outcome,
        drafts.stride(0),
        target_probabilities.stride(0),
        num_draft,
        columns,
        max_draft,
        HAS_DRAFT=draft_probabilities is not None,
        POSITIONS=launch.positions,
        BLOCK=launch.block,
        num_warps=launch.num_warps,
    )
    return outcome


def rejection_sample_reference(
    draft_token_ids: torch.Tensor,
    draft_probabilities: torch.Tensor | None,
    target_probabilities: torch.Tensor,
    bonus_token_id: int,
    uniform: torch.Tensor,
    replacement_uniform: float,
) -> list[int]:
    """The same of one request, token after token, in the dtype of its probabilities."""
    output: list[int] = []
    for place, token in enumerate(draft_token_ids.tolist()):
        p = target_probabilities[place]
        q = torch.zeros_like(p)
        q[token] = 1
        q = q if draft_probabilities is None else draft_probabilities[place]
        if p[token] > 0 and uniform[place] * q[token] < p[token]:
            output.append(token)
            continue
        residual = (p - q).clamp(min=0)
        residual = residual if residual.sum() > 0 else p
        upto = residual.cumsum(0)
        return [*output, int((upto > replacement_uniform * upto[-1]).nonzero()[0])]
    return [*output, bonus_token_id]


def _case(vocabulary: int, max_draft: int, *, has_draft: bool) -> AotCase:
    launch = choose_launch(vocabulary, max_draft)
    probabilities = dict.fromkeys(("draft_probabilities", "target_probabilities"), "*fp32")
    ids = dict.fromkeys(("draft_token_ids", "bonus_token_ids", "output_ids"), "*i64")
    uniforms = dict.fromkeys(("uniform", "replacement_uniform"), "*fp32")
    counts = {"cu_num_draft_tokens": "*i32", "num_accepted": "*i32"}
    strides = dict.fromkeys(("draft_stride", "target_stride"), "i32")
    sizes = dict.fromkeys(("num_draft_tokens", "columns", "max_draft"), "i32")
    return AotCase(
        kernel="rejection_sample",
        config=f"vocabulary={vocabulary} max_draft={max_draft}{'' if has_draft else ' certain'}",
        function=rejection_sample_kernel,
        arguments={**probabilities, **ids, **uniforms, **counts, **strides, **sizes},
        constants={"HAS_DRAFT": has_draft, "POSITIONS": launch.positions, "BLOCK": launch.block},
        num_warps=launch.num_warps,
        any_alignment=frozenset({"num_draft_tokens", "max_draft"}),
    )


AOT_CASES = (
    _case(151_936, 5, has_draft=True),
    _case(128_256, 15, has_draft=False),
)
