"""The loop that turns requests into tokens: schedule, execute, update, over and over.

Answers "what does an inference engine do in one step?". It owns no policy and no tensors:
the scheduler decides, the worker computes, the output processor makes text. Single-threaded:
whoever calls `step` drives it.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from pathlib import Path

from infra_lab.config import EngineConfig
from infra_lab.engine.admission import check_admissible
from infra_lab.engine.beam_search import BeamGroup, beam_group
from infra_lab.engine.event_log import EventLog, RequestArrived
from infra_lab.engine.executor import Executor
from infra_lab.engine.input_processor import InputProcessor, ProcessedInput
from infra_lab.engine.lora_registry import LoRARegistry
from infra_lab.engine.output_processor import OutputProcessor
from infra_lab.engine.request import Request, RequestStatus, cache_keys
from infra_lab.engine.scheduler import Scheduler
from infra_lab.engine.speculation import Speculation
from infra_lab.engine.step_log import finished_requests, step_event
from infra_lab.engine.updates import RequestUpdate
from infra_lab.errors import InvalidRequestError, UsageError
from infra_lab.outputs import RequestOutput
from infra_lab.sampling_params import BeamSearchParams, SamplingParams
from infra_lab.step import SchedulerOutput

logger = logging.getLogger(__name__)


class EngineCore:
    """Runs any number of requests over one model.

    Args:
        eos_token_ids: ids that end a request unless it ignores them.
        event_log: gets a record of every arrival, step and end; None keeps none.
        lora: the adapters that requests may name; None refuses them all.
        speculation: drafts tokens between steps; None drafts none.
    """

    def __init__(
        self,
        config: EngineConfig,
        scheduler: Scheduler,
        executor: Executor,
        input_processor: InputProcessor,
        output_processor: OutputProcessor,
        eos_token_ids: Sequence[int] = (),
        event_log: EventLog | None = None,
        lora: LoRARegistry | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        self.config = config
        self.scheduler = scheduler
        self.executor = executor
        self.speculation = speculation
        self.event_log = EventLog(capacity=0) if event_log is None else event_log
        self.lora = lora
        self._input_processor = input_processor
        self._output_processor = output_processor
        self._eos_token_ids = frozenset(eos_token_ids)
        self._requests: dict[str, Request] = {}
        self._beam_groups: dict[str, BeamGroup] = {}
        self._random = random.Random(config.seed)
        self._num_steps = 0

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether `step` still has work or outputs to hand out."""
        return self.scheduler.has_unfinished_requests or self._output_processor.has_news

    def validate(
        self,
        prompt: str | Sequence[int],
        sampling_params: SamplingParams | BeamSearchParams | None = None,
        priority: int = 0,
        lora: str | None = None,
    ) -> None:
        """Raises InvalidRequestError exactly when `add_request` would refuse this prompt."""
        self._digest_of(lora)
        if isinstance(sampling_params, BeamSearchParams):
            self._beam_group("(unnamed)", prompt, sampling_params, None, 0.0, priority)
            return
        processed = self._input_processor.process(prompt, sampling_params)
        params = processed.sampling_params
        self._check(Request("(unnamed)", processed.prompt_token_ids, params, priority=priority))

    def add_request(
        self,
        request_id: str,
        prompt: str | Sequence[int],
        sampling_params: SamplingParams | BeamSearchParams | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        lora: str | None = None,
    ) -> None:
        """Queues a prompt (text or token ids); its outputs come out of `step`.

        Args:
            request_id: any name that no unfinished request has.
            sampling_params: with BeamSearchParams there is one output, when the search has ended.
            cache_salt: requests share cached prefixes only with those of the same salt.
            priority: the lower goes first; other than 0 only under scheduling_policy "priority".
            lora: name of a loaded adapter, see `load_lora`; None is the base model.

        Raises:
            InvalidRequestError: this request can never run; nothing else is affected.
        """
        arrival = time.monotonic()
        digest = self._digest_of(lora)
        if isinstance(sampling_params, BeamSearchParams):
            self._add_beam_search(
                request_id, prompt, sampling_params, cache_salt, arrival, priority, digest
            )
            return
        processed = self._input_processor.process(prompt, sampling_params)
        params, token_ids = processed.sampling_params, processed.prompt_token_ids
        self._check(Request(request_id, token_ids, params, priority=priority))
        children = self._output_processor.add_request(
            request_id, processed.prompt, token_ids, params, arrival, processed.grammar
        )
        leader_id = None
        for child in children:
            request = Request(
                request_id=child.request_id,
                prompt_token_ids=token_ids,
                sampling_params=child.sampling_params,
                seed=self._seed_of(child.sampling_params),
                eos_token_ids=self._eos_token_ids,
                arrival_time=arrival,
                cache_salt=cache_salt,
                priority=priority,
                lora=digest,
            )
            self.scheduler.add_request(request, leader_id)
            self._requests[child.request_id] = request
            leader_id = leader_id or child.request_id
        if self.event_log.enabled:
            self.event_log.append(
                RequestArrived(arrival, request_id, len(token_ids), params.max_tokens, params.n)
            )

    def offload(
        self,
        prompt: str | Sequence[int],
        cache_salt: str | None = None,
        lora: str | None = None,
    ) -> int:
        """Moves what the cache has of an idle conversation to the swap space, out of the way of
        others; a later request that begins with these tokens finds it there.

        Args:
            prompt: the conversation so far, prompts and answers, as text or token ids.
            cache_salt, lora: those that its requests came with.

        Returns:
            How many of its tokens are in the swap space now: whole blocks only.

        Raises:
            UsageError: the engine has no swap space, or no prefix cache.
            InvalidRequestError: `prompt` could be no request's.
        """
        space, kv_cache = self.scheduler.swap_space, self.scheduler.kv_cache
        if space is None or not kv_cache.enable_prefix_caching:
            raise UsageError(
                "there is nowhere to offload to: set swap_space_bytes, and leave "
                "enable_prefix_caching on"
            )
        token_ids = self._input_processor.token_ids(prompt)
        keys = cache_keys(cache_salt, self._digest_of(lora))
        return space.offload(kv_cache.new_chain(keys), token_ids)

    def load_lora(self, name: str, path: str | Path) -> None:
        """Makes a PEFT adapter known under a name that requests may give as `lora`.

        Raises UsageError for a name in use or too many adapters, another InfraLabError for an
        adapter that cannot be used; in either case nothing has changed.
        """
        self._adapters().load(name, path)

    def unload_lora(self, name: str) -> None:
        """Forgets an adapter's name at once, and the adapter when the last request that uses it
        has ended. Raises UsageError for a name that is not loaded."""
        self._adapters().unload(name, {request.lora for request in self._requests.values()})

    def abort(self, request_id: str) -> bool:
        """Ends a request and all its samples; its last output, with finish_reason "abort",
        comes out of the next `step`. False if it is unknown or has ended."""
        children = self._output_processor.abort(request_id)
        for child_id in children:
            self._drop(child_id, RequestStatus.FINISHED_ABORTED)
        self._drop_beams(request_id)
        return bool(children)

    def step(self) -> list[RequestOutput]:
        """Computes one step; returns an output for each request that got something new.

        A failure while computing ends the requests of that step with finish_reason "error"
        and is logged; the engine goes on with the others.
        """
        if self.scheduler.has_unfinished_requests:
            self._compute_step()
        if self.lora is not None and self.lora.has_leftovers:
            self.lora.free_unused({one.lora for one in self._requests.values()})
        outputs = self._output_processor.collect()
        if self.event_log.enabled:
            for event in finished_requests(outputs, time.monotonic()):
                self.event_log.append(event)
        return outputs

    def _compute_step(self) -> None:
        started = time.monotonic()
        scheduler_output = self.scheduler.schedule()
        self._note_scheduled(scheduler_output, started)
        if self.speculation is not None:
            self.speculation.forget(scheduler_output.finished_request_ids)
        scheduled = time.monotonic()
        try:
            model_output = self.executor.execute(scheduler_output)
        except Exception as error:
            logger.exception("step %d failed", self._num_steps)
            self._fail(scheduler_output, error)
            return
        executed = time.monotonic()
        if self.scheduler.swap_cost is not None and scheduler_output.has_prompt_chunks:
            self.scheduler.swap_cost.note_prefill(
                scheduler_output.total_num_scheduled_tokens, executed - scheduled
            )
        for request_id, message in model_output.errors.items():
            self._give_up(request_id, message)
        verified = {}
        if self.speculation is not None:
            verified = self.speculation.observe(scheduler_output, model_output)
            self._output_processor.note_verified(verified)
        updates = self.scheduler.update_from_output(scheduler_output, model_output)
        for update in updates:
            self._apply(update, executed)
        for group in self.scheduler.take_finished_beams():
            self._apply_beams(group, executed)
        updated = time.monotonic()
        if self.speculation is not None:
            self.speculation.propose(self.scheduler.running)
        if self.event_log.enabled:
            times_s = (started, scheduled, executed, updated, time.monotonic())
            number, stats, timings = self._num_steps, self.scheduler.stats(), self.executor.timings
            self.event_log.append(
                step_event(number, scheduler_output, updates, verified, stats, timings, times_s)
            )
        self._num_steps += 1

    def _apply(self, update: RequestUpdate, now: float) -> None:
        child_id = update.request.request_id
        found_stop_string = self._output_processor.process(
            child_id,
            update.new_token_ids,
            now,
            logprobs=update.logprobs,
            prompt_logprobs=update.prompt_logprobs,
            finish_reason=update.finish_reason,
            stop_reason=update.stop_reason,
        )
        if found_stop_string:
            self._drop(child_id, RequestStatus.FINISHED_STOPPED)
        elif update.finish_reason is not None:
            self._requests.pop(child_id, None)

    def _add_beam_search(
        self,
        request_id: str,
        prompt: str | Sequence[int],
        params: BeamSearchParams,
        cache_salt: str | None,
        arrival: float,
        priority: int,
        digest: str | None,
    ) -> None:
        group, processed = self._beam_group(
            request_id, prompt, params, cache_salt, arrival, priority, digest
        )
        token_ids, given = processed.prompt_token_ids, processed.sampling_params
        self._output_processor.add_request(request_id, processed.prompt, token_ids, given, arrival)
        self.scheduler.add_beam_group(group)
        self._beam_groups[request_id] = group
        self._requests |= {branch.request_id: branch for branch in group.branches}
        if self.event_log.enabled:
            self.event_log.append(
                RequestArrived(arrival, request_id, len(token_ids), params.max_tokens, given.n)
            )

    def _beam_group(
        self,
        request_id: str,
        prompt: str | Sequence[int],
        params: BeamSearchParams,
        cache_salt: str | None,
        arrival: float,
        priority: int,
        digest: str | None = None,
    ) -> tuple[BeamGroup, ProcessedInput]:
        processed = self._input_processor.process(prompt, params.as_sampling_params())
        like = Request(
            request_id,
            processed.prompt_token_ids,
            processed.sampling_params,
            eos_token_ids=self._eos_token_ids,
            arrival_time=arrival,
            cache_salt=cache_salt,
            priority=priority,
            lora=digest,
        )
        self._check(like)
        longest = self.scheduler.longest_sequence
        return beam_group(like, params, self._input_processor.vocab_size, longest), processed

    def _apply_beams(self, group: BeamGroup, now: float) -> None:
        """The best hypotheses become the samples of the request."""
        for child_id, hypothesis in zip(
            self._output_processor.children(group.request_id), group.best, strict=True
        ):
            self._output_processor.process(
                child_id,
                hypothesis.token_ids,
                now,
                logprobs=hypothesis.entries,
                finish_reason=hypothesis.finish_reason,
                score=hypothesis.score,
            )
        self._drop_beams(group.request_id)

    def _drop_beams(self, request_id: str) -> None:
        group = self._beam_groups.pop(request_id, None)
        if group is not None:
            self.scheduler.finish(group.branches[0].request_id, RequestStatus.FINISHED_ABORTED)
            for branch in group.branches:
                self._requests.pop(branch.request_id, None)

    def _fail(self, scheduler_output: SchedulerOutput, error: Exception) -> None:
        message = f"the step that computed this request failed: {type(error).__name__}: {error}"
        for item in scheduler_output.scheduled:
            self._give_up(item.request_id, message)
        self.scheduler.abandon(scheduler_output)

    def _give_up(self, request_id: str, message: str) -> None:
        request = self._requests.get(request_id)
        group = request.beam_group if request else None
        name = group.request_id if group else request_id
        for child_id in self._output_processor.fail(name, message):
            self._drop(child_id, RequestStatus.FINISHED_ABORTED)
        self._drop_beams(name)

    def _adapters(self) -> LoRARegistry:
        if self.lora is None:
            raise UsageError("this engine takes no adapters")
        return self.lora

    def _digest_of(self, lora: str | None) -> str | None:
        if lora is None:
            return None
        if self.lora is None:
            raise InvalidRequestError("this engine takes no adapters: leave lora out")
        return self.lora.resolve(lora)

    def _drop(self, child_id: str, status: RequestStatus) -> None:
        self.scheduler.finish(child_id, status)
        self._requests.pop(child_id, None)

    def _check(self, request: Request) -> None:
        scheduler = self.scheduler
        check_admissible(request, self.config, scheduler.kv_cache, scheduler.max_model_len)

    def _seed_of(self, params: SamplingParams) -> int:
        return self._random.getrandbits(63) if params.seed is None else params.seed

    def _note_scheduled(self, scheduler_output: SchedulerOutput, now: float) -> None:
        for new in scheduler_output.new_requests:
            request = self._requests[new.request_id]
            self._output_processor.note_scheduled(
                self._shown_id(request), now, request.num_cached_tokens
            )
        for request_id in scheduler_output.preempted_request_ids:
            self._output_processor.note_preempted(self._shown_id(self._requests[request_id]))
        groups = self._output_processor.groups()
        for request_id, group in self._beam_groups.items():
            groups[request_id] = [branch.request_id for branch in group.branches]
        for request_id, child_ids in groups.items():
            held, unshared = self.scheduler.kv_cache.num_blocks_held(child_ids)
            self._output_processor.note_kv_blocks(request_id, held, unshared)

    def _shown_id(self, request: Request) -> str:
        """The child that the output processor knows it by."""
        if request.beam_group is None:
            return request.request_id
        return self._output_processor.children(request.beam_group.request_id)[0]
