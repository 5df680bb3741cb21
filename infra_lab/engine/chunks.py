"""How much of a request one step computes.

Answers "what is chunked prefill?": a prompt longer than what is left of a step's budget is split,
so that decodes go on beside it.
"""

from __future__ import annotations

from infra_lab.config import EngineConfig


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
