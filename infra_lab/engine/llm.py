"""`LLM`: the engine for offline use. Prompts in, outputs out, in order.

Answers "how do I run this model on a thousand prompts?": hand over all prompts at once and
let continuous batching keep the machine busy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from infra_lab.config import EngineConfig
from infra_lab.engine.build import build_engine
from infra_lab.engine.build_speculation import check_draft_tokenizer, check_draft_vocabulary
from infra_lab.engine.event_log import EventLog
from infra_lab.errors import InfraLabError, InvalidRequestError, UsageError
from infra_lab.models.catalog import DEFAULT_MODEL
from infra_lab.models.loader import open_checkpoint
from infra_lab.models.store import resolve
from infra_lab.models.tokenizer import load_tokenizer
from infra_lab.outputs import CompletionOutput, RequestMetrics, RequestOutput
from infra_lab.sampling_params import BeamSearchParams, SamplingParams

Prompt = str | Sequence[int]
Params = SamplingParams | BeamSearchParams
Lora = str | None
Message = Mapping[str, Any]
T = TypeVar("T")


class LLM:
    """A loaded model.

    >>> llm = LLM("smollm2-135m", max_num_seqs=8)
    >>> llm.generate("The capital of France is")[0].outputs[0].text

    Args:
        model: a known name, a local folder or .gguf file, or a Hugging Face hub id.
        event_log: gets a record of every step; see engine.event_log.
        cache_dir: where pulled models lie; None is $INFRA_LAB_CACHE or the system's folder.
        lora_adapters: PEFT folders by the names that requests shall give as `lora`.
        config: the fields of EngineConfig.
    """

    def __init__(
        self,
        model: str | Path = DEFAULT_MODEL,
        *,
        event_log: EventLog | None = None,
        cache_dir: Path | None = None,
        lora_adapters: Mapping[str, str | Path] | None = None,
        **config: Any,
    ) -> None:
        engine_config = _config(config)
        checkpoint = open_checkpoint(resolve(str(model), cache_dir))
        self.model_config = checkpoint.config
        self.tokenizer = load_tokenizer(checkpoint)
        draft = None
        if engine_config.speculative is not None and engine_config.speculative.draft_model:
            draft = open_checkpoint(resolve(engine_config.speculative.draft_model, cache_dir))
            check_draft_vocabulary(checkpoint.config, draft.config)
            check_draft_tokenizer(self.tokenizer, load_tokenizer(draft))
        self.engine = build_engine(
            checkpoint, self.tokenizer, engine_config, event_log, draft_checkpoint=draft
        )
        self._num_requests = 0
        for name, path in (lora_adapters or {}).items():
            self.load_lora(name, path)

    def load_lora(self, name: str, path: str | Path) -> None:
        """Like EngineCore.load_lora."""
        self.engine.load_lora(name, path)

    def unload_lora(self, name: str) -> None:
        """Like EngineCore.unload_lora."""
        self.engine.unload_lora(name)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params | Sequence[Params] | None = None,
        *,
        priority: int | Sequence[int] = 0,
        lora: Lora | Sequence[Lora] = None,
        use_progress: bool = False,
        skip_invalid: bool = False,
    ) -> list[RequestOutput]:
        """Completes one prompt or many, each text or token ids; outputs come in prompt order.

        Args:
            sampling_params: one for all, or one for each prompt.
            priority: one for all, or one for each prompt; the lower goes first. It takes an
                engine with scheduling_policy="priority".
            lora: name of a loaded adapter, one for all or one for each; None is the base model.
            use_progress: whether to show a progress bar on stderr.
            skip_invalid: False raises before anything is computed if a prompt cannot run;
                True gives that prompt an output with `error` set and completes the others.

        Raises:
            InvalidRequestError: a prompt cannot run; the message names it.
            InfraLabError: a step failed and took requests with it.
        """
        listed = _as_list(prompts)
        params = _params_for(listed, sampling_params)
        priorities = _one_for_each(listed, priority, "priorities")
        loras: list[Lora] = _one_for_each(listed, lora, "adapters")
        refused = self._refusals(listed, params, priorities, loras)
        if refused and not skip_invalid:
            index, error = next(iter(refused.items()))
            prefix = f"prompt {index}: " if len(listed) > 1 else ""
            raise InvalidRequestError(f"{prefix}{error}")
        ids = [self._new_id() for _ in listed]
        accepted = [index for index in range(len(listed)) if index not in refused]
        for index in accepted:
            self.engine.add_request(
                ids[index],
                listed[index],
                params[index],
                priority=priorities[index],
                lora=loras[index],
            )
        done = self._run([ids[index] for index in accepted], use_progress)
        for index, error in refused.items():
            done[ids[index]] = _refused(ids[index], listed[index], error)
        outputs = [done[request_id] for request_id in ids]
        failed = [out.error for i, out in enumerate(outputs) if out.error and i not in refused]
        if failed:
            raise InfraLabError(f"{len(failed)} of {len(outputs)} requests failed: {failed[0]}")
        return outputs

    def stream(
        self,
        prompt: Prompt,
        sampling_params: Params | None = None,
        *,
        priority: int = 0,
        lora: Lora = None,
    ) -> Iterator[RequestOutput]:
        """Completes one prompt, giving its state after every step that brought something.

        Leaving the loop early aborts the request.
        """
        request_id = self._new_id()
        self.engine.add_request(request_id, prompt, sampling_params, priority=priority, lora=lora)
        try:
            while self.engine.has_unfinished_requests:
                yield from (out for out in self.engine.step() if out.request_id == request_id)
        finally:
            self.engine.abort(request_id)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params | Sequence[Params] | None = None,
        *,
        priority: int | Sequence[int] = 0,
        lora: Lora | Sequence[Lora] = None,
        use_progress: bool = False,
    ) -> list[RequestOutput]:
        """Answers one conversation or many through the model's chat template.

        A message is {"role": "system" | "user" | "assistant", "content": text}.

        Raises InvalidRequestError, naming the conversation and the message, for messages that
        are malformed or whose last one is an empty question.
        """
        if not messages:
            raise InvalidRequestError("messages is empty: give at least one message")
        if _is_conversation(messages):
            prompts = [self._render(messages)]
        else:
            prompts = []
            for index, one in enumerate(messages):
                try:
                    prompts.append(self._render(one))
                except InvalidRequestError as error:
                    raise InvalidRequestError(f"conversation {index}: {error}") from error
        return self.generate(
            prompts, sampling_params, priority=priority, lora=lora, use_progress=use_progress
        )

    def _render(self, messages: Any) -> list[int]:
        token_ids = self.tokenizer.apply_chat_template(messages)
        last = messages[-1]
        if last["role"] == "user" and not last["content"]:
            raise InvalidRequestError(
                f"messages[{len(messages) - 1}] is a user's message with empty content, which "
                f"asks nothing: give it at least one character"
            )
        return token_ids

    def _run(self, request_ids: list[str], use_progress: bool) -> dict[str, RequestOutput]:
        wanted = set(request_ids)
        done: dict[str, RequestOutput] = {}
        try:
            with _progress(len(wanted), use_progress) as advance:
                while len(done) < len(wanted):
                    for output in self.engine.step():
                        if output.finished and output.request_id in wanted:
                            done[output.request_id] = output
                            advance()
        finally:
            for request_id in wanted - set(done):
                self.engine.abort(request_id)
        return done

    def _refusals(
        self,
        prompts: Sequence[Prompt],
        params: Sequence[Params],
        priorities: Sequence[int],
        loras: Sequence[Lora],
    ) -> dict[int, str]:
        refused = {}
        for index, one in enumerate(zip(prompts, params, priorities, loras, strict=True)):
            try:
                self.engine.validate(*one)
            except InvalidRequestError as error:
                refused[index] = str(error)
        return refused

    def _new_id(self) -> str:
        self._num_requests += 1
        return f"request-{self._num_requests}"


def _config(fields: Mapping[str, Any]) -> EngineConfig:
    known = EngineConfig.__dataclass_fields__
    unknown = sorted(set(fields) - set(known))
    if unknown:
        raise UsageError(f"unknown setting {unknown[0]!r}; settings are {', '.join(sorted(known))}")
    return EngineConfig(**fields)


def _is_conversation(messages: Any) -> bool:
    """One conversation, sound or not, rather than a sequence of them."""
    return isinstance(messages, (str, Mapping)) or isinstance(messages[0], (str, Mapping))


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if prompts and all(isinstance(item, int) for item in prompts):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _params_for(
    prompts: Sequence[Prompt], params: Params | Sequence[Params] | None
) -> list[Params]:
    if isinstance(params, (str, Mapping)) or not (
        params is None or isinstance(params, SamplingParams | BeamSearchParams | Sequence)
    ):
        raise InvalidRequestError(
            f"sampling_params must be a SamplingParams or a list of them, not a "
            f"{type(params).__name__}; SamplingParams.from_dict makes one from a dict"
        )
    return _one_for_each(prompts, SamplingParams() if params is None else params, "sampling_params")


def _one_for_each(prompts: Sequence[Prompt], given: T | Sequence[T], noun: str) -> list[T]:
    """A sequence is one for each prompt; anything else, sound or not, is for all of them."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        return [given] * len(prompts)
    if len(given) != len(prompts):
        raise UsageError(
            f"{len(prompts)} prompts came with {len(given)} {noun}: "
            f"give one for all or one for each"
        )
    return list(given)


def _refused(request_id: str, prompt: Prompt, error: str) -> RequestOutput:
    return RequestOutput(
        request_id=request_id,
        prompt=prompt if isinstance(prompt, str) else None,
        prompt_token_ids=[] if isinstance(prompt, str) else list(prompt),
        outputs=[CompletionOutput(index=0, finish_reason="error")],
        finished=True,
        metrics=RequestMetrics(arrival_time_s=time.monotonic()),
        error=error,
    )


@contextmanager
def _progress(total: int, shown: bool) -> Iterator[Callable[[], None]]:
    """A bar of finished requests on stderr; gives the function that moves it by one."""
    if not shown:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = ("requests", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("requests", total=total)
        yield lambda: progress.advance(task)
