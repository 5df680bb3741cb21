"""What the routes share: the model, its engine, its limits; from a parsed request to a generation.

Answers "what must happen off the event loop?": tokenizing and compiling a grammar take as long as
the client likes, so they run on threads of their own; the engine runs on its own anyway.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from infra_lab import __version__
from infra_lab.engine.llm import LLM
from infra_lab.errors import InvalidRequestError
from infra_lab.sampling_params import SamplingParams
from infra_lab.server.api_errors import (
    ApiError,
    bad_request,
    from_invalid_request,
    too_late,
    unavailable,
)
from infra_lab.server.async_engine import AsyncEngine
from infra_lab.server.block_map import block_map
from infra_lab.server.generation import Generation
from infra_lab.server.limits import Limits
from infra_lab.server.logprobs import TokenTexts
from infra_lab.server.metrics import ServerMetrics
from infra_lab.server.protocol.base import SAMPLING_FIELDS, GenerationRequest
from infra_lab.server.request_stream import EngineError, EngineUnavailableError, RequestStream
from infra_lab.server.settings import ServerSettings

NUM_TEXT_THREADS = 2
MAX_STOPS = 64
Result = TypeVar("Result")
Names = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Job:
    """What a request asks of the engine: its prompts, all with the same parameters."""

    prompts: Sequence[Sequence[int]]
    params: SamplingParams
    lora: str | None
    cache_salt: str | None
    priority: int


class Service:
    """Made on the running event loop that serves; `close` it there."""

    def __init__(self, llm: LLM, settings: ServerSettings) -> None:
        self.settings = settings
        self.tokenizer = llm.tokenizer
        self.max_model_len = llm.engine.scheduler.max_model_len
        self.vocab_size = llm.model_config.vocab_size
        self.hidden_size = llm.model_config.hidden_size
        self.block_size = llm.engine.config.block_size
        longest = max(map(len, llm.tokenizer.backend.get_vocab()))  # a character a byte, or more
        self._max_chars = self.max_model_len * longest
        self.texts = TokenTexts(llm.tokenizer)
        self.started_at = int(time.time())
        self.fingerprint = f"infra-lab-{__version__}"
        self.metrics = ServerMetrics(settings.model_name)
        self.engine = AsyncEngine(llm.engine, self.metrics)
        self.metrics.watch(self.engine)
        self._core = llm.engine
        self._threads = ThreadPoolExecutor(NUM_TEXT_THREADS, thread_name_prefix="text")
        self.capacity = llm.engine.config.max_num_seqs + settings.max_queue
        self._limits = Limits(self.capacity, settings.max_requests_per_client)
        self._embedding = asyncio.Lock()  # held while the engine's thread has an input to embed

    async def close(self) -> None:
        await self.engine.drain(self.settings.drain_timeout_s)
        await self.engine.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def adapters(self) -> list[str]:
        """Names of the LoRA adapters that requests may give as `model`."""
        lora = self._core.lora
        return [] if lora is None else sorted(info.name for info in lora.loaded)

    async def block_map(self) -> dict[str, Any]:
        """See block_map.block_map; raises ApiError 503 once the engine is closed."""
        try:
            return await self.engine.call(lambda: block_map(self._core))
        except EngineUnavailableError as error:
            raise unavailable(str(error)) from error

    def adapter_of(self, model: str) -> str | None:
        """The adapter that a request's `model` names, None for the model itself; 404 for others."""
        if model == self.settings.model_name:
            return None
        if model in self.adapters:
            return model
        known = ", ".join([self.settings.model_name, *self.adapters])
        raise ApiError(
            404, f"no model {model!r} here: models are {known}", "model", "model_not_found"
        )

    def token_ids(self, prompt: str | list[int]) -> list[int]:
        """Of a text; ids are checked later. An empty text has none, not even the BOS."""
        if isinstance(prompt, str):
            self.check_length(len(prompt))
            return self.tokenizer.encode(prompt) if prompt else []
        return prompt

    def check_length(self, num_chars: int) -> None:
        """Raises InvalidRequestError for a text that no tokens could make short enough, before time
        is spent on tokenizing it."""
        if num_chars > self._max_chars:
            raise InvalidRequestError(
                f"the text has {num_chars:,} characters, and the {self.max_model_len:,} tokens of "
                f"the context hold {self._max_chars:,} at the very most: shorten it"
            )

    async def in_thread(self, function: Callable[[], Result], names: Names) -> Result:
        """Runs what may take long; its InvalidRequestErrors become 400, see from_invalid_request.

        A structure so deep that it cannot be worked on is the request's own fault as well.
        """
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, function)
        except InvalidRequestError as error:
            raise from_invalid_request(error, names) from error
        except RecursionError as error:
            raise bad_request("the request is nested too deeply: make it flatter") from error

    async def generate(
        self,
        client: str,
        count: int,
        prepare: Callable[[], Job],
        names: Names,
        request_id: str,
    ) -> Generation:
        """Checks a request whole, then queues each of its prompts.

        Args:
            client: whose limit it counts for.
            count: its prompts.
            prepare: tokenizes and builds the parameters, on a thread.
            names: what the engine's parameters are called in this kind of request.

        Raises ApiError: 400, 429, 504 or, where the engine has failed or shuts down, 503.
        """
        self.check_count(count, names.get("prompt", "prompt"))
        deadline_s = asyncio.get_running_loop().time() + self.settings.request_timeout_s
        leave = self._limits.enter(client, count)
        streams: list[RequestStream] = []
        try:
            async with asyncio.timeout_at(deadline_s):
                job = await self.in_thread(lambda: self._checked(prepare()), names)
                for index, prompt in enumerate(job.prompts):
                    name = request_id if count == 1 else f"{request_id}-{index}"
                    streams.append(await self._add(name, prompt, job))
        except BaseException as error:
            Generation(request_id, streams, leave, 0.0).close()
            if (answer := _answer_to(error, names)) is not None:
                raise answer from error
            raise
        self.metrics.note_parameters(job.params, len(job.prompts))
        return Generation(request_id, streams, leave, deadline_s)

    async def embed(
        self, client: str, count: int, encode: Callable[[], list[list[int]]], pooling: str
    ) -> tuple[list[list[float]], int]:
        """The vector of each of `count` inputs, which `encode` tokenizes, and all their tokens.

        Between two steps of the engine one input is computed, however many clients ask: those that
        generate wait for one at most. Raises ApiError as `generate` does.
        """
        self.check_count(count, "input")
        deadline_s = asyncio.get_running_loop().time() + self.settings.request_timeout_s
        leave = self._limits.enter(client, count)
        try:
            async with asyncio.timeout_at(deadline_s):
                inputs = await self.in_thread(encode, {})
                vectors = [await self._embed_one(token_ids, pooling) for token_ids in inputs]
            return vectors, sum(map(len, inputs))
        except BaseException as error:
            if (answer := _answer_to(error, {})) is not None:
                raise answer from error
            raise
        finally:
            leave()

    async def _embed_one(self, token_ids: list[int], pooling: str) -> list[float]:
        """Its turn ends when the engine's thread is done, also if nobody waits for it any more: a
        command cannot be called back, and a second one beside it would run before the next step."""
        await self._embedding.acquire()
        try:
            self.engine.refuse_if_unavailable()
            computing = self.engine.call(lambda: self._core.executor.embed(token_ids, pooling))
        except BaseException:
            self._embedding.release()
            raise
        computing.add_done_callback(lambda _: self._embedding.release())
        return await asyncio.shield(computing)

    def check_count(self, count: int, param: str) -> None:
        """Raises ApiError 400 for more inputs than there could ever be places for."""
        if count > self.capacity:
            raise bad_request(
                f"the request has {count} prompts and the server takes at most {self.capacity} "
                f"at a time: split it",
                param,
            )

    async def _add(self, request_id: str, prompt: Sequence[int], job: Job) -> RequestStream:
        return await self.engine.add(
            prompt,
            job.params,
            request_id=request_id,
            cache_salt=job.cache_salt,
            priority=job.priority,
            lora=job.lora,
        )

    def _checked(self, job: Job) -> Job:
        """What `add` would refuse is refused before anything is added, and the grammar is compiled
        here, so that the engine's thread finds it done."""
        if job.params.num_samples > self.settings.max_samples:
            name = "n" if job.params.best_of is None else "best_of"
            raise InvalidRequestError(
                f"{name}={job.params.num_samples} is more than this server draws: "
                f"give at most {self.settings.max_samples}",
                name,
            )
        if len(job.params.stop) > MAX_STOPS:  # each is looked for after every token
            raise InvalidRequestError(
                f"stop has {len(job.params.stop)} strings: give at most {MAX_STOPS}", "stop"
            )
        for prompt in job.prompts:
            self._core.validate(prompt, job.params, job.priority, job.lora)
        return job


def _answer_to(error: BaseException, names: Names) -> ApiError | None:
    """What tells a client of this error; None where it is no client's business."""
    if isinstance(error, TimeoutError):
        return too_late()
    if isinstance(error, EngineUnavailableError):
        return unavailable(str(error))
    if isinstance(error, EngineError):
        return ApiError(500, str(error))
    if isinstance(error, InvalidRequestError):
        return from_invalid_request(error, names)
    return None


def sampling_params(request: GenerationRequest, **more: Any) -> SamplingParams:
    """The engine's parameters: those that the request gives, and `more` as it is."""
    given = {name: getattr(request, name) for name in SAMPLING_FIELDS}
    given = {name: value for name, value in given.items() if value is not None}
    return SamplingParams.from_dict(given | more)
