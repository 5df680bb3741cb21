"""From sampled ids to what a caller sees: text, stops, log-probabilities and times.

Answers "what happens between the sampler and the stream?": each sample is detokenized and
checked for stop strings as its tokens come, the n samples of a request are joined into one
output a step, and a stop string, which only the text can show, is reported back so that the
engine ends the request. Torch-free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from infra_lab.engine.detokenizer import IncrementalDetokenizer, Vocabulary
from infra_lab.engine.input_processor import TextTokenizer
from infra_lab.engine.stop_checker import StopChecker
from infra_lab.errors import InvalidRequestError
from infra_lab.outputs import CompletionOutput, RequestMetrics, RequestOutput
from infra_lab.sampling.grammar import CompiledGrammar
from infra_lab.sampling_params import MAX_SEED, SamplingParams
from infra_lab.step import TokenLogprobs


@dataclass(frozen=True, slots=True)
class ChildRequest:
    """One sample as the scheduler sees it: a request of its own, with n = 1."""

    request_id: str
    index: int
    sampling_params: SamplingParams


def child_requests(request_id: str, params: SamplingParams) -> list[ChildRequest]:
    """Fans a request out: itself for n = 1, else "id#0", "id#1", ... with seeds seed, seed + 1, ...

    The prompt's log-probabilities are the same for all, so only the first child computes them.
    """
    if params.num_samples == 1:
        return [ChildRequest(request_id, 0, params)]
    children = []
    logprobs = params.logprobs
    if params.num_samples > params.n and logprobs is None:
        logprobs = 0  # what the best are chosen by
    for index in range(params.num_samples):
        seed = None if params.seed is None else (params.seed + index) % (MAX_SEED + 1)
        prompt_logprobs = params.prompt_logprobs if index == 0 else None
        own = replace(
            params, n=1, best_of=None, seed=seed, logprobs=logprobs, prompt_logprobs=prompt_logprobs
        )
        children.append(ChildRequest(f"{request_id}#{index}", index, own))
    return children


@dataclass(slots=True)
class _Sample:
    """What one sample has produced, and how much of it the caller was given."""

    child: ChildRequest
    detokenizer: IncrementalDetokenizer | None
    stop_checker: StopChecker
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    score: float | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    num_given_chars: int = 0
    num_given_tokens: int = 0

    @property
    def params(self) -> SamplingParams:
        return self.child.sampling_params

    def add_token(self, token_id: int, logprobs: TokenLogprobs | None, shows_text: bool) -> bool:
        """Takes one token; returns whether it completed a stop string, which ends the sample."""
        self.token_ids.append(token_id)
        if logprobs is not None:
            self.logprobs.append(logprobs)
            self.cumulative_logprob += logprobs.logprob
        if self.detokenizer is not None and shows_text:
            self._show(self.detokenizer.append([token_id]))
        if self.stop_checker.matched is None:
            return False
        self.finish_reason, self.stop_reason = "stop", self.stop_checker.matched
        return True

    def finish(self, reason: str, stop_reason: str | int | None) -> None:
        """Shows what was held back; a stop string may turn up in it even now."""
        if self.detokenizer is not None:
            self._show(self.detokenizer.finish())
        self.finish_reason, self.stop_reason = reason, stop_reason
        if self.stop_checker.matched is None:
            self.text += self.stop_checker.flush()
        elif reason in ("stop", "length"):
            self.finish_reason, self.stop_reason = "stop", self.stop_checker.matched

    def _show(self, text: str) -> None:
        may_stop = len(self.token_ids) >= self.params.min_tokens
        self.text += self.stop_checker.append(text, may_stop=may_stop)

    @property
    def mean_logprob(self) -> float:
        return self.cumulative_logprob / max(1, len(self.token_ids))

    def take(self, index: int, reports_logprobs: bool) -> CompletionOutput:
        """The sample's state, with everything since the last call as what is new."""
        output = CompletionOutput(
            index=index,
            text=self.text,
            new_text=self.text[self.num_given_chars :],
            token_ids=list(self.token_ids),
            new_token_ids=self.token_ids[self.num_given_tokens :],
            logprobs=list(self.logprobs) if reports_logprobs else None,
            cumulative_logprob=self.cumulative_logprob if reports_logprobs else None,
            score=self.score,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )
        self.num_given_chars, self.num_given_tokens = len(self.text), len(self.token_ids)
        return output


