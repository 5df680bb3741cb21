"""What form may be asked for: one, of the right type, or a refusal that says what to do."""

from __future__ import annotations

from typing import Any

import pytest

from infra_lab.errors import InvalidRequestError
from infra_lab.sampling_params import SamplingParams
from infra_lab.structured_outputs import StructuredOutputsParams


def test_equal_forms_are_equal_however_they_were_given() -> None:
    text = StructuredOutputsParams(json=' {"b": 1.0, "a": "\\u00e9"} ')
    mapping = StructuredOutputsParams(json={"b": 1.0, "a": "é"})
    assert text == mapping
    assert hash(text) == hash(mapping)
    assert text.json == '{"b": 1.0, "a": "é"}'  # the order of names stays
    assert StructuredOutputsParams(choice=["a", "b", "a"]).choice == ("a", "b")
    assert StructuredOutputsParams(json=True).json == "true"
    assert StructuredOutputsParams(json=False).json == "false"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "exactly one of json, regex, choice, json_object, and has none"),
        ({"json": {}, "regex": "a"}, "json and regex"),
        ({"json": "{"}, "json is not JSON"),
        ({"json": '{"a": NaN}'}, "NaN is no JSON number"),
        ({"json": {"a": float("inf")}}, "json is not JSON"),
        ({"json": "[1]"}, "an object, true or false, not"),
        ({"json": 3}, "an object, true or false, not 3"),
        ({"json": {"a": {1, 2}}}, "json is not JSON"),
        ({"json": {"const": "\ud800"}}, "half a surrogate"),
        ({"json": '{"const": "\\ud800"}'}, "half a surrogate"),
        ({"json": "[" * 100_000}, "json is not JSON"),
        ({"regex": 3}, "regex must be text"),
        ({"regex": "\ud800"}, "half a surrogate"),
        ({"choice": []}, "choice is empty"),
        ({"choice": "ab"}, "a list of texts"),
        ({"choice": ["a", ""]}, "an empty text"),
        ({"choice": ["a", 1]}, "choice must be text"),
        ({"json_object": 1}, "json_object must be true or false"),
        ({"regex": "a", "disable_any_whitespace": True}, "for json and json_object"),
        ({"grammar": "x"}, "no setting 'grammar'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_form_that_makes_no_sense_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        SamplingParams.from_dict({"structured_outputs": given})


def test_a_form_comes_from_a_mapping_or_its_class_and_nothing_else() -> None:
    form = StructuredOutputsParams(regex="a")
    params = SamplingParams.from_dict({"structured_outputs": {"regex": "a"}})
    assert (
        params.structured_outputs
        == form
        == SamplingParams(structured_outputs=form).structured_outputs
    )
    for wrong in ({"regex": "a"}, "a"):
        with pytest.raises(InvalidRequestError, match="must be a StructuredOutputsParams"):
            SamplingParams(structured_outputs=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="must be a mapping"):
        StructuredOutputsParams.from_dict("a")  # type: ignore[arg-type]


def test_nothing_follows_a_document_not_even_with_ignore_eos() -> None:
    with pytest.raises(InvalidRequestError, match="contradicts itself"):
        SamplingParams(structured_outputs=StructuredOutputsParams(regex="a"), ignore_eos=True)
