"""Whatever is sent is answered with a status below 500, in OpenAI's shape, and the next request is
served as if nothing had been."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.running import MODEL, RunningServer, error_of

COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": "abc", "max_tokens": 2}
CHAT: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 2,
}
TYPE = {"Content-Type": "application/json"}
ROUTES = {
    "/v1/completions": COMPLETION,
    "/v1/chat/completions": CHAT,
    "/tokenize": {"prompt": "abc"},
    "/detokenize": {"tokens": [5, 6]},
}
PARAMETERS = (
    "n", "temperature", "top_p", "stop", "seed", "presence_penalty", "logit_bias", "stream",
    "stream_options", "top_k", "min_p", "min_tokens", "stop_token_ids", "structured_outputs",
    "cache_salt", "priority", "max_tokens", "logprobs", "echo", "best_of", "prompt", "messages",
    "response_format", "tools", "tool_choice", "model", "tokens", "user", "top_logprobs",
)  # fmt: skip
awkward = st.sampled_from(
    [0, -1, 1, 2**31, 2**63, 10**40, 1e308, -0.0, "", "a", "\ud800", "\x00", [], {}, [[]], None,
     True, [None], [{}], {"type": "json_object"}, {"type": "function"}, "auto", "required"]
)  # fmt: skip
anything = st.recursive(
    awkward | st.text(max_size=5) | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "role", "content", "json", "0", "x"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


def check(server: RunningServer, path: str, content: bytes, headers: dict[str, str]) -> int:
    response = server.http.post(path, content=content, headers=headers)
    assert response.status_code < 500, response.text
    if response.status_code != 200:
        error_of(response)
    return response.status_code


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(sorted(ROUTES)),
    changes=st.dictionaries(st.sampled_from(PARAMETERS), anything, min_size=1, max_size=3),
)
def test_no_value_of_any_parameter_is_a_fault(
    tiny_server: RunningServer, path: str, changes: dict[str, Any]
) -> None:
    content = json.dumps(ROUTES[path] | changes).encode()
    check(tiny_server, path, content, TYPE)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(sorted(ROUTES)),
    content=st.binary(max_size=40)
    | st.text(max_size=40).map(lambda text: text.encode("utf-8", "replace")),
    kind=st.sampled_from(
        ["application/json", "text/plain", "application/json; charset=utf-16", ""]
    ),
)
def test_no_body_at_all_is_a_fault(
    tiny_server: RunningServer, path: str, content: bytes, kind: str
) -> None:
    assert check(tiny_server, path, content, {"Content-Type": kind} if kind else {}) in (400, 415)


def deep(depth: int) -> dict[str, Any]:
    text = '{"type":"object","properties":{"a":' * depth + "{}" + "}}" * depth
    return {"raw": text}


@pytest.mark.parametrize("depth", [20, 200, 450, 2000, 100_000])
def test_a_deep_schema_is_compiled_or_refused(tiny_server: RunningServer, depth: int) -> None:
    schema = deep(depth)["raw"]
    form = f'{{"type":"json_schema","json_schema":{{"name":"a","schema":{schema}}}}}'
    content = json.dumps(CHAT)[:-1] + f', "response_format": {form}}}'
    assert check(tiny_server, "/v1/chat/completions", content.encode(), TYPE) in (200, 400, 413)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"enum": [str(index) for index in range(3000)]},
        {"type": "string", "pattern": "(a|a)*" * 50 + "$"},
        {"type": "string", "pattern": "a{1,100000}"},
        {"type": "string", "minLength": 10**9},
        {"type": "array", "minItems": 10**9},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"$ref": "https://example.com/schema.json"},
        {"$ref": "file:///etc/passwd"},
    ],
)
def test_a_schema_that_is_hard_to_meet_harms_nobody(
    tiny_server: RunningServer, schema: dict[str, Any]
) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    content = json.dumps(CHAT | {"response_format": form}).encode()
    check(tiny_server, "/v1/chat/completions", content, TYPE)
    assert check(tiny_server, "/v1/chat/completions", json.dumps(CHAT).encode(), TYPE) == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a" * 1_500_000}),
        ("/v1/completions", {"prompt": [7] * 500_000}),
        ("/v1/completions", {"stop": ["x"] * 100_000}),
        ("/v1/completions", {"logit_bias": {str(index): 1 for index in range(100_000)}}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}] * 30_000}),
        ("/detokenize", {"tokens": [-1] * 500_000}),
    ],
)
def test_what_is_too_long_is_refused_shortly(
    tiny_server: RunningServer, path: str, body: dict[str, Any]
) -> None:
    response = tiny_server.http.post(path, json=ROUTES[path] | body)
    assert response.status_code in (400, 413)
    assert len(response.content) < 1000


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS client at the wrong door
    ],
)
def test_what_is_no_http_ends_its_own_connection(tiny_server: RunningServer, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", tiny_server.port), timeout=10) as sock:
        answer = b""
        try:
            sock.sendall(sent)
            with suppress(OSError):  # it may be ended already
                sock.shutdown(socket.SHUT_WR)
            while part := sock.recv(4096):
                answer += part
        except ConnectionError:
            pass  # ended while we were still sending
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    assert tiny_server.http.get("/health").status_code == 200
