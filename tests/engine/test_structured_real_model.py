"""SmolLM2 answers in JSON that validates, by the jsonschema package, whatever the temperature."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from infra_lab.engine.llm import LLM
from infra_lab.errors import InvalidRequestError
from infra_lab.sampling_params import SamplingParams
from infra_lab.structured_outputs import StructuredOutputsParams

pytestmark = pytest.mark.model

WORD = {"type": "string", "maxLength": 12}
SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {
            "name": WORD,
            "address": {
                "type": "object",
                "properties": {"city": WORD, "geo": {"$ref": "#/$defs/geo"}},
                "required": ["city", "geo"],
                "additionalProperties": False,
            },
        },
        "required": ["name", "address"],
        "additionalProperties": False,
        "$defs": {
            "geo": {
                "type": "object",
                "properties": {"lat": {"type": "integer", "minimum": -90, "maximum": 90}},
                "required": ["lat"],
                "additionalProperties": False,
            }
        },
    },
    {
        "type": "array",
        "items": {"enum": ["red", "绿", 'bl"ue\\', None]},
        "minItems": 2,
        "maxItems": 4,
    },
    {
        "type": "array",
        "items": {"type": "number", "minimum": 0.5, "exclusiveMaximum": 3},
        "maxItems": 3,
    },
    {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": WORD, "c": {"type": "null"}},
        "required": ["c"],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {
            "text": {"type": "string", "minLength": 3, "maxLength": 6, "pattern": "^[^a-z ]+$"},
            "code": {"type": "string", "pattern": r"^[A-Z]{2}-\d{3}$"},
            "day": {"type": "string", "format": "date"},
        },
        "required": ["text", "code", "day"],
        "additionalProperties": False,
    },
    {
        "anyOf": [
            {"const": "n/a"},
            {"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 99},
        ]
    },
]
PATTERNS = [
    r"\d{3}-\d{4}",
    r"(yes|no), (because|although) \w{2,9}\.",
    "[一-龥]{2,5}",
    r"[^\W\d]{4,8}",
]
CHOICES = ["positive", "negative", "neutral: 中立"]


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> LLM:
    return LLM(smollm2_path, kv_cache_bytes=128 << 20)


def texts(
    llm: LLM, forms: list[StructuredOutputsParams], question: str, **params: Any
) -> list[list[str]]:
    prompt = llm.tokenizer.apply_chat_template([{"role": "user", "content": question}])
    wanted = [SamplingParams(max_tokens=300, structured_outputs=form, **params) for form in forms]
    outputs = llm.generate([prompt] * len(forms), wanted)
    llm.engine.scheduler.check_integrity()
    assert {s.finish_reason for output in outputs for s in output.outputs} == {"stop"}
    return [[sample.text for sample in output.outputs] for output in outputs]


SAMPLED = {"temperature": 1.5, "n": 2}


@pytest.mark.parametrize("params", [{"temperature": 0}, SAMPLED], ids=["greedy", "sampled"])
def test_json_always_validates(llm: LLM, params: dict[str, Any]) -> None:
    forms = [StructuredOutputsParams(json=schema) for schema in SCHEMAS]
    seeds = {} if params["temperature"] == 0 else {"seed": 5}
    found = texts(llm, forms, "Give me an example, as JSON.", **params, **seeds)
    for schema, samples in zip(SCHEMAS, found, strict=True):
        for text in samples:
            Draft202012Validator(schema).validate(json.loads(text))


@pytest.mark.parametrize("params", [{"temperature": 0}, SAMPLED], ids=["greedy", "sampled"])
def test_patterns_always_match_in_full_and_choices_are_choices(
    llm: LLM, params: dict[str, Any]
) -> None:
    forms = [StructuredOutputsParams(regex=pattern) for pattern in PATTERNS]
    forms.append(StructuredOutputsParams(choice=CHOICES))
    found = texts(llm, forms, "What do you think of it?", **params)
    for pattern, samples in zip(PATTERNS, found, strict=False):
        assert all(re.fullmatch(pattern, text) for text in samples), (pattern, samples)
    assert set(found[-1]) <= set(CHOICES)


def test_a_refused_form_names_its_prompt_and_leaves_the_others_to_run(llm: LLM) -> None:
    forms = [StructuredOutputsParams(json=schema) for schema in (True, {"enum": []})]
    params = [SamplingParams(max_tokens=2, structured_outputs=form) for form in forms]
    with pytest.raises(InvalidRequestError, match="prompt 1: structured_outputs: json"):
        llm.generate(["a", "b"], params)
    fine, refused = llm.generate(["a", "b"], params, skip_invalid=True)
    assert fine.error is None
    assert refused.error is not None
    assert "cannot be used" in refused.error
