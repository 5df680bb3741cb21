"""The client of `bench serve` against servers that do what a script says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from infra_lab.bench.http_stream import Address, HttpClient, HttpError
from infra_lab.bench.openai_endpoint import (
    Endpoint,
    EndpointError,
    Exchange,
    error_counts,
    first_model,
)
from infra_lab.bench.serving import drive, measure_words
from infra_lab.bench.serving_requests import ServingRequest
from infra_lab.errors import UsageError
from tests.bench.scripted_endpoint import (
    DONE,
    END,
    HANG_UP,
    STREAM_HEAD,
    Script,
    ScriptedEndpoint,
    answer,
    chunk,
    delta,
    event,
    scripted,
    stream,
    text,
    usage,
    whole,
)

Result = TypeVar("Result")
REQUEST = ServingRequest("a prompt", 3)
PAUSE_S = 0.05


def against(
    script: Script | list[Script],
    use: Callable[[Endpoint, ScriptedEndpoint], Awaitable[Result]],
    api: str = "completions",
    timeout_s: float = 10.0,
) -> Result:
    async def main() -> Result:
        scripts = script if isinstance(script[0], list) else [script]
        async with scripted(*scripts) as server:
            endpoint = Endpoint(
                server.url, "m", api, "secret", {"temperature": 0.5}, timeout_s=timeout_s
            )
            try:
                return await use(endpoint, server)
            finally:
                await endpoint.close()

    return asyncio.run(main())


def ask(script: Script, api: str = "completions", timeout_s: float = 10.0) -> Exchange:
    async def use(endpoint: Endpoint, server: ScriptedEndpoint) -> Exchange:
        return await endpoint.ask(REQUEST, time.perf_counter())

    return against(script, use, api, timeout_s)


def test_times_are_those_of_the_pieces_with_text_in_them() -> None:
    script = stream(
        (PAUSE_S, text("")),  # a token that shows nothing yet
        (PAUSE_S, text("one")),
        (PAUSE_S, text(" two")),
        (2 * PAUSE_S, text("", "length")),
        (PAUSE_S, usage(7, 4)),
        (0.0, DONE),
    )
    found = ask(script)
    returned_s = time.perf_counter()
    assert found.error is None
    assert len(found.piece_times_s) == 2
    assert found.ttft_s >= 1.99 * PAUSE_S
    (gap,) = found.inter_token_s
    assert gap >= 0.9 * PAUSE_S
    assert found.latency_s >= 4.9 * PAUSE_S
    # The usage comes after the answer's end, and is no part of its latency.
    assert returned_s - found.ended_s >= 0.9 * PAUSE_S
    assert found.tpot_s == pytest.approx((found.latency_s - found.ttft_s) / 3)


def test_tokens_are_those_of_the_usage_and_not_the_pieces() -> None:
    found = ask(stream((0.0, text("many words", "stop")), (0.0, usage(7, 40)), (0.0, DONE)))
    assert (found.prompt_tokens, found.output_tokens) == (7, 40)
    assert found.finish_reason == "stop"
    assert len(found.piece_times_s) == 1


def test_an_answer_of_one_token_has_no_tpot() -> None:
    assert ask(answer(num_tokens=1)).tpot_s is None


def test_a_chat_is_timed_by_its_content_and_not_by_its_role() -> None:
    script = stream(
        (0.0, delta("")),
        (PAUSE_S, delta("Hi")),
        (0.0, delta(None, "stop")),
        (0.0, usage(9, 1)),
        (0.0, DONE),
    )
    found = ask(script, api="chat")
    assert found.error is None
    assert found.ttft_s >= 0.99 * PAUSE_S


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_the_network_may_cut_the_stream_anywhere(size: int) -> None:
    data = b"".join(piece for _, piece in answer(num_tokens=4))
    pieces = [(0.0, data[start : start + size]) for start in range(0, len(data), size)]
    found = ask(pieces)
    assert found.error is None
    assert len(found.piece_times_s) == found.output_tokens == 4


def test_several_events_of_one_chunk_are_several_pieces() -> None:
    body = text("é") + text("中", "stop") + usage(1, 2) + DONE
    found = ask([(0.0, STREAM_HEAD), (0.0, chunk(body)), (0.0, END)])
    assert found.error is None
    assert len(found.piece_times_s) == 2


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (whole("429 Too Many", b'{"error": {"message": "too busy"}}'), "HTTP 429: too busy"),
        (whole("500 Oops", b"<html>broken</html>"), "HTTP 500: <html>broken</html>"),
        (whole("404 Not Found", b'{"detail": "nothing here"}'), "HTTP 404: {'detail'"),
        (stream((0.0, text("a")), (0.0, event({"error": {"message": "gone"}}))), "gone"),
        (stream((0.0, text("a")), (0.0, DONE)), "ended in the middle of the answer"),
        (stream((0.0, text("a", "stop")), (0.0, DONE)), "told no usage"),
        (stream((0.0, b"data: {nonsense\n\n")), "the stream is not OpenAI's"),
        (stream((0.0, event({"odd": 1}))), "the stream is not OpenAI's"),
        ([(0.0, STREAM_HEAD), (0.0, chunk(text("a"))), (0.0, HANG_UP)], "closed"),
        ([(0.0, HANG_UP)], "closed before an answer"),
        ([(0.0, b"SSH-2.0-no-http\r\n\r\n"), (0.0, HANG_UP)], "illegal status line"),
    ],
)
def test_a_failure_is_named_and_ends_its_request(script: Script, reason: str) -> None:
    found = ask(script)
    assert found.error is not None
    assert reason in found.error
    assert found.ended_s >= found.sent_s


def test_a_request_that_takes_too_long_is_given_up() -> None:
    found = ask(stream((0.0, text("a")), (5.0, text("b", "stop"))), timeout_s=0.2)
    assert found.error == "took longer than 0.2 s"
    assert found.latency_s < 2


def test_nobody_there_is_a_failed_request() -> None:
    async def main() -> Exchange:
        endpoint = Endpoint("http://127.0.0.1:1/v1", "m")
        return await endpoint.ask(REQUEST, time.perf_counter())

    assert "Connect call failed" in (asyncio.run(main()).error or "")


def test_a_request_asks_for_a_stream_with_usage_and_brings_its_key() -> None:
    async def use(endpoint: Endpoint, server: ScriptedEndpoint) -> ScriptedEndpoint:
        await endpoint.ask(REQUEST, time.perf_counter())
        return server

    server = against(answer(), use)
    assert server.bodies == [
        {
            "model": "m",
            "prompt": "a prompt",
            "max_tokens": 3,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0.5,
        }
    ]
    assert server.heads[0].startswith("POST /v1/completions HTTP/1.1")
    assert "authorization: bearer secret" in server.heads[0].lower()
    server = against(answer(), use, api="chat")
    assert server.heads[0].startswith("POST /v1/chat/completions HTTP/1.1")
    assert server.bodies[0]["messages"] == [{"role": "user", "content": "a prompt"}]


@pytest.mark.parametrize("key", ["", "two\nlines", "line\r\n", "a b", "schlüssel", "\x00"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(UsageError, match="the API key is empty, or has") as error:
        Endpoint("http://127.0.0.1:1/v1", "m", api_key=key)
    assert not key or key not in str(error.value)
    with pytest.raises(UsageError, match="the API key"):
        asyncio.run(first_model("http://127.0.0.1:1/v1", key))


def test_a_request_that_is_not_http_is_a_failed_request() -> None:
    async def main() -> list[int | bytes]:
        client = HttpClient(Address("127.0.0.1", 1, False, "/v1"), [("X-Bad", "two\nlines")])
        return [piece async for piece in client.stream("GET", "/models")]

    with pytest.raises(HttpError, match=r"(?i)illegal header value"):
        asyncio.run(main())


def test_a_connection_serves_one_request_after_another() -> None:
    async def use(endpoint: Endpoint, server: ScriptedEndpoint) -> int:
        for _ in range(5):
            assert (await endpoint.ask(REQUEST, time.perf_counter())).error is None
        return server.num_connections

    assert against(answer(), use) == 1


def test_a_kept_connection_that_was_closed_meanwhile_costs_no_request() -> None:
    async def use(endpoint: Endpoint, server: ScriptedEndpoint) -> list[str | None]:
        first = await endpoint.ask(REQUEST, time.perf_counter())
        await asyncio.sleep(0.05)
        second = await endpoint.ask(REQUEST, time.perf_counter())
        assert server.num_connections == 2
        return [first.error, second.error]

    closing = [*answer(), (0.0, HANG_UP)]
    assert against([closing, answer()], use) == [None, None]


def test_requests_are_sent_when_due_whatever_became_of_the_others() -> None:
    """Each takes longer than all arrivals together: a client that waited would send the last one
    four seconds late."""
    times_s = [0.02 * index for index in range(10)]

    async def use(endpoint: Endpoint, server: ScriptedEndpoint) -> list[Exchange]:
        return (await drive(endpoint, [REQUEST] * 10, times_s)).exchanges

    found = against(answer(num_tokens=2, pause_s=0.2), use)
    started = found[0].due_s
    assert [one.due_s - started for one in found] == pytest.approx(times_s, abs=1e-6)
    assert all(0 <= one.lateness_s < 2.0 for one in found)
    assert all(one.latency_s >= 0.39 for one in found)


def test_no_more_are_under_way_than_may_be_and_places_are_due_when_free() -> None:
    async def use(endpoint: Endpoint, server: ScriptedEndpoint) -> list[Exchange]:
        run = await drive(endpoint, [REQUEST] * 9, [0.0] * 9, max_concurrency=3)
        return run.exchanges

    found = against(answer(num_tokens=2, pause_s=0.03), use)
    for one in found:
        others = [two for two in found if two.sent_s <= one.sent_s < two.ended_s]
        assert len(others) <= 3
    # To wait for a place is not to be late: a request is due when an earlier one has ended.
    ends = sorted(one.ended_s for one in found)
    for free_s, one in zip(ends, found[3:], strict=False):
        assert one.due_s >= free_s


def test_a_client_that_is_busy_when_a_place_becomes_free_is_late() -> None:
    """Whoever is told of progress keeps the client for a while; the server is not to blame."""

    async def use(endpoint: Endpoint, server: ScriptedEndpoint) -> list[Exchange]:
        run = await drive(
            endpoint, [REQUEST] * 4, [0.0] * 4, 1, notify=lambda done, total: time.sleep(PAUSE_S)
        )
        return run.exchanges

    first, *others = against(answer(), use)
    assert first.lateness_s < PAUSE_S
    assert all(one.lateness_s >= PAUSE_S for one in others)


def test_progress_counts_the_failed_too() -> None:
    told: list[tuple[int, int]] = []

    async def use(endpoint: Endpoint, server: ScriptedEndpoint) -> list[Exchange]:
        run = await drive(
            endpoint, [REQUEST] * 3, [0.0] * 3, notify=lambda *counts: told.append(counts)
        )
        return run.exchanges

    found = against(whole("503 No", b"{}"), use)
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert error_counts(found) == {"HTTP 503: no reason given": 3}


def test_reasons_that_differ_in_numbers_are_one() -> None:
    errors = ["took 3 s", "took 41 s", None, "closed"]
    exchanges = [Exchange(0.0, error=error) for error in errors]
    assert error_counts(exchanges) == {"took 3 s": 2, "closed": 1}


def test_two_probes_tell_what_a_word_costs() -> None:
    async def use(endpoint: Endpoint, server: ScriptedEndpoint) -> tuple[float, float]:
        cost = await measure_words(endpoint)
        counts = [len(body["prompt"].split()) for body in server.bodies]
        assert counts == [16, 144]
        return cost.each, cost.fixed

    found = against([answer(prompt_tokens=16 * 2 + 30), answer(prompt_tokens=144 * 2 + 30)], use)
    assert found == (2.0, 30.0)


def test_an_endpoint_that_refuses_the_probe_is_not_measured() -> None:
    async def use(endpoint: Endpoint, server: ScriptedEndpoint) -> None:
        with pytest.raises(EndpointError, match="HTTP 401: no key"):
            await measure_words(endpoint)

    against(whole("401 Unauthorized", b'{"error": {"message": "no key"}}'), use)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (whole("200 OK", b'{"data": [{"id": "one"}, {"id": "two"}]}'), "one"),
        (whole("200 OK", b'{"data": []}'), "lists no model"),
        (whole("200 OK", b"nonsense"), "lists no model"),
        (whole("403 No", b'{"error": {"message": "keep out"}}'), "HTTP 403: keep out"),
        ([(0.0, HANG_UP)], "no server answers"),
    ],
)
def test_the_model_is_the_first_that_is_listed(script: Script, expected: str) -> None:
    async def main() -> str:
        async with scripted(script) as server:
            try:
                return await first_model(server.url, None)
            except EndpointError as error:
                return str(error)

    assert expected in asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8000/v1", Address("127.0.0.1", 8000, False, "/v1")),
        ("https://api.example.com/v1/", Address("api.example.com", 443, True, "/v1")),
        ("http://[::1]:80", Address("::1", 80, False, "")),
    ],
)
def test_addresses_are_read_as_browsers_read_them(url: str, address: Address) -> None:
    assert Address.of(url) == address


def test_the_host_header_names_a_port_that_is_not_the_usual_one() -> None:
    assert Address.of("http://box:8000/v1").host_header == "box:8000"
    assert Address.of("https://box/v1").host_header == "box"
    assert Address.of("http://[::1]:9/").host_header == "[::1]:9"


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:8000", "ftp://a/b", "http://", "http://a:b/", "http://a b/v1", "http://a/v 1",
     "http://a/v1 ", "http://a/\nv1", "http://é/v1", "http://a:0/v1", "http://a/v1?key=3",
     "http://a/v1#top", "http://me:secret@a/v1"],
)  # fmt: skip
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is no address"):
        Address.of(url)
