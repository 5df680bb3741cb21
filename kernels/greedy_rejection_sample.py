"""The verification of speculative decoding for greedy requests: accept what argmax would have said.

At temperature 0 the target's distribution is certain, and the rule of `rejection_sample` becomes
equality: a draft token stands while it is the target's likeliest, the first other one is
replaced by the likeliest. Answers "does greedy speculation change the output?": never, whatever
the draft.

Every row of logits is read once, by a program of its own (the fused alternative, a program for
each request, would leave most of a GPU idle); then a program for each request compares.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.checks import FLOATS, as_rows, require_dtype, require_runnable
from kernels.draft_requests import (
    Verified,
    check_requests,
    draft_of_request,
    empty_outcome,
    store_outcome,
)
from kernels.errors import KernelInputError
from kernels.testing.cases import AotCase
from kernels.token_order import NO_TOKEN


@triton.jit
def argmax_kernel(logits, likeliest, logits_stride, columns, BLOCK: tl.constexpr):
    """One program finds the lowest id of the largest logit of one row; NaN counts as -inf."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * logits_stride
    column = tl.arange(0, BLOCK)
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    place = tl.full([BLOCK], NO_TOKEN, tl.int32)
    for start in range(0, columns, BLOCK):
        here = start + column
        values = tl.load(logits + here, mask=here < columns, other=float("-inf")).to(tl.float32)
        # Each lane keeps its largest, and of equal ones the first that it met.
        place = tl.where(values > largest, here, place)
        largest = tl.where(values > largest, values, largest)
    token = tl.min(tl.where(largest == tl.max(largest, 0), place, NO_TOKEN), 0)
    # Where no logit is above -inf nothing was met.
    tl.store(likeliest + row, tl.where(token == NO_TOKEN, 0, token).to(tl.int64))


@triton.jit(do_not_specialize=["num_draft_tokens"])
def greedy_rejection_sample_kernel(
    draft_token_ids,
    cu_num_draft_tokens,
    likeliest,
    bonus_token_ids,
    output_ids,
    num_accepted,
    num_draft_tokens,
    max_draft,
    POSITIONS: tl.constexpr,
):
    """One program verifies one request; POSITIONS > max_draft."""
    request = tl.program_id(0)
    start, count = draft_of_request(cu_num_draft_tokens, request, num_draft_tokens, max_draft)
    position = tl.arange(0, POSITIONS)
    real = position < count
    drafts = tl.load(draft_token_ids + start + position, mask=real, other=-1).to(tl.int64)
    wanted = tl.load(likeliest + start + position, mask=real, other=-1)
    accepted = tl.min(tl.where(real & (drafts != wanted), position, count))
    if accepted == count:
        last = tl.load(bonus_token_ids + request).to(tl.int64)
    else:
        last = tl.load(likeliest + start + accepted)
    store_outcome(
        output_ids, num_accepted, drafts, accepted, count, last, request, max_draft, POSITIONS
    )


@dataclass(frozen=True)
class Launch:
    """block: tokens of a tile of argmax. positions: draft tokens and the one after them."""

    block: int
    positions: int
    num_warps: int


def choose_launch(vocabulary: int, max_draft: int) -> Launch:
    """16 tokens a thread, two 128-bit loads of bf16."""
    block = min(8192, max(512, triton.next_power_of_2(vocabulary)))
    return Launch(block, triton.next_power_of_2(max_draft + 1), num_warps=block // 512)


def greedy_rejection_sample(
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    target_logits: torch.Tensor,
    bonus_token_ids: torch.Tensor,
    *,
    max_draft: int,
) -> Verified:
    """Verifies draft tokens so that what comes out is what greedy decoding would have given.

    draft_token_ids: int32 or int64 [num_draft], all requests' one after the other.
    cu_num_draft_tokens: int32 or int64 [requests], where each request's end in it.
    target_logits: fp16, bf16 or fp32 [num_draft, vocabulary], of any row stride; of equal ones
    the lowest id counts, NaN as -inf, and in a row of nothing else token 0.
    bonus_token_ids: int32 or int64 [requests], the likeliest behind the last draft token.
    max_draft: the most draft tokens of a request; what a request has beyond is not looked at.

    Returns output ids (accepted tokens, then the likeliest or the bonus, then -1) and counts.
    Raises KernelInputError for tensors that do not fit.
    """
    name = "greedy_rejection_sample"
    given = check_requests(name, draft_token_ids, cu_num_draft_tokens, bonus_token_ids, max_draft)
    num_draft, requests = len(draft_token_ids), len(cu_num_draft_tokens)
    require_dtype(name, "target_logits", target_logits, FLOATS)
    shape = tuple(target_logits.shape)
    if len(shape) != 2 or shape[0] != num_draft or shape[1] < 1:
        raise KernelInputError(
            f"{name}: target_logits has shape {shape}, wanted [{num_draft}, vocabulary]"
        )
    as_rows(name, "target_logits", target_logits)
    require_runnable(name, target_logits=target_logits, **given)
    outcome = empty_outcome(requests, max_draft, draft_token_ids.device)
    if requests == 0:
        return outcome
    launch = choose_launch(shape[1], max_draft)
    likeliest = torch.empty(num_draft, dtype=torch.int64, device=target_logits.device)
    if num_draft > 0:
        argmax_kernel[(num_draft,)](
            target_logits,
            likeliest,
            target_logits.stride(0),
            shape[1],
            BLOCK=launch.block,
            num_warps=launch.num_warps,
        )
    greedy_rejection_sample_kernel[(requests,)](
        given["draft_token_ids"],
        given["cu_num_draft_tokens"],
        likeliest,
        given["bonus_token_ids"],
        *outcome,
        num_draft,
        max_draft,
        POSITIONS=launch.positions,
        num_warps=1,
    )
    return outcome


def greedy_rejection_sample_reference(
    draft_token_ids: torch.Tensor, target_logits: torch.Tensor, bonus_token_id: int
) -> list[int]:
    """The same of one request, token after token."""
    output: list[int] = []
    for token, logits in zip(draft_token_ids.tolist(), target_logits, strict=True):
        output.append(int((logits == logits.max()).nonzero()[0]))
        if output[-1] != token:
            return output
    return [*output, bonus_token_id]


def _argmax_case(dtype: str, vocabulary: int) -> AotCase:
    launch = choose_launch(vocabulary, 1)
    return AotCase(
        kernel="argmax",
        config=f"{dtype} vocabulary={vocabulary} block={launch.block}",
        function=argmax_kernel,
        arguments={
            "logits": f"*{dtype}",
            "likeliest": "*i64",
            "logits_stride": "i32",
            "columns": "i32",
        },
        constants={"BLOCK": launch.block},
        num_warps=launch.num_warps,
    )


def _case(max_draft: int) -> AotCase:
    ids = ("draft_token_ids", "likeliest", "bonus_token_ids", "output_ids")
    return AotCase(
        kernel="greedy_rejection_sample",
        config=f"max_draft={max_draft}",
        function=greedy_rejection_sample_kernel,
        arguments={
            **dict.fromkeys(ids, "*i64"),
            "cu_num_draft_tokens": "*i32",
            "num_accepted": "*i32",
            "num_draft_tokens": "i32",
            "max_draft": "i32",
        },
        constants={"POSITIONS": choose_launch(1, max_draft).positions},
        num_warps=1,
        any_alignment=frozenset({"num_draft_tokens", "max_draft"}),
    )


AOT_CASES = (_argmax_case("bf16", 151_936), _argmax_case("fp32", 49_152), _case(5))
