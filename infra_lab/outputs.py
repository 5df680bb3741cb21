"""What the engine gives back: one RequestOutput a request, one CompletionOutput a sample."""

from __future__ import annotations

from dataclasses import dataclass, field

from infra_lab.step import TokenLogprobs


@dataclass(slots=True)
class CompletionOutput:
    """One sample of a request.

    Attributes:
        index: which of the `n` samples.
        text: all text so far; safe to show (no broken UTF-8, no half stop string).
        new_text: what `text` gained since the last output of this sample; the pieces
            concatenate to `text`.
        token_ids: all sampled ids so far.
        finish_reason: None while running, then "stop", "length", "abort" or "error".
        stop_reason: the stop string or stop token id that ended it; None for EOS or length.
        logprobs: one entry per token id where asked for.
        score: of a beam: cumulative_logprob / (output tokens) ** length_penalty.
    """

    index: int
    text: str = ""
    new_text: str = ""
    token_ids: list[int] = field(default_factory=list)
    new_token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    cumulative_logprob: float | None = None
    score: float | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


@dataclass(slots=True)
class RequestMetrics:
    """Times on one monotonic clock, in seconds; None until they happen.

    queue_time_s: arrival to first scheduled. ttft_s: arrival to first token.
    tpot_s: mean time per output token after the first.
    peak_kv_blocks: of a request with several samples, the KV blocks that they held together when
        they would have held the most without sharing, which is peak_kv_blocks_unshared.
    num_draft_tokens, num_accepted_tokens: drafted tokens that were verified, and those that stood;
    an accepted one may still lie behind the end of the output.
    """

    arrival_time_s: float
    first_scheduled_time_s: float | None = None
    first_token_time_s: float | None = None
    last_token_time_s: float | None = None
    num_output_tokens: int = 0
    num_preemptions: int = 0
    peak_kv_blocks: int = 0
    peak_kv_blocks_unshared: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0

    @property
    def queue_time_s(self) -> float | None:
        if self.first_scheduled_time_s is None:
            return None
        return self.first_scheduled_time_s - self.arrival_time_s

    @property
    def ttft_s(self) -> float | None:
        if self.first_token_time_s is None:
            return None
        return self.first_token_time_s - self.arrival_time_s

    @property
    def tpot_s(self) -> float | None:
        if (
            self.num_output_tokens < 2
            or self.first_token_time_s is None
            or self.last_token_time_s is None
        ):
            return None
        return (self.last_token_time_s - self.first_token_time_s) / (self.num_output_tokens - 1)


@dataclass(slots=True)
class RequestOutput:
    """The state of one request after a step.

    `prompt_logprobs` has one entry per prompt token, None for the first. `error` is set,
    and `outputs` carry finish_reason "error", when the engine had to give the request up.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    num_cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    error: str | None = None
