"""/v1/chat/completions: the next message of a conversation, as text or as calls of functions."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from infra_lab.errors import about
from infra_lab.outputs import CompletionOutput, RequestOutput
from infra_lab.server.chat_check import check, form_of, tool_choice_of
from infra_lab.server.chat_prompt import chat_token_ids
from infra_lab.server.context import client_of, service_of, track
from infra_lab.server.generation import Generation
from infra_lab.server.logprobs import chat_logprobs
from infra_lab.server.protocol.chat import ChatCompletionRequest
from infra_lab.server.protocol.tools import NamedToolChoice
from infra_lab.server.service import Job, Service, sampling_params
from infra_lab.server.sse import EventStreamResponse, event, unless_client_leaves
from infra_lab.server.tool_calls import Call, Piece, ToolCallParser, parser_for

router = APIRouter()


@router.post("/v1/chat/completions")
async def create_chat_completion(body: ChatCompletionRequest, request: Request) -> Response:
    """Answers a conversation."""
    service = service_of(request)
    check(body)
    lora = service.adapter_of(body.model)
    answer = ChatAnswer(body, service)
    names = {
        "lora": "model",
        "prompt": "messages",
        "logprobs": "top_logprobs",
        "structured_outputs": form_of(body).param,
        "max_tokens": "max_tokens" if body.max_tokens is not None else "max_completion_tokens",
    }

    def prepare() -> Job:
        params = sampling_params(body, **answer.sampling)
        tools = [] if tool_choice_of(body) == "none" else body.tools or []
        with about("messages"):
            service.check_length(sum(len(message.text) + 1 for message in body.messages))
            prompt = chat_token_ids(service.tokenizer, body.messages, tools)
        return Job([prompt], params, lora, body.cache_salt, body.priority or 0)

    async def start() -> Generation:
        return await service.generate(client_of(request), 1, prepare, names, answer.id)

    generation = await unless_client_leaves(request.receive, start())
    track(request, generation, body)
    if body.stream:
        events = answer.events(generation)
        return EventStreamResponse(events, generation.close, service.settings.send_timeout_s)
    try:
        (result,) = await unless_client_leaves(request.receive, generation.results())
        return JSONResponse(answer.whole(result, generation))
    finally:
        generation.close()


class ChatAnswer:
    """The shapes of the answer to one request, whole and in chunks."""

    def __init__(self, body: ChatCompletionRequest, service: Service) -> None:
        self._body = body
        self._service = service
        self._created = int(time.time())
        self._tool_choice = tool_choice_of(body)
        self.id = f"chatcmpl-{uuid.uuid4().hex}"

    @property
    def sampling(self) -> dict[str, Any]:
        """The parameters that this kind of request has under names or with values of its own."""
        body = self._body
        older, newer = body.max_tokens, body.max_completion_tokens
        return {
            "max_tokens": newer if older is None else older,
            "logprobs": (body.top_logprobs or 0) if body.logprobs else None,
            "structured_outputs": form_of(body).form,
        }

    def whole(self, result: RequestOutput, generation: Generation) -> dict[str, Any]:
        choices = []
        for sample in result.outputs:
            parser = parser_for(self._tool_choice)
            texts, calls = _sorted(_pieces(parser, sample.text, is_last=True))
            message: dict[str, Any] = {"role": "assistant", "content": texts, "refusal": None}
            if calls:
                message["content"] = texts or None
                message["tool_calls"] = [_new_call(call) for call in calls]
            choices.append(
                {
                    "index": sample.index,
                    "message": message,
                    "logprobs": self._logprobs(sample, len(sample.token_ids)),
                    "finish_reason": self._finish_reason(sample, parser),
                    "stop_reason": sample.stop_reason,
                }
            )
        return self._envelope("chat.completion", choices) | {"usage": generation.usage}

    async def events(self, generation: Generation) -> AsyncGenerator[str]:
        options = self._body.stream_options
        tells_usage = options is not None and options.include_usage
        extra = {"usage": None} if tells_usage else {}
        parsers = [parser_for(self._tool_choice) for _ in range(self._body.n or 1)]
        num_calls = [0] * len(parsers)
        begun: set[int] = set()
        ended: set[int] = set()

        def chunk(index: int, delta: dict[str, Any], **more: Any) -> str:
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            return event(self._envelope("chat.completion.chunk", [choice | more]) | extra)

        async for _, output in generation.outputs():
            for sample in output.outputs:
                index, parser = sample.index, parsers[sample.index]
                if index in ended:
                    continue
                if index not in begun:
                    begun.add(index)
                    yield chunk(index, {"role": "assistant", "content": ""})
                is_last = sample.finish_reason is not None
                texts, calls = _sorted(_pieces(parser, sample.new_text, is_last))
                logprobs = self._logprobs(sample, len(sample.new_token_ids))
                if texts or (logprobs is not None and sample.new_token_ids):
                    yield chunk(index, {"content": texts}, logprobs=logprobs)
                for call in calls:
                    num_calls[index] += call.name is not None
                    piece = _new_call(call) if call.name is not None else _more_of(call)
                    delta = {"tool_calls": [{"index": num_calls[index] - 1, **piece}]}
                    yield chunk(index, delta)
                if is_last:
                    ended.add(index)
                    reason = self._finish_reason(sample, parser)
                    yield chunk(index, {}, finish_reason=reason, stop_reason=sample.stop_reason)
        if tells_usage:
            envelope = self._envelope("chat.completion.chunk", [])
            yield event(envelope | {"usage": generation.usage})

    def _finish_reason(self, sample: CompletionOutput, parser: ToolCallParser | None) -> str | None:
        """As OpenAI has it: a call that the client named ends with "stop"."""
        calls = parser is not None and parser.num_calls > 0
        is_named = isinstance(self._tool_choice, NamedToolChoice)
        if sample.finish_reason == "stop" and calls and not is_named:
            return "tool_calls"
        return sample.finish_reason

    def _logprobs(self, sample: CompletionOutput, num_tokens: int) -> dict[str, Any] | None:
        """Those of the last `num_tokens`, where the request asks for any."""
        if not self._body.logprobs:
            return None
        entries = (sample.logprobs or [])[len(sample.logprobs or []) - num_tokens :]
        return chat_logprobs(self._service.texts, entries, self._body.top_logprobs or 0)

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self._created,
            "model": self._body.model,
            "system_fingerprint": self._service.fingerprint,
            "choices": choices,
        }


def _pieces(parser: ToolCallParser | None, text: str, is_last: bool) -> list[Piece]:
    if parser is None:
        return [text]
    return parser.feed(text) + (parser.finish() if is_last else [])


def _sorted(pieces: list[Piece]) -> tuple[str, list[Call]]:
    """The text among them, and the calls."""
    texts = [piece for piece in pieces if isinstance(piece, str)]
    return "".join(texts), [piece for piece in pieces if isinstance(piece, Call)]


def _new_call(call: Call) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}


def _more_of(call: Call) -> dict[str, Any]:
    return {"function": {"arguments": call.arguments}}
