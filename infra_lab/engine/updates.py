"""What the scheduler tells the engine after a step."""

from __future__ import annotations

from dataclasses import dataclass, field

from infra_lab.engine.request import Request
from infra_lab.step import TokenLogprobs


@dataclass(frozen=True, slots=True)
class RequestUpdate:
    """What one step brought for one request.

    `new_token_ids` ends with the token that stopped the request, if one did; `logprobs` has
    one entry for each of them where asked for. `prompt_logprobs` continues where the last
    update's ended: over all updates, one entry per prompt token but the first.
    """

    request: Request
    new_token_ids: list[int]
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """The state after the last call of `schedule()`, and what that call did.

    `prefix_hit_tokens`, `evictions` and `preempted_request_ids` count that one step.
    """

    running: int
    waiting: int
    blocks_used: int
    blocks_cached: int
    blocks_free: int
    prefix_hit_tokens: int = 0
    evictions: int = 0
    preempted_request_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PrefixCacheStats:
    """Requests admitted (a preempted one again), their tokens, and those that were cached."""

    requests: int = 0
    tokens: int = 0
    hit_tokens: int = 0

    @property
    def hit_rate(self) -> float:
        return self.hit_tokens / self.tokens if self.tokens else 0.0

    def after(self, tokens: int, hit_tokens: int) -> PrefixCacheStats:
        """With one more admission."""
        return PrefixCacheStats(
            self.requests + 1, self.tokens + tokens, self.hit_tokens + hit_tokens
        )
