"""Calls of functions: the schema that forces one, and the parsers that find them in an answer.

Answers "how does a text model call a function?". It writes JSON, which the server cuts out of its
text. Where a call is required a grammar makes sure that the JSON is there and fits; where the
model may choose, it marks a call with a tag, and what is not a call is an answer like any other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from infra_lab.server.protocol.tools import NamedToolChoice, Tool

BEGIN, END = "<tool_call>", "</tool_call>"
MAX_PARALLEL_CALLS = 8  # that "required" allows in one answer: a small model may never stop
_DECODER = json.JSONDecoder()
_WHITESPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Call:
    """`arguments` is JSON text. A named function's call comes in pieces: the first has the name,
    those that follow more of the arguments."""

    name: str | None
    arguments: str


Piece = str | Call


class ToolCallParser(Protocol):
    """Takes an answer's text as it comes; gives text that is no call, and calls.

    `finish` gives what was held back once no more will come. `num_calls` counts those given.
    """

    num_calls: int

    def feed(self, text: str) -> list[Piece]: ...

    def finish(self) -> list[Piece]: ...


class TaggedCalls:
    """Calls that a model makes by its own choice, between tags; a list in them is several calls.

    What stands between tags and is no call stays text, tags and all.
    """

    def __init__(self) -> None:
        self._held = ""
        self.num_calls = 0

    def feed(self, text: str) -> list[Piece]:
        self._held += text
        pieces: list[Piece] = []
        while True:
            begin = self._held.find(BEGIN)
            if begin < 0:
                keep = _overlap(self._held, BEGIN)
                self._put_text(pieces, self._held[: len(self._held) - keep])
                self._held = self._held[len(self._held) - keep :]
                return pieces
            self._put_text(pieces, self._held[:begin])
            self._held = self._held[begin:]
            end = self._held.find(END)
            if end < 0:
                return pieces
            inside = self._held[len(BEGIN) : end]
            whole, self._held = self._held[: end + len(END)], self._held[end + len(END) :]
            calls = _calls_in(inside)
            self.num_calls += len(calls)
            pieces += calls or [whole]

    def finish(self) -> list[Piece]:
        held, self._held = self._held, ""
        if held.startswith(BEGIN) and (calls := _calls_in(held[len(BEGIN) :])):
            self.num_calls += len(calls)  # a model may end its turn in place of the last tag
            return list(calls)
        return [held] if held else []

    def _put_text(self, pieces: list[Piece], text: str) -> None:
        """White space around calls is not worth a message."""
        if text.strip(_WHITESPACE) or (text and not self.num_calls):
            pieces.append(text)


class RequiredCalls:
    """The array that `required_schema` describes: each call as soon as its element is whole."""

    def __init__(self) -> None:
        self._held = ""
        self.num_calls = 0

    def feed(self, text: str) -> list[Piece]:
        self._held += text
        pieces: list[Piece] = []
        while True:
            rest = self._held.lstrip(_WHITESPACE + "[,")
            if not rest.startswith("{"):
                return pieces
            try:
                element, end = _DECODER.raw_decode(rest)
            except (ValueError, RecursionError):
                return pieces
            self._held = rest[end:]
            self.num_calls += 1
            pieces.append(Call(element["name"], _json_text(element["arguments"])))

    def finish(self) -> list[Piece]:
        """An element that max_tokens cut is no call."""
        return []


class NamedCall:
    """The arguments of one function, which are the whole answer: passed on as they come."""

    def __init__(self, name: str) -> None:
        self._name: str | None = name
        self.num_calls = 1

    def feed(self, text: str) -> list[Piece]:
        if not text:
            return []
        name, self._name = self._name, None
        return [Call(name, text)]

    def finish(self) -> list[Piece]:
        name, self._name = self._name, None
        return [] if name is None else [Call(name, "")]


def parser_for(choice: str | NamedToolChoice) -> ToolCallParser | None:
    """None where the answer is text whatever it looks like."""
    if isinstance(choice, NamedToolChoice):
        return NamedCall(choice.function.name)
    if choice == "none":
        return None
    return TaggedCalls() if choice == "auto" else RequiredCalls()


def required_schema(tools: Sequence[Tool], is_parallel: bool) -> dict[str, Any]:
    """An array of one call or, if `is_parallel`, up to MAX_PARALLEL_CALLS."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.function.name},
                "arguments": {"$ref": f"#/$defs/{index}"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for index, tool in enumerate(tools)
    ]
    return {
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_PARALLEL_CALLS if is_parallel else 1,
        "items": calls[0] if len(calls) == 1 else {"anyOf": calls},
        "$defs": {
            str(index): _moved(arguments_schema(tool), f"#/$defs/{index}")
            for index, tool in enumerate(tools)
        },
    }


def arguments_schema(tool: Tool) -> dict[str, Any]:
    """A function without parameters takes an empty object."""
    given = tool.function.parameters
    if given:
        return given
    return {"type": "object", "properties": {}, "additionalProperties": False}


def _moved(schema: Any, place: str) -> Any:
    """A schema whose references into itself are right once it stands at `place`."""
    if isinstance(schema, list):
        return [_moved(one, place) for one in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value, place) for key, value in schema.items()}
    reference = moved.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = place + reference[1:]
    return moved


def _calls_in(text: str) -> list[Piece]:
    """One call, or a list of them; nothing where the text is neither."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    calls: list[Piece] = []
    for one in found if isinstance(found, list) else [found]:
        if not isinstance(one, dict) or not isinstance(one.get("name"), str):
            return []
        arguments = one.get("arguments", {})
        if not isinstance(arguments, dict):
            return []
        calls.append(Call(one["name"], _json_text(arguments)))
    return calls


def _json_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _overlap(text: str, tag: str) -> int:
    """How many of the last characters may be the beginning of `tag`."""
    for length in range(min(len(text), len(tag) - 1), 0, -1):
        if tag.startswith(text[-length:]):
            return length
    return 0
