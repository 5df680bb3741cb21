"""Answers that outlive patience: streams of server-sent events, and clients that leave.

Answers "what happens to the GPU when the user closes the tab?". Whoever computes an answer is
raced against the news that its reader has gone, and loses: its generation is closed, which aborts
the request and frees its blocks.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from infra_lab.server.api_errors import ApiError

Result = TypeVar("Result")
DONE = "data: [DONE]\n\n"


class ClientGoneError(Exception):
    """Nobody is there to read the answer."""


def event(data: dict[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"


async def unless_client_leaves(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which is cancelled if the client disconnects: ClientGoneError then.

    The request's body must have been read.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGoneError
    finally:
        watching.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait({working})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStreamResponse(Response):
    """Sends events as they come.

    Args:
        events: an ApiError in it, once the status is out, becomes the last event.
        close: called at the end, however it ends, also if the stream never begins.
        send_timeout_s: for the client to take one event.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[str],
        close: Callable[[], None],
        send_timeout_s: float,
    ) -> None:
        self._events = events
        self._close = close
        self._send_timeout_s = send_timeout_s
        self.status_code = 200
        self.background = None
        # A proxy that collected the events would make a stream of them no more.
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_client_leaves(receive, self._send_all(send))
        except (ClientGoneError, TimeoutError, OSError):
            return  # nobody reads; whoever holds the connection ends it
        finally:
            self._close()

    async def _send_all(self, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        try:
            async with aclosing(self._events) as events:
                async for text in events:
                    await self._send(send, text)
        except ApiError as error:
            await self._send(send, event(error.body))
        await self._send(send, DONE)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, text: str) -> None:
        async with asyncio.timeout(self._send_timeout_s):
            await send(
                {
                    "type": "http.response.body",
                    "body": text.encode("utf-8", "replace"),
                    "more_body": True,
                }
            )
