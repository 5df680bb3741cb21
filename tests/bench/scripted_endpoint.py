"""A server on loopback that answers as a script says: byte for byte, pause for pause."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

# What is written, and for how long to wait before it; HANG_UP closes the connection.
Script = Sequence[tuple[float, bytes]]
HANG_UP = b"\0"


@dataclass
class ScriptedEndpoint:
    """Every request gets the next script, the last one again and again.

    `bodies` and `heads` are what came; `num_connections` how many connections brought it.
    """

    scripts: list[Script]
    bodies: list[dict[str, Any]] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    num_connections: int = 0
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next(
                    int(line.split(":")[1])
                    for line in head.splitlines()
                    if line.lower().startswith("content-length")
                )
                body = await reader.readexactly(length)
                script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
                self.heads.append(head)
                self.bodies.append(json.loads(body) if body else {})
                for pause_s, data in script:
                    await asyncio.sleep(pause_s)
                    if data == HANG_UP:
                        return
                    writer.write(data)
                    await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            return  # the client, or the test, has ended
        finally:
            writer.close()


@asynccontextmanager
async def scripted(*scripts: Script) -> AsyncIterator[ScriptedEndpoint]:
    endpoint = ScriptedEndpoint(list(scripts))
    server = await asyncio.start_server(endpoint.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    endpoint.url = f"http://127.0.0.1:{port}/v1"
    try:
        yield endpoint
    finally:
        server.close()


def whole(status: str, body: bytes) -> Script:
    """An answer in one piece."""
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n"
    return [(0.0, head.encode() + body)]


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def text(content: str, finish_reason: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "text": content, "finish_reason": finish_reason}]})


def delta(content: str | None, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish_reason}
    return event({"choices": [choice]})


def usage(prompt_tokens: int, completion_tokens: int) -> bytes:
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return event({"choices": [], "usage": counts})


def stream(*pieces: tuple[float, bytes]) -> Script:
    """Events as chunks of their own, after their pauses, and the stream's end."""
    return [(0.0, STREAM_HEAD), *((pause, chunk(data)) for pause, data in pieces), (0.0, END)]


def answer(num_tokens: int = 3, prompt_tokens: int = 5, pause_s: float = 0.0) -> Script:
    """`num_tokens` pieces of text, as OpenAI streams them."""
    pieces = [(pause_s, text("word ")) for _ in range(num_tokens - 1)]
    last = (pause_s, text("end", "length"))
    return stream(*pieces, last, (0.0, usage(prompt_tokens, num_tokens)), (0.0, DONE))
