"""A server on a port of its own in a thread of the test's process, as its clients see it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from openai import OpenAI

from infra_lab.engine.llm import LLM
from infra_lab.server.app import Application
from infra_lab.server.async_engine import EngineStats
from infra_lab.server.runner import Server, listen
from infra_lab.server.service import Service
from infra_lab.server.settings import LOOPBACK_HOSTS, ServerSettings

MODEL = "tiny"


class RunningServer:
    """Attributes:
    url: without a path.
    http: a client that raises nothing and waits 20 s at most.
    """

    def __init__(self, llm: LLM, settings: ServerSettings) -> None:
        self.llm = llm
        self._sock = listen("127.0.0.1", 0)
        self.port = self._sock.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.server = Server(Application(llm, settings))
        self._thread = threading.Thread(
            target=self.server.run, kwargs={"sockets": [self._sock]}, daemon=True
        )
        # Without `verify` a client reads all certificates of the machine, though none are used.
        self.http = httpx.Client(base_url=self.url, timeout=20, verify=False)

    @property
    def service(self) -> Service:
        return self.server.application.service

    def openai(self, **settings: Any) -> OpenAI:
        given = {"api_key": "none", "max_retries": 0, "timeout": 20} | settings
        return OpenAI(base_url=f"{self.url}/v1", **given)

    def start(self) -> None:
        self._thread.start()
        end = time.monotonic() + 10
        while not self.server.started:
            assert time.monotonic() < end, "the server did not start"
            time.sleep(0.005)

    def ask_to_stop(self) -> None:
        self.server.should_exit = True

    def join(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive(), "the server did not stop"

    def stop(self) -> None:
        self.http.close()
        self.ask_to_stop()
        self.join()
        self._sock.close()

    def at_rest(self, within_s: float = 10.0) -> EngineStats:
        """The engine's state once no request is open; fails if some stays."""
        end = time.monotonic() + within_s
        while self.service.engine.num_open_requests:
            assert time.monotonic() < end, "a request stays open"
            time.sleep(0.005)
        return self.service.engine.stats


def settings(**changes: Any) -> ServerSettings:
    given = {"model_name": MODEL, "allowed_hosts": LOOPBACK_HOSTS, "drain_timeout_s": 5.0}
    return ServerSettings(**(given | changes))


@contextmanager
def running(llm: LLM, **changes: Any) -> Iterator[RunningServer]:
    server = RunningServer(llm, settings(**changes))
    server.start()
    try:
        yield server
    finally:
        server.stop()


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error of an answer in OpenAI's shape, whole and nothing else."""
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert isinstance(body["error"]["message"], str)
    error: dict[str, Any] = body["error"]
    return error
