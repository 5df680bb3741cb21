"""/v1/completions: text goes on, one choice for each sample of each prompt."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from functools import cached_property
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from infra_lab.errors import about
from infra_lab.outputs import CompletionOutput, RequestOutput
from infra_lab.server.api_errors import bad_request
from infra_lab.server.checks import check_num_logprobs, check_stream_options
from infra_lab.server.context import client_of, service_of, track
from infra_lab.server.generation import Generation
from infra_lab.server.logprobs import completion_logprobs
from infra_lab.server.protocol.completions import CompletionRequest
from infra_lab.server.service import Job, Service, sampling_params
from infra_lab.server.sse import EventStreamResponse, event, unless_client_leaves

router = APIRouter()
NAMES = {"lora": "model", "prompt_logprobs": "logprobs"}


@router.post("/v1/completions")
async def create_completion(body: CompletionRequest, request: Request) -> Response:
    """Continues a prompt, or several."""
    service = service_of(request)
    check(body)
    lora = service.adapter_of(body.model)
    answer = CompletionAnswer(body, service)

    def prepare() -> Job:
        params = sampling_params(body, **answer.sampling)
        with about("prompt"):
            prompts = [service.token_ids(prompt) for prompt in body.prompts]
        return Job(prompts, params, lora, body.cache_salt, body.priority or 0)

    async def start() -> Generation:
        count = len(body.prompts)
        return await service.generate(client_of(request), count, prepare, NAMES, answer.id)

    generation = await unless_client_leaves(request.receive, start())
    track(request, generation, body)
    if body.stream:
        events = answer.events(generation)
        return EventStreamResponse(events, generation.close, service.settings.send_timeout_s)
    try:
        results = await unless_client_leaves(request.receive, generation.results())
        return JSONResponse(answer.whole(results, generation))
    finally:
        generation.close()


def check(body: CompletionRequest) -> None:
    """What the engine has no word for."""
    if body.suffix is not None:
        raise bad_request(
            "suffix asks to fill in between two texts, which this model was not trained for: "
            "leave it out",
            "suffix",
        )
    check_stream_options(body)
    if body.stream and body.best_of is not None and body.best_of != (body.n or 1):
        raise bad_request(
            "best_of above n cannot be streamed: which samples are the best shows at the end; "
            "leave stream or best_of out",
            "best_of",
        )
    if body.max_tokens == 0 and not body.echo:
        raise bad_request(
            "max_tokens is 0: give at least 1, or ask to echo the prompt", "max_tokens"
        )
    check_num_logprobs("logprobs", body.logprobs)


class CompletionAnswer:
    """The shapes of the answer to one request, whole and in chunks."""

    def __init__(self, body: CompletionRequest, service: Service) -> None:
        self._body = body
        self._service = service
        self._created = int(time.time())
        self.id = f"cmpl-{uuid.uuid4().hex}"
        # max_tokens 0 scores the prompt: the engine samples at least one token, which is dropped.
        self._drops_output = body.max_tokens == 0

    @property
    def sampling(self) -> dict[str, Any]:
        """The parameters that this kind of request has under names or with values of its own."""
        body = self._body
        return {
            "best_of": body.best_of,
            "max_tokens": 1 if self._drops_output else body.max_tokens,
            "logprobs": body.logprobs,
            "prompt_logprobs": body.logprobs if body.echo else None,
        }

    def whole(self, results: list[RequestOutput], generation: Generation) -> dict[str, Any]:
        choices = []
        for index, output in enumerate(results):
            for sample in output.outputs:
                sample.new_text, sample.new_token_ids = sample.text, sample.token_ids
                choices.append(self._choice(index, output, sample, is_first=True))
        return self._envelope(choices) | {"usage": self._usage(generation)}

    async def events(self, generation: Generation) -> AsyncGenerator[str]:
        begun: set[tuple[int, int]] = set()
        ended: set[tuple[int, int]] = set()
        options = self._body.stream_options
        tells_usage = options is not None and options.include_usage
        extra = {"usage": None} if tells_usage else {}
        async for index, output in generation.outputs():
            for sample in output.outputs:
                key = (index, sample.index)
                if key in ended or not (sample.new_token_ids or sample.finish_reason):
                    continue
                choice = self._choice(index, output, sample, is_first=key not in begun)
                if not (choice["text"] or choice["logprobs"] or choice["finish_reason"]):
                    continue  # its text is held back: half a character, or half a stop string
                begun.add(key)
                if sample.finish_reason is not None:
                    ended.add(key)
                yield event(self._envelope([choice]) | extra)
        if tells_usage:
            yield event(self._envelope([]) | {"usage": self._usage(generation)})

    def _choice(
        self, prompt_index: int, output: RequestOutput, sample: CompletionOutput, is_first: bool
    ) -> dict[str, Any]:
        body = self._body
        text, num_new = sample.new_text, len(sample.new_token_ids)
        before = len(sample.text) - len(sample.new_text)
        if self._drops_output:
            text, num_new = "", 0
        echoed = self._echoes[prompt_index] if body.echo else ""
        entries: list[Any] = []
        if body.logprobs is not None and num_new:
            entries = list((sample.logprobs or [])[-num_new:])
        at = before + len(echoed)
        first_ids: list[int] = []
        if body.echo and is_first:
            text, at = echoed + text, 0
            entries = list(output.prompt_logprobs or []) + entries
            first_ids = output.prompt_token_ids[:1]
        logprobs = None
        if body.logprobs is not None:
            texts = self._service.texts
            logprobs = completion_logprobs(texts, entries, first_ids, at)
        is_dropped = self._drops_output and sample.finish_reason is not None
        return {
            "index": prompt_index * (body.n or 1) + sample.index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": "length" if is_dropped else sample.finish_reason,
            "stop_reason": sample.stop_reason,
        }

    @cached_property
    def _echoes(self) -> list[str]:
        """The prompts as text: decoded once, and not for every chunk of a stream."""
        decode = self._service.tokenizer.decode
        return [
            prompt if isinstance(prompt, str) else decode(prompt, skip_special_tokens=False)
            for prompt in self._body.prompts
        ]

    def _usage(self, generation: Generation) -> dict[str, Any]:
        usage = generation.usage
        if self._drops_output:
            usage |= {"completion_tokens": 0, "total_tokens": usage["prompt_tokens"]}
        return usage

    def _envelope(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self._created,
            "model": self._body.model,
            "system_fingerprint": self._service.fingerprint,
            "choices": choices,
        }
