"""What the sampler remembers of one request between steps: all it needs and nothing more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from copy import copy

from infra_lab.sampling.grammar_state import GrammarState
from infra_lab.sampling_params import SamplingParams
from infra_lab.step import NewRequest


class SamplingState:
    """A request's parameters, the tokens that its penalties count, and where it stands in its
    document, if it must have a form.

    It outlives a preemption, so a resumed request samples as if nothing had happened.
    """

    def __init__(self, request: NewRequest, grammar: GrammarState | None = None) -> None:
        self.grammar = grammar
        self.params: SamplingParams = request.sampling_params
        self.seed = request.seed
        self.num_candidates = request.num_candidates
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.prompt_token_ids = request.prompt_token_ids
        self.output_counts: Counter[int] = Counter()
        self.num_output_tokens = 0
        self._unwanted_until_min_tokens = sorted(
            set(request.eos_token_ids) | set(self.params.stop_token_ids)
        )
        self.seen_token_ids: set[int] = (
            set(request.prompt_token_ids) if self.params.repetition_penalty != 1.0 else set()
        )

    @property
    def num_logprobs(self) -> int | None:
        """How many likeliest tokens to report of each sampled position; None for no report."""
        return self.num_candidates or self.params.logprobs

    def append(self, token_id: int) -> None:
        self.num_output_tokens += 1
        if self.grammar is not None:
            self.grammar.advance(token_id)
        if self.needs_counts:
            self.output_counts[token_id] += 1
            self.seen_token_ids.add(token_id)

    def after(self, token_ids: Iterable[int]) -> SamplingState:
        """What this would be once `token_ids` were out too; this one does not change."""
        later = copy(self)
        if self.grammar is not None:
            later.grammar = self.grammar.fork()
        if self.needs_counts:
            later.output_counts = self.output_counts.copy()
            later.seen_token_ids = self.seen_token_ids.copy()
        for token_id in token_ids:
            later.append(token_id)
        return later

    @property
    def is_at_an_end(self) -> bool:
        """Whether nothing may follow: its document has ended, or cannot be continued."""
        return self.grammar is not None and self.grammar.error is not None

    @property
    def needs_counts(self) -> bool:
        params = self.params
        return (
            params.repetition_penalty != 1.0
            or params.presence_penalty != 0.0
            or params.frequency_penalty != 0.0
        )

    @property
    def forbidden_token_ids(self) -> list[int]:
        """EOS and stop ids, while fewer than min_tokens tokens are out; a document has its own
        rule for where it may end."""
        if self.grammar is None and self.num_output_tokens < self.params.min_tokens:
            return self._unwanted_until_min_tokens
        return []

    @property
    def is_plain_greedy(self) -> bool:
        """Whether argmax over the raw logits is all there is to do."""
        return (
            self.params.temperature == 0.0
            and self.grammar is None
            and not self.needs_counts
            and not self.params.logit_bias
            and not self.forbidden_token_ids
        )
