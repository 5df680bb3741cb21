"""From a loaded model to a server that listens, and back down without dropping an answer.

Answers "what happens on SIGTERM?": no new connection is taken, running answers are given their
time, the rest are ended with an error that their readers see, and the process exits with 0.
"""

from __future__ import annotations

import asyncio
import math
import socket
from contextlib import closing
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from infra_lab.engine.llm import LLM
from infra_lab.errors import InfraLabError
from infra_lab.server.app import Application
from infra_lab.server.settings import ServerSettings

FIRST_REQUEST_TIMEOUT_S = 15.0  # for a new connection's first headers
KEEP_ALIVE_S = 30
MAX_CONNECTIONS = 2048  # more get 503 at once
BACKLOG = 512


class ImpatientProtocol(H11Protocol):
    """HTTP/1.1; closes a connection that does not begin to speak."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._patience = self.loop.call_later(FIRST_REQUEST_TIMEOUT_S, self._close_if_silent)

    def connection_lost(self, exc: Exception | None) -> None:
        self._patience.cancel()  # it would keep the connection, and its request, until it is over
        super().connection_lost(exc)

    def _close_if_silent(self) -> None:
        if getattr(self, "cycle", None) is None:
            self.transport.close()


class Server(uvicorn.Server):
    """uvicorn's server, which drains the engine while it waits for its connections."""

    def __init__(self, application: Application) -> None:
        self.application = application
        settings = application.settings
        super().__init__(
            uvicorn.Config(
                application,
                http=ImpatientProtocol,
                ws="none",
                loop="asyncio",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # an address that a client claims is nobody's
                limit_concurrency=MAX_CONNECTIONS,
                timeout_keep_alive=KEEP_ALIVE_S,
                # The engine ends what is left after its own time; this is for what hangs.
                timeout_graceful_shutdown=math.ceil(settings.drain_timeout_s) + 5,
            )
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal lets answers end, the second does not; neither is raised again, so
        that a server that was asked to stop, and did, exits with 0."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        engine = self.application.service.engine
        timeout_s = self.application.settings.drain_timeout_s
        draining = asyncio.create_task(engine.drain(timeout_s))
        await super().shutdown(sockets)
        if self.force_exit:
            draining.cancel()
        else:
            await draining


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound, so that a port in use is found out before a model is loaded.

    Raises InfraLabError saying why it cannot be had.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    except socket.gaierror as error:
        raise InfraLabError(
            f"no address is known for the host {host!r}: {error.strerror}"
        ) from None
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise InfraLabError(
            f"cannot listen on {host} port {port}: {error.strerror}; give another --port, or stop "
            f"what listens there"
        ) from None
    return sock


def serve(llm: LLM, settings: ServerSettings, sock: socket.socket) -> None:
    """Serves until SIGINT or SIGTERM; a second one does not wait for running answers."""
    with closing(sock):
        Server(Application(llm, settings)).run(sockets=[sock])
