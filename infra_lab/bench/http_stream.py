"""HTTP/1.1 for a benchmark's client: connections that are kept, and bodies as they arrive.

On h11 and bare asyncio, since client and server often share a machine's few cores: what the client
spends on a piece of a stream is taken from whom it measures. Torch-free.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import h11

from infra_lab.errors import UsageError

READ_SIZE = 1 << 16


class HttpError(Exception):
    """The connection failed, or what came over it is not HTTP."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a base URL leads: `path` goes before that of every request."""

    host: str
    port: int
    is_secure: bool
    path: str

    @classmethod
    def of(cls, url: str) -> Address:
        """Raises UsageError for what is no http or https URL, or has more in it than an address."""
        if not (url.isascii() and url.isprintable()) or " " in url:
            raise UsageError(
                f"{url!r} is no address: it has a space or a letter that none may have"
            )
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise UsageError(f"{url} is no address: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{url} is no address: give one such as http://127.0.0.1:8000/v1")
        if parts.query or parts.fragment or parts.username is not None or port == 0:
            raise UsageError(f"{url} is no address: leave out all but host, port and path")
        is_secure = parts.scheme == "https"
        return cls(
            parts.hostname, port or (443 if is_secure else 80), is_secure, parts.path.rstrip("/")
        )

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_secure else 80) else f"{host}:{self.port}"


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.protocol = h11.Connection(h11.CLIENT)
        self._reader = reader
        self._writer = writer

    def send(self, events: Sequence[h11.Event]) -> None:
        data = b"".join(self.protocol.send(event) or b"" for event in events)
        self._writer.write(data)

    async def next_event(self) -> Any:
        while (event := self.protocol.next_event()) is h11.NEED_DATA:
            data = await self._reader.read(READ_SIZE)
            if not data and self.protocol.their_state is h11.SEND_RESPONSE:
                raise h11.RemoteProtocolError("the connection was closed before an answer came")
            self.protocol.receive_data(data)
        return event

    def close(self) -> None:
        self._writer.close()


class HttpClient:
    """Sends requests to one address; a connection that has served one is kept for the next."""

    def __init__(self, address: Address, headers: Sequence[tuple[str, str]] = ()) -> None:
        self._address = address
        self._headers = [("Host", address.host_header), ("Accept-Encoding", "identity"), *headers]
        self._idle: list[_Connection] = []
        self._tls = ssl.create_default_context() if address.is_secure else None

    async def stream(
        self, method: str, path: str, body: bytes = b""
    ) -> AsyncGenerator[int | bytes]:
        """The response: its status first, then the pieces of its body as they come.

        To be closed or read to its end. Raises HttpError.
        """
        headers = [*self._headers, ("Content-Length", str(len(body)))]
        if body:
            headers.append(("Content-Type", "application/json"))
        connection, is_whole = None, False
        try:
            target = self._address.path + path
            request = h11.Request(method=method, target=target, headers=headers)
            connection, response = await self._exchange([request, h11.Data(body)])
            yield response.status_code
            while True:
                event = await connection.next_event()
                if isinstance(event, h11.Data):
                    yield bytes(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    is_whole = True
                    return
        except (OSError, h11.ProtocolError) as error:
            raise HttpError(_reason(error)) from error
        finally:
            if connection is not None:
                self._keep_or_close(connection, is_whole)

    async def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _exchange(self, events: list[h11.Event]) -> tuple[_Connection, h11.Response]:
        """Sends a request, over a new connection if a kept one turns out to be closed."""
        while self._idle:
            connection = self._idle.pop()
            try:
                return connection, await self._ask(connection, events)
            except (OSError, h11.RemoteProtocolError):
                connection.close()
        address = self._address
        reader, writer = await asyncio.open_connection(address.host, address.port, ssl=self._tls)
        connection = _Connection(reader, writer)
        try:
            return connection, await self._ask(connection, events)
        except BaseException:
            connection.close()
            raise

    @staticmethod
    async def _ask(connection: _Connection, events: list[h11.Event]) -> h11.Response:
        connection.send([*events, h11.EndOfMessage()])
        event = await connection.next_event()
        while isinstance(event, h11.InformationalResponse):
            event = await connection.next_event()
        assert isinstance(event, h11.Response)
        return event

    def _keep_or_close(self, connection: _Connection, is_whole: bool) -> None:
        protocol = connection.protocol
        if is_whole and protocol.our_state is h11.DONE and protocol.their_state is h11.DONE:
            protocol.start_next_cycle()
            self._idle.append(connection)
        else:
            connection.close()


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    return str(error)
