"""How much of a request one step computes.

Answers "what is chunked prefill?": a prompt longer than what is left of a step's budget is split,
so that decodes go on beside it.
"""

from __future__ import annotations

from infra_lab.config import EngineConfig
from infra_lab.engine.request import Request
from infra_lab.step import ScheduledRequest


def chunk_size(num_remaining: int, budget: int, config: EngineConfig) -> int:
    """Tokens of the next step out of `num_remaining` that a request has not computed."""
    cap = config.long_prefill_token_threshold
    if cap and config.enable_chunked_prefill:
        num_remaining = min(num_remaining, cap)
    return min(num_remaining, budget)


def must_stay_whole(num_remaining: int, config: EngineConfig) -> bool:
    """Whether a request that comes in must have all its tokens computed in one step."""
    # A resumed request may have outgrown a whole step; it is split all the same, for it
    # would never run otherwise.
    fits_a_step = num_remaining <= config.max_num_batched_tokens
    return fits_a_step and not config.enable_chunked_prefill


def share_of(request: Request, num_new: int, block_ids: list[int]) -> ScheduledRequest:
    """A request's next `num_new` tokens as a part of a step."""
    start = request.num_computed_tokens
    end = start + num_new
    return ScheduledRequest(
        request_id=request.request_id,
        token_ids=request.all_token_ids[start:end],
        num_computed_tokens=start,
        block_ids=block_ids,
        samples=end == request.num_tokens,
        prompt_logprobs_from=request.prompt_logprobs_from(start, end),
        is_prompt_chunk=start < request.num_prompt_tokens,
        kv_budget=request.sampling_params.kv_budget,
    )
