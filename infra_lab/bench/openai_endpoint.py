"""One streamed request to an OpenAI endpoint, timed as its reader sees it.

Answers "what exactly is TTFT when an answer comes in pieces?": the time to the first piece that
has text in it. A piece may hold several tokens, or none that shows, so tokens are counted by the
server, in the usage that closes the stream, and never by pieces. Torch-free.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import pairwise
from typing import Any

from infra_lab.bench.http_stream import Address, HttpClient, HttpError
from infra_lab.bench.runs import time_per_output_token_s
from infra_lab.bench.serving_requests import ServingRequest
from infra_lab.errors import InfraLabError, UsageError

APIS = ("completions", "chat")
LONGEST_REASON = 200


@dataclass(slots=True)
class Exchange:
    """What became of one request; times on the client's clock, in seconds.

    Attributes:
        due_s: when its turn came, by the schedule or by a place that became free.
        sent_s: when the client began to send it.
        piece_times_s: of each piece that brought text.
        ended_s: when its last piece, or the news of its failure, had come.
        error: why it failed; None where it did not.
    """

    due_s: float
    sent_s: float = 0.0
    piece_times_s: list[float] = field(default_factory=list)
    ended_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    finish_reason: str | None = None
    error: str | None = None

    @property
    def lateness_s(self) -> float:
        return self.sent_s - self.due_s

    @property
    def ttft_s(self) -> float:
        """To the first text; to the end where there was none."""
        return (self.piece_times_s[0] if self.piece_times_s else self.ended_s) - self.sent_s

    @property
    def latency_s(self) -> float:
        return self.ended_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        return time_per_output_token_s(self.ttft_s, self.latency_s, self.output_tokens)

    @property
    def inter_token_s(self) -> list[float]:
        """The gaps between pieces."""
        return [after - before for before, after in pairwise(self.piece_times_s)]


class EndpointError(InfraLabError):
    """An endpoint that cannot be measured: it does not answer, or not as OpenAI's would."""


