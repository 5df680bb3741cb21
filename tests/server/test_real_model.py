"""SmolLM2 behind the API, as the `openai` client sees it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from infra_lab.engine.llm import LLM
from tests.server.running import RunningServer, running

pytestmark = pytest.mark.model
NAME = "smollm2-135m"
QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Tells the weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 20}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]


@pytest.fixture(scope="module")
def server(smollm2_path: Path) -> Iterator[RunningServer]:
    with running(LLM(NAME, max_num_seqs=8), model_name=NAME) as server:
        yield server
        stats = server.at_rest()
        assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)


@pytest.fixture
def client(server: RunningServer) -> OpenAI:
    return server.openai(timeout=60)


def test_it_knows_the_capital_whole_and_streamed(client: OpenAI) -> None:
    settings: dict[str, Any] = {"model": NAME, "messages": QUESTION, "temperature": 0}
    answer = client.chat.completions.create(**settings)
    assert answer.choices[0].message.content == "The capital of France is Paris."
    assert answer.choices[0].finish_reason == "stop"
    pieces = [
        chunk.choices[0].delta.content or ""
        for chunk in client.chat.completions.create(stream=True, **settings)
    ]
    assert "".join(pieces) == "The capital of France is Paris."
    assert len(pieces) > 5


def test_text_goes_on_and_prompts_are_scored(client: OpenAI) -> None:
    answer = client.completions.create(
        model=NAME, prompt="The capital of France is", temperature=0, max_tokens=4, stop="."
    )
    assert answer.choices[0].text == " Paris"
    scores = [
        sum(
            client.completions.create(model=NAME, prompt=text, max_tokens=0, echo=True, logprobs=0)
            .choices[0]
            .logprobs.token_logprobs[1:]  # type: ignore[union-attr, index]
        )
        for text in ("Paris is a city in France.", "Paris is a city in pencil.")
    ]
    assert scores[0] > scores[1] + 2


def test_several_characters_of_a_language_arrive_whole(client: OpenAI) -> None:
    pieces = [
        chunk.choices[0].text
        for chunk in client.completions.create(
            model=NAME,
            prompt="中文: 你好, 世界。日本語: ",
            temperature=0,
            max_tokens=24,
            stream=True,
        )
    ]
    assert "\ufffd" not in "".join(pieces[:-1])


def test_a_function_is_called_with_a_city(client: OpenAI) -> None:
    settings: dict[str, Any] = {"model": NAME, "tools": WEATHER, "temperature": 0, "max_tokens": 64}
    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        answer = client.chat.completions.create(
            messages=question, tool_choice=choice, parallel_tool_calls=False, **settings
        )
        (call,) = answer.choices[0].message.tool_calls or []
        assert call.function.name == "get_weather"
        assert list(json.loads(call.function.arguments)) == ["city"]
