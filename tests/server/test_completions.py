"""/v1/completions as the `openai` client sees it, against the engine used directly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError, NotFoundError, OpenAI

from infra_lab.engine.llm import LLM
from infra_lab.sampling_params import SamplingParams
from tests.models.lora_helpers import save_adapter
from tests.server.running import MODEL, RunningServer, error_of, running
from tests.server.tiny_model import CONTEXT, load_tiny

PROMPTS = ["abc", "true or null", "12"]


@pytest.fixture
def client(tiny_server: RunningServer) -> OpenAI:
    return tiny_server.openai()


def direct(llm: LLM, prompt: str, **params: Any) -> Any:
    return llm.generate(prompt, SamplingParams(**params))[0]


def test_an_answer_is_the_engines_own(client: OpenAI, tiny_llm: LLM) -> None:
    expected = direct(tiny_llm, "abc", temperature=0.0, max_tokens=9)
    answer = client.completions.create(model=MODEL, prompt="abc", temperature=0, max_tokens=9)
    (choice,) = answer.choices
    assert choice.text == expected.outputs[0].text
    assert choice.finish_reason == expected.outputs[0].finish_reason
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(expected.prompt_token_ids)
    assert answer.usage.completion_tokens == len(expected.outputs[0].token_ids)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.id.startswith("cmpl-")
    assert answer.model == MODEL


def test_sixteen_tokens_are_the_default_and_null_is_the_context(client: OpenAI) -> None:
    settings: dict[str, Any] = {"model": MODEL, "prompt": "abc", "extra_body": {"ignore_eos": True}}
    answer = client.completions.create(**settings)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16
    settings["prompt"] = [10] * (CONTEXT - 20)
    answer = client.completions.create(max_tokens=None, **settings)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 20


def test_several_prompts_in_every_form(client: OpenAI, tiny_llm: LLM) -> None:
    ids = [tiny_llm.tokenizer.encode(prompt) for prompt in PROMPTS]
    expected = [direct(tiny_llm, p, temperature=0.0, max_tokens=5).outputs[0].text for p in PROMPTS]
    for prompt in (PROMPTS, ids):
        answer = client.completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=5)
        assert [choice.text for choice in answer.choices] == expected
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
    answer = client.completions.create(model=MODEL, prompt=ids[1], temperature=0, max_tokens=5)
    assert [choice.text for choice in answer.choices] == expected[1:2]


def test_two_prompts_of_two_samples_are_four_choices_in_the_order_of_the_prompts(
    client: OpenAI, tiny_llm: LLM
) -> None:
    settings: dict[str, Any] = {"n": 2, "seed": 5, "max_tokens": 6}
    expected = [
        sample.text
        for prompt in PROMPTS[:2]
        for sample in direct(tiny_llm, prompt, **settings).outputs
    ]
    answer = client.completions.create(model=MODEL, prompt=PROMPTS[:2], **settings)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in answer.choices] == expected
    again = client.completions.create(model=MODEL, prompt=PROMPTS[:2], **settings)
    assert [choice.text for choice in again.choices] == expected


def test_best_of_gives_the_likeliest(client: OpenAI, tiny_llm: LLM) -> None:
    settings: dict[str, Any] = {"n": 1, "best_of": 4, "seed": 2, "max_tokens": 6}
    expected = direct(tiny_llm, "abc", **settings).outputs[0].text
    answer = client.completions.create(model=MODEL, prompt="abc", **settings)
    assert [choice.text for choice in answer.choices] == [expected]


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.7, "seed": 1, "top_p": 0.8},
        {"temperature": 1.3, "seed": 2, "top_k": 5},
        {"temperature": 1.0, "seed": 3, "min_p": 0.1},
        {"temperature": 0, "presence_penalty": 1.5},
        {"temperature": 0, "frequency_penalty": -1.5},
        {"temperature": 0, "repetition_penalty": 1.7},
        {"temperature": 0, "logit_bias": {"40": 100}},
        {"temperature": 0, "min_tokens": 12, "logit_bias": {"0": 50}},
        {"temperature": 0, "stop_token_ids": [100, 101, 102, 103, 104, 105], "ignore_eos": True},
        {"temperature": 0, "structured_outputs": {"regex": "[a-c]{2,4}!"}},
        {"temperature": 0, "skip_special_tokens": False, "logit_bias": {"1": 100}},
    ],
)
def test_every_parameter_of_sampling_reaches_the_engine(
    client: OpenAI, tiny_llm: LLM, params: dict[str, Any]
) -> None:
    given = {"max_tokens": 12} | params
    bias = given.get("logit_bias")
    own = given | ({"logit_bias": {int(k): v for k, v in bias.items()}} if bias else {})
    expected = tiny_llm.generate("abc", SamplingParams.from_dict(own))[0].outputs[0]
    answer = client.completions.create(model=MODEL, prompt="abc", extra_body=given)
    assert answer.choices[0].text == expected.text
    assert answer.choices[0].finish_reason == expected.finish_reason


def test_a_stop_string_ends_the_text_before_it_or_behind_it(client: OpenAI, tiny_llm: LLM) -> None:
    whole = direct(tiny_llm, "abc", temperature=0.0, max_tokens=30).outputs[0].text
    stop = whole[10:12]
    where = whole.index(stop)
    settings: dict[str, Any] = {"model": MODEL, "prompt": "abc", "temperature": 0, "max_tokens": 30}
    for given in (stop, [stop, "never said"]):
        (choice,) = client.completions.create(stop=given, **settings).choices
        assert choice.text == whole[:where]
        assert choice.finish_reason == "stop"
        assert choice.model_extra == {"stop_reason": stop}
    kept = client.completions.create(
        stop=stop, extra_body={"include_stop_str_in_output": True}, **settings
    )
    assert kept.choices[0].text == whole[: where + len(stop)]
    pieces = [
        chunk.choices[0].text
        for chunk in client.completions.create(stop=stop, stream=True, **settings)
    ]
    assert "".join(pieces) == whole[:where]


@pytest.mark.parametrize("count", [0, 1, 5])
def test_logprobs_are_the_engines_and_name_the_chosen_token(
    client: OpenAI, tiny_llm: LLM, count: int
) -> None:
    settings: dict[str, Any] = {"temperature": 1.0, "seed": 4, "max_tokens": 6, "logprobs": count}
    expected = direct(tiny_llm, "abc", **settings).outputs[0]
    (choice,) = client.completions.create(model=MODEL, prompt="abc", **settings).choices
    found = choice.logprobs
    assert found is not None
    assert found.token_logprobs == pytest.approx([one.logprob for one in expected.logprobs])
    assert found.tokens is not None
    assert found.top_logprobs is not None
    assert found.text_offset is not None
    assert found.text_offset[0] == 0
    assert found.text_offset == sorted(found.text_offset)
    for token, top, entry in zip(found.tokens, found.top_logprobs, expected.logprobs, strict=True):
        assert top[token] == pytest.approx(entry.logprob)
        assert max(1, count) <= len(top) <= count + 1
        assert sorted(top.values())[-1] == pytest.approx(
            max(entry.logprob, *dict(entry.top).values(), -1e9)
        )


def test_echo_begins_with_the_prompt_and_scores_it(client: OpenAI, tiny_llm: LLM) -> None:
    settings: dict[str, Any] = {"temperature": 0.0, "max_tokens": 3}
    expected = direct(tiny_llm, "{12}", prompt_logprobs=1, logprobs=1, **settings)
    (choice,) = client.completions.create(
        model=MODEL, prompt="{12}", echo=True, logprobs=1, **settings
    ).choices
    assert choice.text == "{12}" + expected.outputs[0].text
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs is not None
    assert choice.logprobs.token_logprobs[0] is None
    scored = [one.logprob for one in [*expected.prompt_logprobs[1:], *expected.outputs[0].logprobs]]
    assert choice.logprobs.token_logprobs[1:] == pytest.approx(scored)
    assert choice.logprobs.tokens is not None
    assert "".join(choice.logprobs.tokens[: len(expected.prompt_token_ids)]) == "{12}"
    assert choice.logprobs.text_offset is not None
    assert choice.logprobs.text_offset[len(expected.prompt_token_ids)] == len("{12}")


def test_an_echoed_prompt_of_ids_is_decoded_once_for_a_whole_stream(
    tiny_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = tiny_server.llm.tokenizer
    prompt = tokenizer.encode("a prompt that comes back as text")
    decode, asked = type(tokenizer).decode, []

    def counting(self: object, token_ids: Any, skip_special_tokens: bool = True) -> str:
        asked.append(list(token_ids))
        return decode(tokenizer, token_ids, skip_special_tokens)

    monkeypatch.setattr(type(tokenizer), "decode", counting)
    chunks = tiny_server.openai().completions.create(
        model=MODEL, prompt=prompt, echo=True, stream=True, max_tokens=12
    )
    texts = [choice.text for chunk in chunks for choice in chunk.choices]
    assert "".join(texts).startswith("a prompt that comes back as text")
    assert len(texts) > 2
    assert asked.count(prompt) == 1


def test_echo_without_tokens_only_scores_the_prompt(client: OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="abcd", echo=True, logprobs=0, max_tokens=0, temperature=0
    )
    (choice,) = answer.choices
    assert choice.text == "abcd"
    assert choice.finish_reason == "length"
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == ["abc", "d"]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0


@pytest.mark.parametrize("extra", [{}, {"echo": True}, {"n": 3, "seed": 1}, {"logprobs": 2}])
def test_the_pieces_of_a_stream_make_the_whole(client: OpenAI, extra: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"model": MODEL, "prompt": PROMPTS, "max_tokens": 20, **extra}
    settings |= {"temperature": 1.0, "seed": 9}
    whole = client.completions.create(**settings)
    texts = {choice.index: "" for choice in whole.choices}
    tokens: dict[int, list[str]] = {choice.index: [] for choice in whole.choices}
    ends: dict[int, list[str]] = {choice.index: [] for choice in whole.choices}
    usage = []
    for chunk in client.completions.create(
        stream=True, stream_options={"include_usage": True}, **settings
    ):
        usage.append(chunk.usage)
        assert bool(chunk.choices) == (chunk.usage is None)
        for choice in chunk.choices:
            assert ends[choice.index] == []  # nothing comes behind the end
            texts[choice.index] += choice.text
            if choice.logprobs is not None:
                tokens[choice.index] += choice.logprobs.tokens or []
            if choice.finish_reason is not None:
                ends[choice.index].append(choice.finish_reason)
    assert texts == {choice.index: choice.text for choice in whole.choices}
    assert ends == {choice.index: [choice.finish_reason] for choice in whole.choices}
    # What the cache gave is not compared: the second request found the first one's blocks.
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert getattr(usage[-1], name) == getattr(whole.usage, name)
    if "logprobs" in extra:
        assert tokens == {choice.index: choice.logprobs.tokens for choice in whole.choices}


def test_a_stream_ends_with_done_and_keeps_proxies_from_collecting_it(
    tiny_server: RunningServer,
) -> None:
    body = {"model": MODEL, "prompt": "abc", "stream": True, "max_tokens": 2}
    response = tiny_server.http.post("/v1/completions", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    events = response.text.strip().split("\n\n")
    assert events[-1] == "data: [DONE]"
    for one in events[:-1]:
        assert json.loads(one.removeprefix("data: "))["object"] == "text_completion"


def test_prefixes_are_found_in_the_cache_and_a_salt_keeps_them_apart(client: OpenAI) -> None:
    prompt = "a text of its own that is long enough for some blocks, " * 2

    def cached(**extra: str) -> int:
        answer = client.completions.create(
            model=MODEL, prompt=prompt, max_tokens=1, extra_body=extra
        )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens or 0

    assert cached(cache_salt="mine") == 0
    assert cached(cache_salt="mine") > 50
    assert cached(cache_salt="yours") == 0


@pytest.mark.parametrize(
    ("changes", "param", "message"),
    [
        ({"suffix": "x"}, "suffix", "not trained for"),
        ({"suffix": ""}, "suffix", "not trained for"),
        ({"best_of": 3, "stream": True}, "best_of", "cannot be streamed"),
        ({"best_of": 1, "n": 2}, "best_of", "lower n"),
        ({"n": 0}, "n", "at least 1"),
        ({"n": 65}, "n", "at most 64"),
        ({"n": 10**30}, "n", "at most 64"),
        ({"n": 2, "temperature": 0}, "n", "greedy"),
        ({"logprobs": 21}, "logprobs", "from 0 to 20"),
        ({"logprobs": -1}, "logprobs", "from 0 to 20"),
        ({"max_tokens": 0}, "max_tokens", "echo"),
        ({"max_tokens": -5}, "max_tokens", "at least 1"),
        ({"temperature": -0.1}, "temperature", "at least 0"),
        ({"temperature": "warm"}, "temperature", "number"),
        ({"top_p": 0}, "top_p", "above 0"),
        ({"top_p": 1.1}, "top_p", "at most 1"),
        ({"top_k": -2}, "top_k", "at least 0"),
        ({"min_p": 2}, "min_p", "at most 1"),
        ({"presence_penalty": 2.5}, "presence_penalty", "at most 2"),
        ({"frequency_penalty": -3}, "frequency_penalty", "at least -2"),
        ({"seed": -1}, "seed", "from 0"),
        ({"seed": True}, "seed", "integer"),
        ({"stop": ""}, "stop", "non-empty"),
        ({"stop": ["a", ""]}, "stop", "non-empty"),
        ({"stop": [1]}, "stop[0]", "string"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "integer"),
        ({"logit_bias": {"1": 101}}, "logit_bias", "at most 100"),
        ({"logit_bias": {"99999": 1}}, "logit_bias", "outside the vocabulary"),
        ({"stop_token_ids": [99999]}, "stop_token_ids", "outside the vocabulary"),
        ({"min_tokens": 30}, "min_tokens", "max_tokens"),
        ({"priority": 1}, "priority", "scheduling_policy"),
        ({"kv_budget": 8}, "kv_budget", "sparse_kv"),
        ({"num_speculative_tokens": 2}, "num_speculative_tokens", "without speculation"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream"),
        (
            {"stream": True, "stream_options": {"x": 1}},
            "stream_options.x",
            "unknown parameter",
        ),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs", "missing )"),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"grammar": "x"}}, "structured_outputs", "no setting"),
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": []}, "prompt", "empty"),
        ({"prompt": [[]]}, "prompt", "empty"),
        ({"prompt": ["a", ""]}, "prompt", "empty"),
        ({"prompt": [99999]}, "prompt", "outside the vocabulary"),
        ({"prompt": [-1]}, "prompt", "outside the vocabulary"),
        ({"prompt": [1.5]}, "prompt[0]", "integer"),
        ({"prompt": {"a": 1}}, "prompt", "string"),
        ({"prompt": None}, "prompt", "string"),
        ({"prompt": "a" * 3000}, "prompt", "context"),
        ({"prompt": ["a"] * 1000}, "prompt", "split it"),
        ({"prompt": "\ud800"}, "prompt", ""),
        ({"echo": "yes"}, "echo", "boolean"),
        ({"temprature": 1}, "temprature", "unknown parameter"),
        ({"model": 3}, "model", "string"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_its_name(
    tiny_server: RunningServer, changes: dict[str, Any], param: str, message: str
) -> None:
    body = {"model": MODEL, "prompt": "abc"} | changes
    content = json.dumps(body)
    headers = {"Content-Type": "application/json"}
    response = tiny_server.http.post("/v1/completions", content=content, headers=headers)
    assert response.status_code == 400, response.text
    error = error_of(response)
    assert error["param"] == param
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("name", ["model", "prompt"])
def test_what_is_missing_is_named(tiny_server: RunningServer, name: str) -> None:
    body = {"model": MODEL, "prompt": "abc"}
    del body[name]
    response = tiny_server.http.post("/v1/completions", json=body)
    assert response.status_code == 400
    assert error_of(response) == {
        "message": f"{name} is missing",
        "type": "invalid_request_error",
        "param": name,
        "code": None,
    }


def test_the_client_sees_its_own_kinds_of_errors(client: OpenAI) -> None:
    with pytest.raises(NotFoundError) as missing:
        client.completions.create(model="gpt-5", prompt="abc")
    assert missing.value.code == "model_not_found"
    assert missing.value.param == "model"
    with pytest.raises(BadRequestError) as bad:
        client.completions.create(model=MODEL, prompt="abc", top_p=2)
    assert bad.value.param == "top_p"


def test_an_adapter_is_a_model_of_its_own(tiny_folder: Path, tmp_path: Path) -> None:
    save_adapter(tiny_folder, tmp_path / "adapter", 3, target_modules=["q_proj", "down_proj"])
    llm = load_tiny(tiny_folder)
    llm.load_lora("mine", tmp_path / "adapter")
    params = SamplingParams(temperature=0, max_tokens=9)
    expected = {
        MODEL: llm.generate("abc", params)[0].outputs[0].text,
        "mine": llm.generate("abc", params, lora="mine")[0].outputs[0].text,
    }
    assert expected[MODEL] != expected["mine"]
    with running(llm) as server:
        client = server.openai()
        assert [model.id for model in client.models.list().data] == [MODEL, "mine"]
        for model, text in expected.items():
            answer = client.completions.create(
                model=model, prompt="abc", temperature=0, max_tokens=9
            )
            assert (answer.model, answer.choices[0].text) == (model, text)
