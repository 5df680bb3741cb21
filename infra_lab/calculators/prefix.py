"""What a prefix cache saves: whole blocks only, and never the prompt's last token.

Answers "1500 of 2000 tokens are cached: how many are computed?": 93 whole blocks of 16 are 1488
tokens, so 512. A prompt that is cached from end to end still computes its last block's tokens or,
where block and prompt end together, a block: logits come from the last token. Source: vLLM,
docs/design/prefix_caching.md and v1/core/kv_cache_manager.py (max_cache_hit_length).
"""

from __future__ import annotations

from collections.abc import Sequence

from infra_lab.calculators.checks import require_count, require_share
from infra_lab.config import DEFAULT_BLOCK_SIZE
from infra_lab.errors import UsageError


def hit_tokens(num_shared: int, num_prompt: int, block_size: int = DEFAULT_BLOCK_SIZE) -> int:
    """Prompt tokens that need no computing: floor(min(shared, prompt - 1) / block) x block."""
    require_count("num_prompt", num_prompt)
    require_count("num_shared", num_shared, 0)
    require_count("block_size", block_size)
    if num_shared > num_prompt:
        raise UsageError(f"{num_shared} shared tokens of a prompt of {num_prompt}: too many")
    return min(num_shared, num_prompt - 1) // block_size * block_size


def computed_tokens(num_shared: int, num_prompt: int, block_size: int = DEFAULT_BLOCK_SIZE) -> int:
    """Prompt tokens that are computed despite the hit."""
    return num_prompt - hit_tokens(num_shared, num_prompt, block_size)


def saved_share(num_prefix: int, suffixes: Sequence[int], block_size: int = 1) -> float:
    """Share of the prompt tokens that requests with one prefix need not compute; the first one
    computes it. Tends to prefix / (prefix + mean suffix) as requests get more."""
    require_count("num_prefix", num_prefix, 0)
    if not suffixes:
        raise UsageError("no requests: give at least one suffix length")
    prompts = [num_prefix + suffix for suffix in suffixes]
    saved = sum(hit_tokens(num_prefix, prompt, block_size) for prompt in prompts[1:])
    return saved / sum(prompts)


def prefill_speedup(prefix_share: float) -> float:
    """1 / (1 - p): 2, 5 and 10 times at 50, 80 and 90 %; attention to the prefix is left out."""
    require_share("prefix_share", prefix_share)
    if prefix_share == 1:
        raise UsageError("prefix_share must be below 1: the last token is always computed")
    return 1 / (1 - prefix_share)


def memory_saved_share(prefix_share: float, num_requests: int) -> float:
    """Of the cache of requests that run at once and share a prefix: p (1 - 1 / N)."""
    require_share("prefix_share", prefix_share)
    require_count("num_requests", num_requests)
    return prefix_share * (1 - 1 / num_requests)