class Endpoint:
    """A model behind an OpenAI API.

    Args:
        base_url: with its /v1, as clients take it.
        api: "completions" sends texts to /completions, "chat" messages to /chat/completions.
        extra: parameters that every request gets beside the prompt and max_tokens.
        timeout_s: what one request may take, whole.

    Raises UsageError for what is no address, or no key.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        api: str = "completions",
        api_key: str | None = None,
        extra: Mapping[str, Any] | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        self.base_url = base_url
        self.model = model
        self.api = api
        self._extra = dict(extra or {})
        self._timeout_s = timeout_s
        self._client = HttpClient(Address.of(base_url), _authorization(api_key))

    async def close(self) -> None:
        await self._client.close()

    async def ask(self, request: ServingRequest, due_s: float) -> Exchange:
        """Sends a request and reads its answer to the end; a failure is in what comes back."""
        exchange = Exchange(due_s, time.perf_counter())
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._read(exchange, self._body(request))
        except TimeoutError:
            exchange.error = f"took longer than {self._timeout_s:g} s"
        except HttpError as error:
            exchange.error = str(error)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            exchange.error = f"the stream is not OpenAI's: {error!r}"[:LONGEST_REASON]
        if exchange.error is not None:
            exchange.ended_s = time.perf_counter()
        return exchange

    def _body(self, request: ServingRequest) -> bytes:
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": request.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.api == "chat":
            prompt = request.prompt
            said = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [*prompt]
            body["messages"] = said
        else:
            body["prompt"] = request.prompt
        return json.dumps(body | self._extra).encode()

    async def _read(self, exchange: Exchange, body: bytes) -> None:
        path = "/chat/completions" if self.api == "chat" else "/completions"
        async with aclosing(self._client.stream("POST", path, body)) as response:
            status = await anext(response)
            if status != HTTPStatus.OK:
                exchange.error = await _refusal(status, response)
                return
            usage: Mapping[str, Any] | None = None
            async for data, now_s in _events(response):
                event = json.loads(data)
                if "error" in event:
                    exchange.error = _message(event)
                    return
                for choice in event["choices"]:
                    exchange.ended_s = now_s
                    exchange.finish_reason = choice["finish_reason"] or exchange.finish_reason
                    if _has_text(choice):
                        exchange.piece_times_s.append(now_s)
                usage = event.get("usage") or usage
        if exchange.finish_reason is None:
            exchange.error = "the stream ended in the middle of the answer"
        elif usage is None:
            exchange.error = "the stream told no usage: its tokens cannot be counted"
        else:
            exchange.prompt_tokens = usage["prompt_tokens"]
            exchange.output_tokens = usage["completion_tokens"]


async def first_model(base_url: str, api_key: str | None) -> str:
    """The first of the models that an endpoint lists; raises EndpointError if it lists none."""
    client = HttpClient(Address.of(base_url), _authorization(api_key))
    try:
        async with asyncio.timeout(30), aclosing(client.stream("GET", "/models")) as response:
            status = await anext(response)
            if status != HTTPStatus.OK:
                raise EndpointError(f"{base_url}/models: {await _refusal(status, response)}")
            listed = json.loads(b"".join([piece async for piece in response]))  # type: ignore[misc]
        return str(listed["data"][0]["id"])
    except (HttpError, OSError) as error:  # TimeoutError is an OSError
        reason = str(error) or "no answer came within 30 s"
        raise EndpointError(f"no server answers at {base_url}: {reason}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise EndpointError(f"{base_url}/models lists no model: name one with --model") from error
    finally:
        await client.close()


def _authorization(api_key: str | None) -> list[tuple[str, str]]:
    """The header that brings the key; raises UsageError, which does not show it, for one that no
    header can hold."""
    if api_key is None:
        return []
    if not (api_key and api_key.isascii() and api_key.isprintable()) or " " in api_key:
        raise UsageError(
            "the API key is empty, or has a space, a line break or another letter in it that none "
            "may have: give it as it was issued"
        )
    return [("Authorization", f"Bearer {api_key}")]


async def _events(response: AsyncGenerator[int | bytes]) -> AsyncGenerator[tuple[bytes, float]]:
    """The data of each server-sent event up to [DONE], and when it had come."""
    held = b""
    async for piece in response:
        assert isinstance(piece, bytes)
        now_s = time.perf_counter()
        *lines, held = (held + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                data = line.removeprefix(b"data:").strip()
                if data != b"[DONE]":
                    yield data, now_s


def _has_text(choice: Mapping[str, Any]) -> bool:
    if "delta" not in choice:
        return bool(choice["text"])
    delta = choice["delta"] or {}
    # Servers name the text of a reasoning model's thoughts in either way.
    names = ("content", "reasoning", "reasoning_content", "tool_calls")
    return any(delta.get(name) for name in names)


async def _refusal(status: object, response: AsyncGenerator[int | bytes]) -> str:
    text = b"".join([piece async for piece in response if isinstance(piece, bytes)])
    try:
        message = _message(json.loads(text))
    except (ValueError, TypeError, AttributeError, LookupError):
        message = text.decode("utf-8", "replace")
    return f"HTTP {status}: {message}"[:LONGEST_REASON]


def _message(event: Mapping[str, Any]) -> str:
    error = event.get("error", event)
    return str(error.get("message", error))[:LONGEST_REASON] if error else "no reason given"


def error_counts(exchanges: Sequence[Exchange]) -> dict[str, int]:
    """How many requests failed for each reason, the most frequent first. Reasons that differ in
    their numbers only are one, told in the words of the first."""
    told: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for exchange in exchanges:
        if exchange.error is not None:
            counts[told.setdefault(re.sub(r"\d+", "0", exchange.error), exchange.error)] += 1
    return dict(counts.most_common())
