"""Calls in an answer's text: found however the text is cut, and forced into their schema."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from infra_lab.server.protocol.tools import Tool
from infra_lab.server.tool_calls import (
    Call,
    NamedCall,
    Piece,
    RequiredCalls,
    TaggedCalls,
    ToolCallParser,
    required_schema,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
calls = st.builds(
    lambda name, arguments: (name, arguments),
    st.text("abc_", min_size=1, max_size=6),
    st.dictionaries(st.text(max_size=5), json_values, max_size=3),
)
# Text that a tag may hide in: "<" and pieces of the tags, but no whole one.
plain = st.lists(st.sampled_from(["<", "tool", "_call", ">", "x", "é", "</tool", " "])).map("".join)


def cut(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(place % (len(text) + 1) for place in cuts)})
    return [text[begin:end] for begin, end in pairwise(places)]


def parse(parser: ToolCallParser, pieces: list[str]) -> tuple[str, list[tuple[str, Any]]]:
    found: list[Piece] = []
    for piece in pieces:
        found += parser.feed(piece)
    found += parser.finish()
    texts = "".join(piece for piece in found if isinstance(piece, str))
    made = [(one.name or "", one.arguments) for one in found if isinstance(one, Call)]
    assert parser.num_calls == len(made)
    return texts, [(name, json.loads(arguments)) for name, arguments in made]


@given(
    plain, st.lists(calls, max_size=3), st.lists(st.integers(0, 500), max_size=20), st.booleans()
)
def test_tagged_calls_come_out_however_the_text_is_cut(
    before: str, made: list[tuple[str, Any]], cuts: list[int], is_open: bool
) -> None:
    before = before.replace("<tool_call>", "")
    tagged = "\n".join(
        f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
        for name, arguments in made
    )
    if is_open:
        tagged = tagged.removesuffix("</tool_call>")  # a model may end its turn so
    texts, found = parse(TaggedCalls(), cut(before + tagged, cuts))
    assert found == made
    assert texts == before or (made and not before.strip() and not texts.strip())


@given(st.lists(calls, min_size=1, max_size=3), st.lists(st.integers(0, 500), max_size=20))
def test_a_list_between_tags_is_several_calls(made: list[tuple[str, Any]], cuts: list[int]) -> None:
    listed = json.dumps([{"name": name, "arguments": given} for name, given in made])
    assert parse(TaggedCalls(), cut(f"<tool_call>{listed}</tool_call>", cuts)) == ("", made)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>not JSON</tool_call>",
        '<tool_call>{"name": 3}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "text"}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call> and more',
        "<tool_call>" + "[" * 5000,
        "a < b, <tool_call",
        "</tool_call>",
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    assert parse(TaggedCalls(), [text]) == (text, [])
    assert parse(TaggedCalls(), list(text)) == (text, [])


def test_text_is_passed_on_as_soon_as_it_can_be_no_tag() -> None:
    parser = TaggedCalls()
    assert parser.feed("Hello") == ["Hello"]
    assert parser.feed(" <") == [" "]
    assert parser.feed("tool_c") == []
    assert parser.feed("ar") == ["<tool_car"]


@given(st.lists(calls, min_size=1, max_size=3), st.lists(st.integers(0, 500), max_size=20))
def test_required_calls_come_out_one_by_one(made: list[tuple[str, Any]], cuts: list[int]) -> None:
    text = json.dumps([{"name": name, "arguments": given} for name, given in made])
    assert parse(RequiredCalls(), cut(text, cuts)) == ("", made)


def test_a_required_call_that_was_cut_is_none() -> None:
    text = '[{"name": "f", "arguments": {}}, {"name": "g", "argum'
    assert parse(RequiredCalls(), [text]) == ("", [("f", {})])


def test_a_named_call_streams_its_arguments() -> None:
    parser = NamedCall("f")
    assert parser.feed('{"a"') == [Call("f", '{"a"')]
    assert parser.feed("") == []
    assert parser.feed(": 1}") == [Call(None, ": 1}")]
    assert parser.finish() == []
    assert NamedCall("f").finish() == [Call("f", "")]


def test_the_required_schema_keeps_references_right() -> None:
    parameters = {
        "type": "object",
        "properties": {"tree": {"$ref": "#/$defs/node"}, "all": {"$ref": "#"}},
        "required": ["tree"],
        "additionalProperties": False,
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"next": {"$ref": "#/$defs/node"}},
                "additionalProperties": False,
            }
        },
    }
    tools = [
        Tool.model_validate(
            {"type": "function", "function": {"name": "f", "parameters": parameters}}
        ),
        Tool.model_validate({"type": "function", "function": {"name": "g"}}),
    ]
    schema = required_schema(tools, is_parallel=True)
    Draft202012Validator.check_schema(schema)
    is_valid = Draft202012Validator(schema).is_valid
    tree = {"tree": {"next": {"next": {}}}, "all": {"tree": {}}}
    assert is_valid([{"name": "f", "arguments": tree}, {"name": "g", "arguments": {}}])
    assert not is_valid([])
    assert not is_valid([{"name": "f", "arguments": {"tree": {"other": 1}}}])
    assert not is_valid([{"name": "g", "arguments": {"a": 1}}])
    assert not is_valid([{"name": "h", "arguments": {}}])
    alone = Draft202012Validator(required_schema(tools, is_parallel=False)).is_valid
    assert alone([{"name": "g", "arguments": {}}])
    assert not alone([{"name": "g", "arguments": {}}] * 2)
