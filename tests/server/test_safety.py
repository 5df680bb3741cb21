"""Who gets in, how much they may ask, and what happens when they leave or the engine fails."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import (
    APIError,
    APIStatusError,
    AuthenticationError,
    InternalServerError,
    RateLimitError,
)

from infra_lab.engine.llm import LLM
from infra_lab.errors import UsageError
from infra_lab.server.logs import FIELDS, JsonFormatter
from infra_lab.server.middleware import BodyMiddleware
from infra_lab.server.settings import ServerSettings
from infra_lab.server.sse import EventStreamResponse
from tests.server.running import MODEL, RunningServer, error_of, running
from tests.server.tiny_model import load_tiny

BODY: dict[str, Any] = {"model": MODEL, "prompt": "abc", "max_tokens": 5}
EXACT = {"ignore_eos": True}  # what is drawn might end at once
LONG: dict[str, Any] = {"model": MODEL, "prompt": "abc", "max_tokens": 900, "ignore_eos": True}


@pytest.fixture(scope="module")
def llm(tiny_folder: Path) -> LLM:
    """Two run at a time."""
    return load_tiny(tiny_folder, max_num_seqs=2)


@contextmanager
def held(server: RunningServer) -> Iterator[None]:
    """The engine does nothing inside: requests stay where they are."""
    gate = threading.Event()
    loop = server.service.engine._loop
    loop.call_soon_threadsafe(lambda: server.service.engine.call(gate.wait))
    try:
        yield
    finally:
        gate.set()


def wait_until_open(server: RunningServer, count: int) -> None:
    end = time.monotonic() + 10
    while server.service._limits.num_open != count:
        assert time.monotonic() < end, f"{server.service._limits.num_open} are open, not {count}"
        time.sleep(0.005)


class Posting:
    """A request under way in a thread."""

    def __init__(self, server: RunningServer, body: dict[str, Any], **headers: str) -> None:
        self.response: httpx.Response | None = None

        def post() -> None:
            with httpx.Client(base_url=server.url, timeout=30, verify=False) as http:
                self.response = http.post("/v1/completions", json=body, headers=headers)

        self._thread = threading.Thread(target=post, daemon=True)
        self._thread.start()

    def result(self) -> httpx.Response:
        self._thread.join(30)
        assert self.response is not None
        return self.response


def test_the_door_opens_to_each_key_and_to_nothing_else(llm: LLM) -> None:
    with running(llm, api_keys=("first-key", "second-key")) as server:
        for given in (
            "",
            "Bearer",
            "Bearer wrong",
            "Bearer first-key2",
            "Basic first-key",
        ):
            response = server.http.post(
                "/v1/completions", json=BODY, headers={"Authorization": given} if given else {}
            )
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert error_of(response)["code"] == "invalid_api_key"
        raw = server.http.get("/v1/models", headers={b"Authorization": b"Bearer \xff\xfe"})  # type: ignore[dict-item]
        assert raw.status_code == 401
        for key in ("first-key", "second-key"):
            assert server.openai(api_key=key).completions.create(**BODY).choices
        with pytest.raises(AuthenticationError):
            server.openai(api_key="other").models.list()
        assert server.http.get("/health").status_code == 200
        for path in ("/metrics", "/openapi.json", "/v1/cache", "/nowhere"):
            assert server.http.get(path).status_code == 401


def test_a_page_that_points_its_name_at_this_machine_reaches_nothing(llm: LLM) -> None:
    with running(llm) as server:
        for name in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", ""):
            response = server.http.post("/v1/completions", json=BODY, headers={"Host": name})
            assert response.status_code in (400, 403)
        for name in (
            "localhost",
            f"LOCALHOST:{server.port}",
            f"127.0.0.1:{server.port}",
            "[::1]:1",
        ):
            assert server.http.get("/health", headers={"Host": name}).status_code == 200


def test_pages_of_other_origins_are_let_in_only_where_the_server_says_so(llm: LLM) -> None:
    origin = {"Origin": "https://app.example"}
    ask = origin | {"Access-Control-Request-Method": "POST"}
    with running(llm) as server:
        assert (
            "access-control-allow-origin" not in server.http.get("/health", headers=origin).headers
        )
        assert server.http.options("/v1/completions", headers=ask).status_code == 405
    with running(llm, cors_origins=("https://app.example",), api_keys=("k",)) as server:
        preflight = server.http.options("/v1/completions", headers=ask)  # which brings no key
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "https://app.example"
        other = server.http.options(
            "/v1/completions", headers=ask | {"Origin": "https://x.example"}
        )
        assert "access-control-allow-origin" not in other.headers
        refused = server.http.post("/v1/completions", json=BODY, headers=origin)
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://app.example"


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_that_is_too_long_is_refused(llm: LLM, is_chunked: bool) -> None:
    with running(llm, max_body_bytes=1000) as server:
        body = json.dumps(BODY | {"prompt": "a" * 2000}).encode()
        content: Any = iter([body[:900], body[900:]]) if is_chunked else body
        headers = {"Content-Type": "application/json"}
        response = server.http.post("/v1/completions", content=content, headers=headers)
        assert response.status_code == 413
        assert "1,000 bytes" in error_of(response)["message"]
        assert server.http.post("/v1/completions", json=BODY).status_code == 200


@pytest.mark.parametrize(
    ("sizes", "headers", "num_read"),
    [
        ((900, 900), (), 2),  # the last one crosses the limit: nothing is on its way any more
        ((900, 900, 900), (), 3),
        ((2000,), (), 1),
        ((2000,), ((b"content-length", b"2000"),), 1),
        ((2000, 5), ((b"content-length", b"2005"), (b"expect", b"100-continue")), 0),
    ],
)
def test_of_a_body_that_is_too_long_only_what_is_to_come_is_waited_for(
    sizes: tuple[int, ...], headers: tuple[tuple[bytes, bytes], ...], num_read: int
) -> None:
    """`receive` gives what there is; asked for more, a server would wait."""
    parts = [b"a" * size for size in sizes]
    messages = [
        {"type": "http.request", "body": part, "more_body": index < len(parts)}
        for index, part in enumerate(parts, start=1)
    ]
    asked, sent = 0, []

    async def receive() -> dict[str, Any]:
        nonlocal asked
        asked += 1
        assert asked <= len(messages), "it waits for what will never come"
        return messages[asked - 1]

    async def send(message: Any) -> None:
        sent.append(message)

    async def app(*given: object) -> None:
        pytest.fail("the route is not reached")

    scope = {"type": "http", "method": "POST", "path": "/", "headers": list(headers)}
    body = BodyMiddleware(app, ServerSettings(model_name="m", max_body_bytes=1000))
    asyncio.run(body(scope, receive, send))  # type: ignore[arg-type]
    assert sent[0]["status"] == 413
    assert asked == num_read


def test_a_client_that_is_still_sending_reads_that_its_body_is_too_long(llm: LLM) -> None:
    """Closed with bytes unread, a connection is reset, and with it goes the answer."""
    with (
        running(llm, max_body_bytes=2**20) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock,
    ):
        size = 2**21 - 2**12
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n"
        sock.sendall(head.encode())
        for _ in range(0, size, 2**16):
            sock.sendall(b" " * min(2**16, size))
            time.sleep(0.002)
            size -= 2**16
        assert sock.recv(4096).startswith(b"HTTP/1.1 413")


def test_a_body_that_does_not_come_is_not_waited_for(llm: LLM) -> None:
    with running(llm, body_timeout_s=0.1) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
            head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"
            sock.sendall(head.encode())
            assert sock.recv(4096).startswith(b"HTTP/1.1 408")
        assert server.http.get("/health").status_code == 200


def test_a_full_queue_says_so_at_once_and_when_to_come_again(llm: LLM) -> None:
    with running(llm, max_queue=1) as server:
        with held(server):
            waiting = [Posting(server, BODY) for _ in range(3)]
            wait_until_open(server, 3)
            response = server.http.post("/v1/completions", json=BODY)
            assert response.status_code == 429
            assert response.headers["retry-after"] == "1"
            assert error_of(response)["type"] == "rate_limit_error"
            with pytest.raises(RateLimitError):
                server.openai().completions.create(**BODY)
        assert [one.result().status_code for one in waiting] == [200] * 3
        assert server.http.post("/v1/completions", json=BODY).status_code == 200
        many = server.http.post("/v1/completions", json=BODY | {"prompt": ["a"] * 4})
        assert many.status_code == 400  # it could never be taken
        assert "at most 3" in error_of(many)["message"]


def test_one_client_cannot_take_all_places(llm: LLM) -> None:
    with running(llm, max_requests_per_client=2, api_keys=("a", "b")) as server:
        with held(server):
            key = {"Authorization": "Bearer a"}
            waiting = [Posting(server, BODY | {"prompt": ["x", "y"]}, **key)]
            wait_until_open(server, 2)
            assert server.http.post("/v1/completions", json=BODY, headers=key).status_code == 429
            waiting.append(Posting(server, BODY, Authorization="Bearer b"))
            wait_until_open(server, 3)
        assert [one.result().status_code for one in waiting] == [200, 200]
        assert server.http.post("/v1/completions", json=BODY, headers=key).status_code == 200


@pytest.mark.parametrize("is_stream", [True, False])
def test_an_answer_that_does_not_begin_in_time_is_a_504(llm: LLM, is_stream: bool) -> None:
    with running(llm, request_timeout_s=0.1) as server:
        with held(server):
            response = Posting(server, BODY | {"stream": is_stream})
            wait_until_open(server, 1)
            wait_until_open(server, 0)
        assert response.result().status_code == 504
        assert "longer than" in error_of(response.result())["message"]
        server.at_rest()


def test_a_stream_that_does_not_end_in_time_ends_with_an_error(llm: LLM) -> None:
    with running(llm, request_timeout_s=0.1) as server:
        response = server.http.post("/v1/completions", json=LONG | {"stream": True})
        *_, last, done = response.text.strip().split("\n\n")
        assert "longer than" in json.loads(last.removeprefix("data: "))["error"]["message"]
        assert done == "data: [DONE]"
        server.at_rest()


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_client_that_leaves_frees_its_blocks(llm: LLM, is_stream: bool) -> None:
    with running(llm) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
            body = json.dumps(LONG | {"stream": is_stream}).encode()
            head = (
                "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            sock.sendall(head.encode() + body)
            end = time.monotonic() + 10
            while not server.service.engine.stats.running and time.monotonic() < end:
                time.sleep(0.002)
        stats = server.at_rest(2.0)  # long before 900 tokens
        assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
        assert 'finished_reason="abort"' in server.http.get("/metrics").text


def test_a_reader_that_takes_nothing_is_left() -> None:
    async def main() -> list[str]:
        notes: list[str] = []

        async def events() -> Any:
            try:
                yield "data: 1\n\n"
            finally:
                notes.append("the events were closed")

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()

        async def receive() -> dict[str, Any]:
            await asyncio.Event().wait()
            raise AssertionError

        response = EventStreamResponse(events(), lambda: notes.append("closed"), 0.05)
        await response({"type": "http"}, receive, send)  # type: ignore[arg-type]
        return notes

    assert asyncio.run(main()) == ["the events were closed", "closed"]


def test_a_failed_step_is_a_500_of_its_own_requests_and_the_server_stays_up(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        raise RuntimeError("out of luck")

    with running(llm) as server:
        client = server.openai()
        with monkeypatch.context() as patch:
            patch.setattr(llm.engine.executor, "execute", fail)
            with pytest.raises(InternalServerError, match="out of luck"):
                client.completions.create(**BODY)
            with pytest.raises(APIError, match="out of luck"):
                list(client.completions.create(stream=True, **BODY))
        assert client.completions.create(**BODY).choices
        assert server.http.get("/health").status_code == 200


def test_an_engine_that_only_fails_turns_the_server_unhealthy(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("lost")

    llm = load_tiny(tiny_folder)
    with running(llm) as server:
        monkeypatch.setattr(llm.engine.scheduler, "schedule", fail)
        statuses = []
        for _ in range(4):
            with pytest.raises(APIStatusError) as error:
                server.openai().completions.create(**BODY)
            statuses.append(error.value.status_code)
        assert statuses == [500, 500, 500, 503]
        health = server.http.get("/health")
        assert health.status_code == 503
        assert "lost" in error_of(health)["message"]


def test_a_fault_of_the_server_is_a_500_without_its_inside(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(llm) as server:
        monkeypatch.setattr(server.service, "adapter_of", lambda model: 1 / 0)
        response = server.http.post("/v1/completions", json=BODY)
        assert response.status_code == 500
        assert "ZeroDivision" not in response.text
        assert error_of(response)["type"] == "server_error"
        assert "x-request-id" in response.headers
        assert server.http.get("/health").status_code == 200


@pytest.mark.parametrize("shows", [False, True])
def test_the_log_has_a_line_a_request_and_its_text_only_if_asked(
    llm: LLM, caplog: pytest.LogCaptureFixture, shows: bool
) -> None:
    secret = "a secret question"
    caplog.set_level(logging.INFO, "infra_lab.server")
    with running(llm, log_prompts=shows) as server:
        body = BODY | EXACT | {"prompt": secret, "user": "user-7", "stream": True}
        server.http.post("/v1/completions", json=body, headers={"X-Request-Id": "mine-1"})
        bad = {"X-Request-Id": 'x"\\', "Content-Type": "application/json"}
        server.http.post("/v1/completions", content=b"{" + secret.encode(), headers=bad)
    lines = [record for record in caplog.records if hasattr(record, FIELDS)]
    assert len(lines) == 2
    first, second = (json.loads(JsonFormatter().format(record)) for record in lines)
    assert first["request_id"] == "mine-1"
    assert first["event"] == "request"
    assert (first["status"], first["path"]) == (200, "/v1/completions")
    assert first["completion_tokens"] == 5
    assert first["finish_reasons"] == ["length"]
    assert first["user"] == "user-7"
    assert second["status"] == 400
    assert second["request_id"].isalnum()
    assert (secret in caplog.text + str(lines[0].__dict__)) == shows
    assert ("request" in first) == shows


def test_a_line_of_the_log_is_one_line_whatever_is_in_it() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "a\nb", (), None)
    setattr(record, FIELDS, {"path": "/\r\n\u2028{}"})
    line = JsonFormatter().format(record)
    assert len(line.splitlines()) == 1
    assert json.loads(line)["path"] == "/\r\n\u2028{}"


@pytest.mark.parametrize(
    "changes",
    [
        {"max_body_bytes": 0},
        {"max_queue": -1},
        {"max_requests_per_client": 0},
        {"max_samples": 0},
        {"request_timeout_s": 0.0},
        {"drain_timeout_s": float("nan")},
        {"api_keys": ("",)},
        {"api_keys": ("schlüssel",)},
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ServerSettings(model_name="m", **changes)
