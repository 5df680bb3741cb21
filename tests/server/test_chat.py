"""/v1/chat/completions as the `openai` client sees it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openai import OpenAI

from infra_lab.engine.llm import LLM
from infra_lab.sampling_params import SamplingParams
from infra_lab.server.chat_check import Form
from tests.server.running import MODEL, RunningServer, error_of

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
POINT = {
    "type": "object",
    "properties": {
        "x": {"type": "integer", "minimum": 0, "maximum": 99},
        "is": {"type": "boolean"},
    },
    "required": ["x", "is"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "plot", "description": "Plots.", "parameters": POINT},
    },
    {"type": "function", "function": {"name": "stop"}},
]


@pytest.fixture
def client(tiny_server: RunningServer) -> OpenAI:
    return tiny_server.openai()


def create(client: OpenAI, **changes: Any) -> Any:
    given: dict[str, Any] = {"model": MODEL, "messages": HELLO, "max_tokens": 20, "seed": 1}
    return client.chat.completions.create(**(given | changes))


def refused(server: RunningServer, **changes: Any) -> dict[str, Any]:
    body = {"model": MODEL, "messages": HELLO} | changes
    response = server.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400, response.text
    return error_of(response)


def test_an_answer_is_the_engines_own(client: OpenAI, tiny_llm: LLM) -> None:
    messages = [{"role": "system", "content": "be brief"}, *HELLO]
    prompt = tiny_llm.tokenizer.apply_chat_template(messages)
    expected = tiny_llm.generate([prompt], SamplingParams(temperature=0, max_tokens=7))[0]
    answer = create(client, messages=messages, temperature=0, max_tokens=7)
    (choice,) = answer.choices
    assert choice.message.content == expected.outputs[0].text
    assert choice.message.role == "assistant"
    assert choice.message.tool_calls is None
    assert choice.finish_reason == expected.outputs[0].finish_reason
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.completion_tokens == len(expected.outputs[0].token_ids)
    assert answer.id.startswith("chatcmpl-")


def test_contents_come_as_text_or_as_parts_and_developer_means_system(client: OpenAI) -> None:
    whole = create(client, temperature=0, messages=[{"role": "system", "content": "ab"}, *HELLO])
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    again = create(
        client, temperature=0, messages=[{"role": "developer", "content": parts}, *HELLO]
    )
    assert again.choices[0].message.content == whole.choices[0].message.content


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_both_names_of_the_most_tokens_are_honoured(client: OpenAI, name: str) -> None:
    settings = {"max_tokens": None, name: 3, "extra_body": {"ignore_eos": True}}
    assert create(client, **settings).usage.completion_tokens == 3


def test_samples_differ_and_repeat_by_their_seed(client: OpenAI) -> None:
    texts = [c.message.content for c in create(client, n=3, temperature=1.0).choices]
    assert len(set(texts)) == 3
    assert [c.message.content for c in create(client, n=3, temperature=1.0).choices] == texts
    for index, text in enumerate(texts):
        (one,) = create(client, seed=1 + index, temperature=1.0).choices
        assert one.message.content == text  # sample i is seeded with seed + i


@pytest.mark.parametrize("count", [None, 0, 4])
def test_logprobs_have_the_chats_shape(client: OpenAI, count: int | None) -> None:
    (choice,) = create(client, logprobs=True, top_logprobs=count, max_tokens=5).choices
    assert len(choice.logprobs.content) == 5
    for one in choice.logprobs.content:
        assert one.logprob <= 0
        assert len(one.top_logprobs) == (count or 0)
        shown = [entry.logprob for entry in one.top_logprobs]
        assert shown == sorted(shown, reverse=True)
        if not one.token.startswith("bytes:"):
            assert bytes(one.bytes).decode() == one.token


@pytest.mark.parametrize("extra", [{}, {"n": 3}, {"logprobs": True, "top_logprobs": 1}])
def test_the_pieces_of_a_stream_make_the_whole(client: OpenAI, extra: dict[str, Any]) -> None:
    whole = create(client, **extra)
    texts = dict.fromkeys(range(len(whole.choices)), "")
    tokens: dict[int, list[str]] = {index: [] for index in texts}
    roles: dict[int, list[str]] = {index: [] for index in texts}
    ends: dict[int, list[str]] = {index: [] for index in texts}
    chunks = list(create(client, stream=True, stream_options={"include_usage": True}, **extra))
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    for chunk in chunks[:-1]:
        assert chunk.usage is None
        (choice,) = chunk.choices
        assert ends[choice.index] == []
        texts[choice.index] += choice.delta.content or ""
        if choice.delta.role:
            roles[choice.index].append(choice.delta.role)
        if choice.logprobs is not None:
            tokens[choice.index] += [one.token for one in choice.logprobs.content]
        if choice.finish_reason:
            ends[choice.index].append(choice.finish_reason)
    assert texts == {choice.index: choice.message.content for choice in whole.choices}
    assert ends == {choice.index: [choice.finish_reason] for choice in whole.choices}
    assert set(map(tuple, roles.values())) == {("assistant",)}
    if extra.get("logprobs"):
        expected = [one.token for one in whole.choices[0].logprobs.content]
        assert tokens == {0: expected}


def test_an_answer_keeps_to_its_schema(client: OpenAI) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "point", "schema": POINT}}
    for seed in range(5):
        answer = create(client, response_format=schema, seed=seed, max_tokens=200)
        Draft202012Validator(POINT).validate(json.loads(answer.choices[0].message.content))
        assert answer.choices[0].finish_reason == "stop"
    free = create(client, response_format={"type": "text"}, temperature=0)
    assert (
        free.choices[0].message.content == create(client, temperature=0).choices[0].message.content
    )


def test_a_json_object_is_one(client: OpenAI, tiny_llm: LLM) -> None:
    bias = {str(token): 40 for token in tiny_llm.tokenizer.encode("{}")}  # or it may go on and on
    answer = create(
        client, response_format={"type": "json_object"}, max_tokens=300, logit_bias=bias
    )
    assert isinstance(json.loads(answer.choices[0].message.content), dict)


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_required_call_fits_one_of_the_functions(client: OpenAI, is_stream: bool) -> None:
    for seed in range(4):
        settings = {"tools": TOOLS, "tool_choice": "required", "seed": seed, "max_tokens": 300}
        settings["parallel_tool_calls"] = seed % 2 == 0
        calls, text, reason = _calls(create(client, stream=is_stream, **settings), is_stream)
        assert text == ""
        assert reason in ("tool_calls", "length")
        assert len(calls) >= (reason == "tool_calls")
        assert len(calls) <= (8 if settings["parallel_tool_calls"] else 1)
        for name, arguments in calls:
            schema = POINT if name == "plot" else {"type": "object", "maxProperties": 0}
            Draft202012Validator(schema).validate(json.loads(arguments))
            assert name in ("plot", "stop")


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_named_function_is_called(client: OpenAI, is_stream: bool) -> None:
    choice = {"type": "function", "function": {"name": "plot"}}
    settings = {"tools": TOOLS, "tool_choice": choice, "max_tokens": 200}
    ((name, arguments),), text, reason = _calls(
        create(client, stream=is_stream, **settings), is_stream
    )
    assert (name, text, reason) == ("plot", "", "stop")
    Draft202012Validator(POINT).validate(json.loads(arguments))


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_call_of_the_models_own_choice_is_cut_out_of_its_text(
    client: OpenAI, is_stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = 'I see. <tool_call>{"name": "plot", "arguments": {"x": 1, "is": true}}</tool_call>'
    # Nothing but a form makes a model of noise say this, and none goes with tools.
    form = Form({"choice": [said]}, "tools")
    monkeypatch.setattr("infra_lab.server.chat_api.form_of", lambda body: form)
    calls, text, reason = _calls(
        create(client, stream=is_stream, max_tokens=300, tools=TOOLS), is_stream
    )
    assert [(name, json.loads(arguments)) for name, arguments in calls] == [
        ("plot", {"x": 1, "is": True})
    ]
    assert (text, reason) == ("I see. ", "tool_calls")
    without = _calls(create(client, stream=is_stream, max_tokens=300), is_stream)
    assert without == ([], said, "stop")  # without tools it is text


def test_tools_are_told_to_the_model_and_their_results_follow_its_calls(
    client: OpenAI, tiny_server: RunningServer
) -> None:
    plain = create(client).usage.prompt_tokens
    assert create(client, tools=TOOLS).usage.prompt_tokens > plain + 100
    assert create(client, tools=TOOLS, tool_choice="none").usage.prompt_tokens == plain
    call = {"id": "call_1", "type": "function", "function": {"name": "stop", "arguments": "{}"}}
    turns = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "stopped"},
    ]
    body = {"messages": turns, "add_generation_prompt": False}
    tokens = tiny_server.http.post("/tokenize", json=body).json()["tokens"]
    text = tiny_server.http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
    assert text == (
        '<user>hello<end><assistant><tool_call>{"name": "stop", "arguments": {}}</tool_call><end>'
        "<tool>stopped<end>"
    )
    assert create(client, messages=turns, tools=TOOLS).choices[0].message.role == "assistant"


@pytest.mark.parametrize(
    ("changes", "param", "message"),
    [
        ({"messages": []}, "messages", "at least one"),
        ({"messages": "hi"}, "messages", "list"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "text"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "missing"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "'user'"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages[0].content", "empty"),
        (
            {"messages": [{"role": "user", "content": "x", "name": "Bo"}]},
            "messages[0].name",
            "name",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
            "'text'",
        ),
        (
            {"messages": [{"role": "tool", "content": "x", "tool_call_id": "c"}]},
            "messages[0].tool_call_id",
            "no call",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "tool_call_id": "c"}]},
            "messages[0].tool_call_id",
            "role 'tool'",
        ),
        ({"messages": [{"role": "user", "content": "x" * 3000}]}, "messages", "context"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "two names"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "at least 1"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "from 0 to 20"),
        ({"logprobs": 3}, "logprobs", "boolean"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream"),
        ({"response_format": {"type": "xml"}}, "response_format", "'json_schema'"),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema",
            "missing",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {"type": "what"}},
                }
            },
            "response_format",
            "what",
        ),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tool_choice": "maybe", "tools": TOOLS}, "tool_choice", "'auto'"),
        ({"parallel_tool_calls": True}, "parallel_tool_calls", "needs tools"),
        ({"parallel_tool_calls": False, "tools": TOOLS}, "parallel_tool_calls", "required"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools", "own name"),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools[0].function.name",
            "pattern",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "strict": True}}]},
            "tools[0].function.strict",
            "auto",
        ),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
            "plot, stop",
        ),
        (
            {"tools": TOOLS, "structured_outputs": {"regex": "a"}},
            "structured_outputs",
            "give one of them",
        ),
        (
            {"tools": TOOLS, "response_format": {"type": "json_object"}},
            "response_format",
            "give one of them",
        ),
        (
            {
                "tools": [
                    {"type": "function", "function": {"name": "a", "parameters": {"type": 3}}}
                ],
                "tool_choice": "required",
            },
            "tools",
            "cannot be used",
        ),
        ({"functions": []}, "functions", "unknown parameter"),
        ({"store": True}, "store", "unknown parameter"),
        ({"best_of": 2}, "best_of", "unknown parameter"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_its_name(
    tiny_server: RunningServer, changes: dict[str, Any], param: str, message: str
) -> None:
    error = refused(tiny_server, **changes)
    assert error["param"] == param
    assert message in error["message"]


def _calls(answer: Any, is_stream: bool) -> tuple[list[tuple[str, str]], str, str | None]:
    """Names and arguments, the text beside them, and why it ended."""
    if not is_stream:
        (choice,) = answer.choices
        calls = [
            (one.function.name, one.function.arguments) for one in choice.message.tool_calls or []
        ]
        return calls, choice.message.content or "", choice.finish_reason
    made: dict[int, list[str]] = {}
    ids: dict[int, list[str]] = {}
    text, reason = "", None
    for chunk in answer:
        (choice,) = chunk.choices
        text += choice.delta.content or ""
        reason = choice.finish_reason or reason
        for one in choice.delta.tool_calls or []:
            parts = made.setdefault(one.index, ["", ""])
            parts[0] += one.function.name or ""
            parts[1] += one.function.arguments or ""
            ids.setdefault(one.index, []).extend([one.id] if one.id else [])
    assert list(made) == list(range(len(made)))
    assert all(len(found) == 1 for found in ids.values())
    return [(name, arguments) for name, arguments in made.values()], text, reason
