"""Refuses at once, with the reason, the requests that could never run.

Answers "what happens to a request that is too large?". Queued, it would wait for ever and
hold up everything behind it; so it is turned away at the door, alone.
"""

from __future__ import annotations

from infra_lab.cache.kv_cache_manager import KVCacheManager
from infra_lab.config import EngineConfig
from infra_lab.engine.request import Request
from infra_lab.errors import InvalidRequestError, about

# Without a floor, ever lower numbers would outrun every request that ages.
MIN_PRIORITY, MAX_PRIORITY = -1000, 1000


def check_admissible(
    request: Request, config: EngineConfig, kv_cache: KVCacheManager, max_model_len: int
) -> None:
    """Raise InvalidRequestError, naming the numbers, for a request that could never run."""
    with about("priority"):
        _check_priority(request, config)
    length = request.num_tokens
    name = f"request {request.request_id!r}"
    if length == 0:
        raise InvalidRequestError(f"{name} has an empty prompt: give at least one token")
    if length > max_model_len - 1:
        raise InvalidRequestError(
            f"{name} has a prompt of {length} tokens, but max_model_len is {max_model_len} and "
            f"one token must remain for the output: shorten the prompt to at most "
            f"{max_model_len - 1} tokens"
        )
    budget = request.sampling_params.kv_budget
    if budget is not None and not config.sparse_kv:
        raise InvalidRequestError(
            f"{name} has kv_budget={budget}, but this engine keeps every token: leave kv_budget "
            f"out, or start the engine with sparse_kv",
            "kv_budget",
        )
    kept = request.num_kept_tokens(length)
    if kept > kv_cache.capacity_tokens:
        raise InvalidRequestError(
            f"{name} has a prompt of {length} tokens, which needs "
            f"{kv_cache.num_blocks_for(kept)} KV blocks of {kv_cache.block_size} tokens, but "
            f"the pool has {kv_cache.num_usable_blocks}: shorten the prompt or enlarge the pool",
            "prompt",
        )
    if not config.enable_chunked_prefill and length > config.max_num_batched_tokens:
        raise InvalidRequestError(
            f"{name} has a prompt of {length} tokens, but a step computes at most "
            f"max_num_batched_tokens = {config.max_num_batched_tokens} and chunked prefill is "
            f"off: raise that number or enable chunked prefill"
        )


def _check_priority(request: Request, config: EngineConfig) -> None:
    priority, name = request.priority, f"request {request.request_id!r}"
    is_integer = isinstance(priority, int) and not isinstance(priority, bool)
    if not is_integer or not MIN_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidRequestError(
            f"{name} has priority {priority!r}: give an integer from {MIN_PRIORITY} to "
            f"{MAX_PRIORITY}, the lower the sooner"
        )
    if priority != 0 and config.scheduling_policy != "priority":
        raise InvalidRequestError(
            f"{name} has priority {priority}, but scheduling_policy is "
            f"{config.scheduling_policy!r}: leave the priority out or set scheduling_policy to "
            f"'priority'"
        )
