"""What every HTTP request passes before a route sees it: log, door, size.

Plain ASGI, so that streams pass through as they are and a client's leaving is seen at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import re
import time
import uuid
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from infra_lab.server.api_errors import ApiError, server_fault
from infra_lab.server.context import log_fields
from infra_lab.server.logs import log_event, logger
from infra_lab.server.settings import ServerSettings

if TYPE_CHECKING:
    from infra_lab.server.service import Service

OPEN_PATHS = ("/health", "/")  # for load balancers, and the page that asks for the key
_REQUEST_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)


class LogMiddleware:
    """Gives every request an id (the client's X-Request-Id, if it is a plain one), counts it, and
    writes its line in the log when it is over. An error that nobody foresaw ends here, as a 500."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, state: Any) -> None:
        self._app = app
        self._settings = settings
        self._state = state  # where the running service is, once it runs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        address = (scope.get("client") or ("unknown",))[0]
        facts: dict[str, Any] = {"client": address}
        scope["infra_lab"] = facts
        started, status = time.monotonic(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            logger.exception("a request met a fault of the server")
            if status == 0:
                await respond(server_fault(), scope, receive, send_with_id)
        finally:
            self._log(scope, facts, request_id, address, status, started)

    def _log(
        self,
        scope: Scope,
        facts: dict[str, Any],
        request_id: str,
        address: str,
        status: int,
        started: float,
    ) -> None:
        service: Service | None = getattr(self._state, "service", None)
        # The route's pattern: paths that clients make up would become metrics without end.
        path = getattr(scope.get("route"), "path", "other")
        if service is not None:
            service.metrics.note_http(path, status)
        log_event(
            "request",
            request_id=request_id,
            client=address,
            method=scope["method"],
            path=scope["path"][:200],
            status=status,
            duration_ms=round(1e3 * (time.monotonic() - started), 1),
            **log_fields(facts, self._settings.log_prompts),
        )


class DoorMiddleware:
    """Lets in who has a key, where there are keys, and who calls the server by a known name."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._keys = [key.encode() for key in settings.api_keys]
        self._hosts = settings.allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(scope)
            except ApiError as error:
                await respond(error, scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        if self._hosts is not None and _host_name(headers.get("host", "")) not in self._hosts:
            raise ApiError(
                403,
                f"this server is called by {', '.join(self._hosts)} only; start it with --host "
                f"or --allowed-host to give it other names",
            )
        if not self._keys or scope["path"] in OPEN_PATHS:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        number = self._number_of(given.strip().encode("utf-8", "replace"))
        if scheme.lower() != "bearer" or number is None:
            raise ApiError(
                401,
                "no valid API key: send the header `Authorization: Bearer KEY`",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        scope["infra_lab"]["client"] = f"key {number}"

    def _number_of(self, given: bytes) -> int | None:
        """Compares with every key in the same time, whatever was given and wherever it differs."""
        found = None
        for number, key in enumerate(self._keys):
            if hmac.compare_digest(given, key):
                found = number
        return found


LINGER_S, LINGER_BYTES = 2.0, 16 * 2**20
"""How long, and how much, of a body that is too long is read and thrown away."""


class _TooLongError(Exception):
    """has_more: whether some of the body is still to come."""

    def __init__(self, has_more: bool) -> None:
        super().__init__()
        self.has_more = has_more


class BodyMiddleware:
    """Reads the body before the route runs: not more than is allowed, and not for ever."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._max_bytes = settings.max_body_bytes
        self._timeout_s = settings.body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                body = await self._read(scope, receive)
        except _TooLongError as error:
            if error.has_more:
                await self._discard(scope, receive)
            await respond(self._too_long(), scope, receive, send)
            return
        except TimeoutError:
            await respond(self._too_late(), scope, receive, send)
            return
        if body is None:
            return  # the client left
        is_given = False

        async def replay() -> Message:
            nonlocal is_given
            if is_given:
                return await receive()
            is_given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, replay, send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        length = Headers(scope=scope).get("content-length", "0")
        if length.isdigit() and int(length[:20]) > self._max_bytes:
            raise _TooLongError(has_more=True)
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            has_more = message.get("more_body", False)
            if size > self._max_bytes:
                raise _TooLongError(has_more)
            if not has_more:
                return b"".join(parts)

    async def _discard(self, scope: Scope, receive: Receive) -> None:
        """Takes in some of what is still on its way: a connection that is closed with bytes
        unread is reset, and the client never sees the answer. Not for ever, nor all of it."""
        if "expect" in Headers(scope=scope):
            return  # the client sends nothing until it is told to
        left = LINGER_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while left > 0:
                    message = await receive()
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        return
                    left -= len(message.get("body", b""))

    def _too_late(self) -> ApiError:
        message = f"the request's body did not arrive within {self._timeout_s:g} s"
        return ApiError(408, message, headers={"Connection": "close"})

    def _too_long(self) -> ApiError:
        return ApiError(
            413,
            f"the request's body is longer than {self._max_bytes:,} bytes, the most that this "
            f"server takes: shorten it",
            headers={"Connection": "close"},
        )


async def respond(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    response = JSONResponse(error.body, error.status, error.headers)
    await response(scope, receive, send)


def _host_name(header: str) -> str:
    """Without the port: "localhost:8000" -> "localhost", "[::1]:8000" -> "::1"."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].lower()
