"""The ragged batch of speculative decoding: where a request's draft tokens lie, and its outcome.

In vLLM's layout: the draft tokens of all requests one after the other, with their running counts
(`cu_num_draft_tokens`, without the leading 0), and a row of max_draft + 1 output tokens for each
request, filled up with -1. Shared by the verification of drawn and of greedy tokens.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernels.checks import require_dtype, require_shape
from kernels.errors import KernelInputError

IDS = (torch.int32, torch.int64)
MAX_DRAFT = 1023  # the positions of a request are one vector


@triton.jit
def draft_of_request(cu_num_draft_tokens, request, num_draft_tokens, max_draft):
    """Where a request's draft tokens start, and how many they are; never beyond the tensors."""
    start = tl.load(cu_num_draft_tokens + request - 1, mask=request > 0, other=0).to(tl.int64)
    end = tl.load(cu_num_draft_tokens + request).to(tl.int64)
    start = tl.minimum(tl.maximum(start, 0), num_draft_tokens)
    end = tl.minimum(tl.maximum(end, start), num_draft_tokens)
    return start, tl.minimum(end - start, max_draft).to(tl.int32)


@triton.jit
def store_outcome(
    output_ids, num_accepted, drafts, accepted, count, last, request, max_draft, POSITIONS
):
    """The accepted prefix, the token that follows it, and -1 from there on."""
    position = tl.arange(0, POSITIONS)
    ids = tl.where(position < accepted, drafts, -1)
    ids = tl.where(position == accepted, last, ids)
    place = output_ids + request.to(tl.int64) * (max_draft + 1) + position
    tl.store(place, ids, mask=position <= max_draft)
    tl.store(num_accepted + request, accepted)


class Verified(NamedTuple):
    """output_ids: int64 [requests, max_draft + 1]: accepted draft tokens, one more token, and -1.
    num_accepted: int32 [requests], the draft tokens accepted.
    """

    output_ids: torch.Tensor
    num_accepted: torch.Tensor


def check_requests(
    name: str,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    bonus_token_ids: torch.Tensor,
    max_draft: int,
) -> dict[str, torch.Tensor]:
    """The three contiguous, or KernelInputError."""
    require_dtype(name, "draft_token_ids", draft_token_ids, IDS)
    require_dtype(name, "cu_num_draft_tokens", cu_num_draft_tokens, IDS)
    require_dtype(name, "bonus_token_ids", bonus_token_ids, IDS)
    for key, tensor in (
        ("draft_token_ids", draft_token_ids),
        ("cu_num_draft_tokens", cu_num_draft_tokens),
    ):
        if tensor.dim() != 1:
            raise KernelInputError(
                f"{name}: {key} has shape {tuple(tensor.shape)}, wanted one dimension"
            )
    require_shape(name, "bonus_token_ids", bonus_token_ids, cu_num_draft_tokens.shape)
    if not 0 <= max_draft <= MAX_DRAFT:
        raise KernelInputError(f"{name}: max_draft is {max_draft}, wanted 0 to {MAX_DRAFT}")
    return {
        "draft_token_ids": draft_token_ids.contiguous(),
        "cu_num_draft_tokens": cu_num_draft_tokens.contiguous(),
        "bonus_token_ids": bonus_token_ids.contiguous(),
    }


def empty_outcome(requests: int, max_draft: int, device: torch.device) -> Verified:
    """For a kernel to fill."""
    return Verified(
        torch.empty(requests, max_draft + 1, dtype=torch.int64, device=device),
        torch.empty(requests, dtype=torch.int32, device=device),
    )
