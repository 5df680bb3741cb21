"""The engine behind an event loop: one thread steps it, any number of coroutines use it.

Answers "how does an asynchronous server drive a synchronous engine?". The thread owns the
EngineCore: nobody else calls it. What coroutines want is put into a list of commands that the
thread carries out between two steps; what a step brings is put into an outbox that the event loop
empties. Neither side ever waits for the other's work, only for its news.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from infra_lab.engine.engine_core import EngineCore
from infra_lab.errors import InfraLabError, InvalidRequestError
from infra_lab.outputs import CompletionOutput, RequestMetrics, RequestOutput
from infra_lab.sampling_params import BeamSearchParams, SamplingParams
from infra_lab.server.request_stream import (
    EngineError,
    EngineUnavailableError,
    RequestStream,
    merged,
)
from infra_lab.speculative.acceptance import SpeculativeStats

logger = logging.getLogger(__name__)

MAX_FAULTS_IN_A_ROW = 3  # failures outside a request's own step after which the engine is given up
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine between two steps. `waiting` counts preempted requests too.

    The rest counts from the start: prompt tokens that were looked up in the prefix cache, and
    those found.
    """

    running: int = 0
    waiting: int = 0
    blocks_used: int = 0
    blocks_cached: int = 0
    blocks_free: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0

    @property
    def num_blocks(self) -> int:
        return self.blocks_used + self.blocks_cached + self.blocks_free

    @property
    def kv_cache_usage(self) -> float:
        """Share of the blocks that requests hold, 0 to 1."""
        return self.blocks_used / self.num_blocks if self.num_blocks else 0.0


class OutputObserver(Protocol):
    """Is shown every step's outputs, on the engine's thread; must not block."""

    def observe(self, outputs: Sequence[RequestOutput], now_s: float) -> None: ...


