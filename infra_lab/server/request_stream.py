"""One request's outputs on their way from the engine's thread to whoever awaits them.

Answers "what happens to the batch when one client reads slowly?": nothing. A stream holds one
output, not a queue of them: what comes before the reader is ready is folded into it, so a slow
reader gets fewer and larger pieces, memory is bounded by the answer itself, and the engine never
waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from infra_lab.outputs import RequestOutput


class EngineError(Exception):
    """The engine could not go on with a request, through no fault of the request."""


class EngineUnavailableError(Exception):
    """The engine takes no more requests: it is shutting down, or it has failed for good."""


class RequestStream:
    """The outputs of one request, until the finished one; belongs to one event loop.

    Iterate to the end, or call `close`: leaving earlier without it would leave the request
    running. `async with` does that.
    """

    def __init__(self, request_id: str, abort: Callable[[str], None]) -> None:
        self.request_id = request_id
        self._abort = abort
        self._pending: RequestOutput | None = None
        self._arrived = asyncio.Event()
        self._ended = False

    def put(self, output: RequestOutput) -> None:
        """Takes an output from the engine; after `close` nothing is kept."""
        if self._ended:
            return
        self._pending = output if self._pending is None else merged(self._pending, output)
        self._ended = output.finished
        self._arrived.set()

    def close(self) -> None:
        """Aborts the request if it still runs, and forgets what nobody read."""
        if not self._ended:
            self._ended = True
            self._abort(self.request_id)
        self._pending = None
        self._arrived.set()

    async def __aenter__(self) -> RequestStream:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()

    async def __aiter__(self) -> AsyncIterator[RequestOutput]:
        while (output := await self.next_output()) is not None:
            yield output

    async def last(self) -> RequestOutput:
        """The finished output; raises EngineError if the stream was closed before."""
        output = None
        while (later := await self.next_output()) is not None:
            output = later
        if output is None or not output.finished:
            raise EngineError(f"request {self.request_id} was closed before its end")
        return output

    async def next_output(self) -> RequestOutput | None:
        """What came since the last call, awaited; None once there will be no more."""
        while self._pending is None:
            if self._ended:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        output, self._pending = self._pending, None
        return output


def merged(earlier: RequestOutput, later: RequestOutput) -> RequestOutput:
    """Two outputs of one request as the engine would have given them in one step: the later
    state, with what is new in either as new."""
    unread = {sample.index: sample for sample in earlier.outputs}
    outputs = []
    for sample in later.outputs:
        before = unread.get(sample.index)
        if before is not None:
            sample = replace(
                sample,
                new_text=before.new_text + sample.new_text,
                new_token_ids=before.new_token_ids + sample.new_token_ids,
            )
        outputs.append(sample)
    return replace(later, outputs=outputs)