@dataclass(slots=True)
class _Request:
    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    samples: list[_Sample]
    metrics: RequestMetrics
    prompt_logprobs: list[TokenLogprobs | None] | None
    num_cached_tokens: int = 0
    error: str | None = None

    @property
    def finished(self) -> bool:
        return all(sample.finish_reason is not None for sample in self.samples)

    @property
    def is_held_back(self) -> bool:
        """Which samples are the best shows only when all have ended."""
        return len(self.samples) > self.params.n and not self.finished

    def take(self) -> RequestOutput:
        samples = self.samples
        if len(samples) > self.params.n:
            ranked = sorted(samples, key=lambda sample: sample.mean_logprob, reverse=True)
            samples = ranked[: self.params.n]
        reports_logprobs = self.params.logprobs is not None
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=[sample.take(i, reports_logprobs) for i, sample in enumerate(samples)],
            finished=self.finished,
            metrics=replace(self.metrics),
            num_cached_tokens=self.num_cached_tokens,
            prompt_logprobs=None if self.prompt_logprobs is None else list(self.prompt_logprobs),
            error=self.error,
        )


class OutputProcessor:
    """Keeps every unfinished request's output; one `collect` a step hands out what is new.

    `token_ids` hold every sampled id up to and with the one that ended the sample: the tokens of
    a stop string and the EOS or stop token are among them, while the text leaves both out unless
    include_stop_str_in_output. Tokens that a step sampled beyond the end are dropped.

    Args:
        tokenizer: None gives empty texts and refuses stop strings.
    """

    def __init__(self, tokenizer: TextTokenizer | None) -> None:
        self._vocabulary = None if tokenizer is None else Vocabulary(tokenizer)
        self._requests: dict[str, _Request] = {}
        self._running: dict[str, tuple[_Request, _Sample]] = {}
        self._changed: dict[str, _Request] = {}
        self._groups: dict[str, _Request] = {}

    @property
    def num_unfinished_requests(self) -> int:
        return sum(not request.finished for request in self._requests.values())

    @property
    def has_news(self) -> bool:
        """Whether `collect` would return anything."""
        return any(not request.is_held_back for request in self._changed.values())

    def add_request(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        arrival_time_s: float,
        grammar: CompiledGrammar | None = None,
    ) -> list[ChildRequest]:
        """Registers a request and returns what the scheduler shall run, one child a sample.

        With a `grammar` a stop string ends a sample only behind a whole document.

        Raises InvalidRequestError for an id in use, or stop strings without a tokenizer.
        """
        if params.stop and self._vocabulary is None:
            raise InvalidRequestError(
                "stop strings need a tokenizer and this engine has none: use stop_token_ids instead"
            )
        children = child_requests(request_id, params)
        for name in (request_id, *(child.request_id for child in children)):
            if name in self._requests or name in self._running:
                raise InvalidRequestError(
                    f"request id {name!r} belongs to a request that has not ended: give another id"
                )
        ids = list(prompt_token_ids)
        samples = [self._new_sample(child, ids, grammar) for child in children]
        metrics = RequestMetrics(arrival_time_s)
        prompt_logprobs: list[TokenLogprobs | None] | None
        prompt_logprobs = None if params.prompt_logprobs is None else [None]
        request = _Request(request_id, prompt, ids, params, samples, metrics, prompt_logprobs)
        self._requests[request_id] = request
        if len(children) > 1:
            self._groups[request_id] = request
        self._running |= {sample.child.request_id: (request, sample) for sample in samples}
        return children

    def note_scheduled(self, child_id: str, now_s: float, num_cached_tokens: int = 0) -> None:
        """Records when a request first ran and what the prefix cache gave it, once."""
        if child_id not in self._running:
            return
        request, _ = self._running[child_id]
        if request.metrics.first_scheduled_time_s is None:
            request.metrics.first_scheduled_time_s = now_s
            request.num_cached_tokens = num_cached_tokens

    def note_preempted(self, child_id: str) -> None:
        if child_id in self._running:
            self._running[child_id][0].metrics.num_preemptions += 1

    def note_verified(self, verified: Mapping[str, tuple[int, int]]) -> None:
        """Counts each child's (drafted, accepted) tokens; over all samples of a request."""
        for child_id, (num_draft_tokens, num_accepted_tokens) in verified.items():
            if child_id in self._running:
                metrics = self._running[child_id][0].metrics
                metrics.num_draft_tokens += num_draft_tokens
                metrics.num_accepted_tokens += num_accepted_tokens

    def process(
        self,
        child_id: str,
        new_token_ids: Sequence[int],
        now_s: float,
        *,
        logprobs: Sequence[TokenLogprobs] = (),
        prompt_logprobs: Sequence[TokenLogprobs] = (),
        finish_reason: str | None = None,
        stop_reason: str | int | None = None,
        score: float | None = None,
    ) -> bool:
        """Takes what one step gave one child.

        Returns True when a stop string ended the sample while the engine still runs it: the engine
        must then finish that child. A child that has already ended, such as an aborted one whose
        last step was under way, is ignored.
        """
        if child_id not in self._running:
            return False
        request, sample = self._running[child_id]
        sample.score = score
        if request.prompt_logprobs is not None:
            request.prompt_logprobs += prompt_logprobs
        must_finish = self._add_tokens(sample, new_token_ids, logprobs, finish_reason)
        if sample.finish_reason is None and finish_reason is not None:
            sample.finish(finish_reason, stop_reason)
        if new_token_ids:
            _note_tokens(request, now_s)
        if sample.finish_reason is not None:
            del self._running[child_id]
        if new_token_ids or finish_reason is not None:
            self._changed[request.request_id] = request
        return must_finish

    def abort(self, request_id: str) -> list[str]:
        """Ends a request with finish_reason "abort"; returns the children that were running.

        An unknown id gives an empty list: the request may have ended a moment ago.
        """
        return self._end(request_id, "abort", None)

    def fail(self, request_id: str, error: str) -> list[str]:
        """Ends a request, named by its own id or a child's, that the engine has to give up."""
        return self._end(request_id, "error", error)

    def collect(self) -> list[RequestOutput]:
        """One output for each request that got something new since the last call, then forgets
        the finished ones."""
        outputs = [one.take() for one in self._changed.values() if not one.is_held_back]
        for output in outputs:
            if output.finished:
                del self._requests[output.request_id]
                self._groups.pop(output.request_id, None)
        self._changed = {}
        return outputs

    def children(self, request_id: str) -> list[str]:
        """The children of an unfinished request, in order."""
        return [sample.child.request_id for sample in self._requests[request_id].samples]

    def groups(self) -> dict[str, list[str]]:
        """Requests of several samples, with the children of each that have not ended."""
        return {
            name: [one.child.request_id for one in group.samples if one.finish_reason is None]
            for name, group in self._groups.items()
        }

    def note_kv_blocks(self, request_id: str, held: int, unshared: int) -> None:
        """Records the blocks that a request's samples hold together, and what they would hold
        without sharing, where they would hold the most."""
        metrics = self._requests[request_id].metrics
        if unshared > metrics.peak_kv_blocks_unshared:
            metrics.peak_kv_blocks, metrics.peak_kv_blocks_unshared = held, unshared

    def _new_sample(
        self,
        child: ChildRequest,
        prompt_token_ids: Sequence[int],
        grammar: CompiledGrammar | None,
    ) -> _Sample:
        params = child.sampling_params
        may_end_after = None if grammar is None else grammar.accepts
        stop_checker = StopChecker(params.stop, params.include_stop_str_in_output, may_end_after)
        if self._vocabulary is None:
            return _Sample(child, None, stop_checker)
        detokenizer = IncrementalDetokenizer(
            self._vocabulary, prompt_token_ids, params.skip_special_tokens
        )
        return _Sample(child, detokenizer, stop_checker)

    @staticmethod
    def _add_tokens(
        sample: _Sample,
        new_token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprobs],
        finish_reason: str | None,
    ) -> bool:
        """One token at a time, so that the end does not depend on how many a step brings."""
        entries: Sequence[TokenLogprobs | None] = logprobs
        if sample.params.logprobs is None:
            entries = [None] * len(new_token_ids)
        hides_last = finish_reason == "stop" and not sample.params.include_stop_str_in_output
        last = len(new_token_ids) - 1
        for position, (token_id, entry) in enumerate(zip(new_token_ids, entries, strict=True)):
            if sample.add_token(token_id, entry, shows_text=not (hides_last and position == last)):
                return finish_reason is None
        return False

    def _end(self, request_id: str, reason: str, error: str | None) -> list[str]:
        request = self._requests.get(request_id)
        if request is None and request_id in self._running:
            request = self._running[request_id][0]
        if request is None or request.finished:
            return []
        request.error = error
        self._changed[request.request_id] = request
        was_held_back = request.is_held_back
        ended = [sample for sample in request.samples if sample.finish_reason is None]
        for sample in ended:
            sample.finish(reason, None)
            del self._running[sample.child.request_id]
        if was_held_back:
            # Which are the best was not known yet: a sample that had ended is no answer either.
            for sample in request.samples:
                sample.finish_reason, sample.stop_reason = reason, None
        return [sample.child.request_id for sample in ended]


def _note_tokens(request: _Request, now_s: float) -> None:
    """Times of a request span its samples; its token count is the longest sample's, so that
    TPOT stays the pace of one stream."""
    metrics = request.metrics
    if metrics.first_token_time_s is None:
        metrics.first_token_time_s = now_s
    metrics.last_token_time_s = now_s
    metrics.num_output_tokens = max(len(sample.token_ids) for sample in request.samples)