class AsyncEngine:
    """Made and used on one running event loop.

    Args:
        engine: from now on this object's own.
        observer: such as metrics.
    """

    def __init__(self, engine: EngineCore, observer: OutputObserver | None = None) -> None:
        self._engine = engine
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        self._streams: dict[str, RequestStream] = {}
        self._numbers = itertools.count(1)
        self._is_draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        # Shared with the thread, under the condition's lock.
        self._changed = threading.Condition()
        self._commands: deque[Callable[[], None]] = deque()
        self._outbox: dict[str, RequestOutput] = {}
        self._is_closing = False
        # Written by the thread alone, read by anybody.
        self._stats = EngineStats()
        self._fault: str | None = None
        self._num_faults = 0
        self._open_ids: set[str] = set()
        self._refresh_stats()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def stats(self) -> EngineStats:
        return self._stats

    @property
    def speculation(self) -> SpeculativeStats | None:
        """What became of drafts since the start, None where none are made. Copied for who asks and
        not at every step; of a step under way, some drafts may be counted and others not yet."""
        speculation = self._engine.speculation
        return None if speculation is None else deepcopy(speculation.stats)

    @property
    def num_open_requests(self) -> int:
        """Requests that were added and have not ended; every prompt is one."""
        return len(self._streams)

    @property
    def is_draining(self) -> bool:
        return self._is_draining

    @property
    def fault(self) -> str | None:
        """Why the engine has been given up; None while it works."""
        return self._fault

    async def add(
        self,
        prompt: str | Sequence[int],
        sampling_params: SamplingParams | BeamSearchParams | None = None,
        *,
        request_id: str | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        lora: str | None = None,
    ) -> RequestStream:
        """Queues a request as EngineCore.add_request does; its outputs come out of the stream.

        Cancelled while it waits for the engine to accept, it leaves no request behind.

        Raises:
            InvalidRequestError: the request can never run.
            EngineUnavailableError: `drain` was called, or the engine has failed for good.
            EngineError: the engine has a fault there.
        """
        self.refuse_if_unavailable()
        name = request_id or f"request-{next(self._numbers)}"
        if name in self._streams:
            raise InvalidRequestError(
                f"request id {name!r} belongs to a request that has not ended: give another id"
            )

        def add() -> None:
            try:
                self._refuse_if_failed()
                self._engine.add_request(name, prompt, sampling_params, cache_salt, priority, lora)
            except BaseException:
                self._post(self._forget, name)
                raise
            self._open_ids.add(name)

        stream = RequestStream(name, self._post_abort)
        accepted = self.call(add)
        self._streams[name] = stream
        self._idle.clear()
        try:
            await accepted
        except asyncio.CancelledError:
            stream.close()  # its abort comes after the add: commands keep their order
            raise
        return stream

    def refuse_if_unavailable(self) -> None:
        """Raises EngineUnavailableError while nothing new may begin."""
        self._refuse_if_failed()
        if self._is_draining:
            raise EngineUnavailableError("the server is shutting down and takes no more requests")

    def call(self, function: Callable[[], Result]) -> asyncio.Future[Result]:
        """Runs a function on the engine's thread, between two steps, and gives what it gives.

        Its InfraLabErrors come out as they are, what else it raises as EngineError. Raises
        EngineUnavailableError if the engine has been closed.
        """
        future: asyncio.Future[Result] = self._loop.create_future()

        def run() -> None:
            try:
                result = function()
            except Exception as error:
                self._post(_settle, future, None, error)
            else:
                self._post(_settle, future, result, None)

        self._command(run)
        return future

    async def drain(self, timeout_s: float | None = None) -> bool:
        """Takes no more requests and waits for those there are; after `timeout_s` the rest are
        aborted. Returns whether all ended by themselves."""
        self._is_draining = True
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            for name in list(self._streams):
                self._post_abort(name)
            await self._idle.wait()
            return False
        return True

    async def close(self) -> None:
        """Aborts what still runs and ends the thread; may be called twice."""
        self._is_draining = True
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join)
        self._deliver()

    # On the event loop.

    def _refuse_if_failed(self) -> None:
        if self._fault is not None:
            raise EngineUnavailableError(f"the engine has failed: {self._fault}")

    def _post_abort(self, request_id: str) -> None:
        with contextlib.suppress(EngineUnavailableError):  # closed: nothing runs any more
            self._command(lambda: self._abort(request_id))

    def _command(self, command: Callable[[], None]) -> None:
        with self._changed:
            if self._is_closing:
                raise EngineUnavailableError("the engine has been closed")
            self._commands.append(command)
            self._changed.notify()

    def _deliver(self) -> None:
        with self._changed:
            outputs, self._outbox = self._outbox, {}
        for name, output in outputs.items():
            if (stream := self._streams.get(name)) is not None:
                stream.put(output)
            if output.finished:
                self._forget(name)

    def _forget(self, request_id: str) -> None:
        self._streams.pop(request_id, None)
        if not self._streams:
            self._idle.set()

    # On the engine's thread.

    def _run(self) -> None:
        while self._carry_out_commands():
            if self._has_work:
                self._step()
        for name in list(self._open_ids):
            self._abort(name)
        if self._has_work:
            self._step()
        self._give_up_open_requests("the engine has been closed")

    @property
    def _has_work(self) -> bool:
        return self._fault is None and self._engine.has_unfinished_requests

    def _carry_out_commands(self) -> bool:
        """Waits for something to do, does what was asked; False once there is nothing more."""
        with self._changed:
            while not (self._commands or self._is_closing or self._has_work):
                self._changed.wait()
            commands, self._commands = self._commands, deque()
            is_closing = self._is_closing
        for command in commands:
            command()
        return not is_closing

    def _abort(self, request_id: str) -> None:
        """An abort may meet a request that has ended, or that was never accepted."""
        if request_id not in self._open_ids:
            return
        try:
            self._engine.abort(request_id)
        except Exception as error:
            self._recover(error)

    def _step(self) -> None:
        """A failure of the computation is the engine's own business: it ends that step's requests.
        One of its accounts, outside, ends all requests; the next ones may be served again."""
        try:
            outputs = self._engine.step()
        except Exception as error:
            self._recover(error)
        else:
            self._num_faults = 0
            self._hand_out(outputs)

    def _recover(self, error: Exception) -> None:
        logger.error("the engine failed outside a request's computation", exc_info=error)
        fault = f"{type(error).__name__}: {error}"
        for name in list(self._open_ids):
            with contextlib.suppress(Exception):
                self._engine.abort(name)
        if not self._engine.scheduler.has_unfinished_requests:
            with contextlib.suppress(Exception):
                self._engine.step()  # collects the aborts, which come out as errors below
        self._num_faults += 1
        if self._num_faults >= MAX_FAULTS_IN_A_ROW:
            self._fault = fault
        self._give_up_open_requests(f"the engine failed: {fault}")

    def _give_up_open_requests(self, error: str) -> None:
        self._hand_out([_failed(name, error) for name in sorted(self._open_ids)])

    def _hand_out(self, outputs: Sequence[RequestOutput]) -> None:
        self._refresh_stats()
        if not outputs:
            return
        for output in outputs:
            if output.finished:
                self._open_ids.discard(output.request_id)
        self._show_observer(outputs)
        with self._changed:
            must_wake = not self._outbox
            for output in outputs:
                before = self._outbox.get(output.request_id)
                self._outbox[output.request_id] = (
                    output if before is None else merged(before, output)
                )
        if must_wake:
            self._post(self._deliver)

    def _show_observer(self, outputs: Sequence[RequestOutput]) -> None:
        """Whoever looks on can fail without harm to those who are served."""
        if self._observer is None:
            return
        try:
            self._observer.observe(outputs, time.monotonic())
        except Exception:
            logger.exception("the observer of the engine's outputs failed; requests go on")

    def _post(self, function: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody waits
            self._loop.call_soon_threadsafe(function, *arguments)

    def _refresh_stats(self) -> None:
        scheduler = self._engine.scheduler
        now, prefixes = scheduler.stats(), scheduler.prefix_cache_stats
        self._stats = EngineStats(
            running=now.running,
            waiting=now.waiting,
            blocks_used=now.blocks_used,
            blocks_cached=now.blocks_cached,
            blocks_free=now.blocks_free,
            prefix_cache_queries=prefixes.tokens,
            prefix_cache_hits=prefixes.hit_tokens,
        )


def _settle(future: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    if future.done():
        return  # cancelled meanwhile
    if error is None:
        future.set_result(result)
    elif isinstance(error, InfraLabError | EngineUnavailableError):
        future.set_exception(error)
    else:
        future.set_exception(EngineError(f"{type(error).__name__}: {error}"))


def _failed(request_id: str, error: str) -> RequestOutput:
    return RequestOutput(
        request_id=request_id,
        prompt=None,
        prompt_token_ids=[],
        outputs=[CompletionOutput(index=0, finish_reason="error")],
        finished=True,
        metrics=RequestMetrics(arrival_time_s=time.monotonic()),
        error=error,
    )
