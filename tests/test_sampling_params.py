"""Each parameter is honoured, normalised or refused with a message that helps."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.errors import InvalidRequestError
from infra_lab.sampling_params import MAX_SEED, SamplingParams

ACCEPTED: list[tuple[str, Any, Any]] = [
    ("n", 4, 4),
    ("temperature", 0, 0.0),
    ("temperature", 2.5, 2.5),
    ("top_k", 0, 0),
    ("top_k", -1, 0),
    ("top_k", np.int64(5), 5),
    ("top_p", 1, 1.0),
    ("top_p", 1e-6, 1e-6),
    ("min_p", 0, 0.0),
    ("min_p", 1, 1.0),
    ("repetition_penalty", 0.1, 0.1),
    ("presence_penalty", -2, -2.0),
    ("frequency_penalty", np.float32(2), 2.0),
    ("logit_bias", {0: -100, 7: 100}, {0: -100.0, 7: 100.0}),
    ("logit_bias", {}, None),
    ("seed", 0, 0),
    ("seed", MAX_SEED, MAX_SEED),
    ("max_tokens", 1, 1),
    ("max_tokens", None, None),
    ("min_tokens", 16, 16),
    ("stop", "end", ("end",)),
    ("stop", ["a", "b"], ("a", "b")),
    ("stop", None, ()),
    ("stop_token_ids", [2, 0], (2, 0)),
    ("stop_token_ids", None, ()),
    ("logprobs", 0, 0),
    ("logprobs", 20, 20),
    ("prompt_logprobs", 0, 0),
]

REFUSED: list[tuple[str, Any]] = [
    *(("n", value) for value in (0, -1, 1.0, "2", True, None)),
    *(("temperature", value) for value in (-0.1, math.nan, math.inf, "1", True, None, 10**400)),
    *(("top_k", value) for value in (-2, 1.5, True, None)),
    *(("top_p", value) for value in (0, -0.5, 1.01, math.nan, False)),
    *(("min_p", value) for value in (-0.01, 1.01, math.nan)),
    *(("repetition_penalty", value) for value in (0, -1, math.inf, math.nan)),
    *(("presence_penalty", value) for value in (-2.01, 2.01, math.nan)),
    *(("frequency_penalty", value) for value in (-2.01, 2.01, None)),
    *(("logit_bias", value) for value in ([1], {1: 101}, {1: -100.5}, {1: math.nan}, {-1: 0})),
    *(("logit_bias", value) for value in ({"1": 0}, {True: 0}, {1: "x"}, {1.0: 0})),
    *(("seed", value) for value in (-1, MAX_SEED + 1, 1.0, True)),
    *(("max_tokens", value) for value in (0, -1, 1.5, True)),
    *(("min_tokens", value) for value in (-1, 1.5, None)),
    *(("stop", value) for value in ("", ["a", ""], [1], b"a", 3, {"a": 1})),
    *(("stop_token_ids", value) for value in ("12", [-1], [1.0], [True], 5, {1: 2})),
    *(("logprobs", value) for value in (-1, 21, True, 1.0)),
    *(("prompt_logprobs", value) for value in (-1, 21)),
    *(("include_stop_str_in_output", value) for value in (1, None, "yes")),
    *(("ignore_eos", value) for value in (0, "true")),
    *(("skip_special_tokens", value) for value in (1, None)),
]


@pytest.mark.parametrize(("name", "given", "kept"), ACCEPTED)
def test_an_allowed_value_is_kept_in_its_normal_form(name: str, given: Any, kept: Any) -> None:
    value = getattr(SamplingParams(**{name: given}), name)
    assert value == kept
    assert type(value) is type(kept)


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_a_value_out_of_range_is_refused_naming_parameter_value_and_range(
    name: str, value: Any
) -> None:
    with pytest.raises(InvalidRequestError, match=name) as caught:
        SamplingParams(**{name: value})
    assert " must be " in str(caught.value)
    assert ", not " in str(caught.value)
    assert len(str(caught.value)) < 300


def test_the_message_says_what_was_given_what_is_allowed_and_what_to_do() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(temperature=-1)
    assert str(caught.value) == (
        "temperature must be a finite number at least 0, not -1; "
        "give 0 for greedy decoding or 1 for the model's own distribution"
    )


def test_several_samples_of_greedy_decoding_are_refused_as_contradictory() -> None:
    with pytest.raises(InvalidRequestError, match="n=3 with temperature=0"):
        SamplingParams(n=3, temperature=0)


def test_a_minimum_above_the_maximum_is_refused_as_contradictory() -> None:
    with pytest.raises(InvalidRequestError, match="min_tokens=9 is more than max_tokens=8"):
        SamplingParams(min_tokens=9, max_tokens=8)
    assert SamplingParams(min_tokens=9, max_tokens=None).min_tokens == 9


def test_an_unknown_parameter_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(InvalidRequestError, match="'max_new_tokens': did you mean 'max_tokens'"):
        SamplingParams.from_dict({"max_new_tokens": 3})


def test_an_unknown_parameter_like_no_other_is_refused_with_the_list_of_all() -> None:
    with pytest.raises(InvalidRequestError, match=r"known are .*temperature"):
        SamplingParams.from_dict({"qqq": 3})


def test_parameters_that_are_no_mapping_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="must be a mapping"):
        SamplingParams.from_dict([("n", 1)])  # type: ignore[arg-type]


def test_json_keys_of_logit_bias_become_token_ids() -> None:
    assert SamplingParams.from_dict({"logit_bias": {"42": 1}}).logit_bias == {42: 1.0}


@pytest.mark.parametrize("key", ["-1", "x", "²", "1.0", ""])
def test_json_keys_of_logit_bias_that_are_no_ids_are_refused(key: str) -> None:
    with pytest.raises(InvalidRequestError, match="logit_bias key"):
        SamplingParams.from_dict({"logit_bias": {key: 1}})


def test_the_callers_mappings_and_lists_are_not_kept() -> None:
    bias = {1: 1.0}
    params = SamplingParams(logit_bias=bias)
    bias[2] = 2.0
    assert params.logit_bias == {1: 1.0}


@given(
    temperature=st.floats(0, 10),
    top_k=st.integers(-1, 100),
    top_p=st.floats(0, 1, exclude_min=True),
    stop=st.lists(st.text(min_size=1), max_size=3),
    logit_bias=st.dictionaries(st.integers(0, 9), st.floats(-100, 100)),
)
def test_normalising_twice_changes_nothing(**values: Any) -> None:
    params = SamplingParams(**values)
    assert replace(params) == params


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=3,
)


@given(st.dictionaries(st.sampled_from(SamplingParams.__slots__), anything, max_size=4))
def test_any_value_is_either_accepted_or_refused_and_never_crashes(values: dict[str, Any]) -> None:
    try:
        SamplingParams.from_dict(values)
    except InvalidRequestError as error:
        assert len(str(error)) > 20  # noqa: PT017
