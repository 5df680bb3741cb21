"""A request is refused for its own fault, with the numbers, before it reaches a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.engine.input_processor import InputProcessor
from infra_lab.errors import InvalidRequestError
from infra_lab.sampling_params import SamplingParams


class Letters:
    """Ids are letters' places in the alphabet; a "<" begins every text; spaces vanish."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids = [ord(letter) - ord("a") for letter in text if letter != " "]
        return [26, *ids] if add_special_tokens and ids else ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(chr(item + ord("a")) for item in token_ids if item < 26)


def processor(max_model_len: int = 2048, with_tokenizer: bool = True) -> InputProcessor:
    return InputProcessor(Letters() if with_tokenizer else None, 27, max_model_len)


def test_a_text_is_encoded_with_its_special_tokens() -> None:
    request = processor().process("abc", SamplingParams())
    assert (request.prompt, request.prompt_token_ids) == ("abc", [26, 0, 1, 2])


@pytest.mark.parametrize("ids", [[1, 2], (1, 2), np.array([1, 2]), range(1, 3)])
def test_token_ids_are_taken_as_they_are(ids: Any) -> None:
    request = processor().process(ids)
    assert (request.prompt, request.prompt_token_ids) == (None, [1, 2])
    assert all(type(item) is int for item in request.prompt_token_ids)


@pytest.mark.parametrize("prompt", ["", [], (), " "])
def test_an_empty_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"empty|no tokens left"):
        processor().process(prompt)


@pytest.mark.parametrize("bad", [27, -1, 10**30])
def test_an_id_outside_the_vocabulary_is_refused_naming_id_place_and_range(bad: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"prompt token 1 is id {bad}.* 0 to 26"):
        processor().process([0, bad])


@pytest.mark.parametrize("bad", [1.0, "1", True, None, [1]])
def test_an_id_that_is_no_integer_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidRequestError, match="prompt token 2 is "):
        processor().process([0, 1, bad])


@pytest.mark.parametrize("prompt", [5, None, b"abc", {1: 2}, object()])
def test_a_prompt_that_is_neither_text_nor_ids_is_refused(prompt: Any) -> None:
    with pytest.raises(InvalidRequestError, match="must be a string or a list of token ids"):
        processor().process(prompt)


def test_half_a_surrogate_pair_is_refused_as_no_text() -> None:
    with pytest.raises(InvalidRequestError, match=r"surrogate.*character 1"):
        processor().process("a\ud83d")


def test_a_prompt_of_2047_tokens_fits_a_context_of_2048_and_leaves_room_for_one() -> None:
    request = processor(2048).process([0] * 2047, SamplingParams(max_tokens=None))
    assert request.sampling_params.max_tokens == 1


def test_a_prompt_of_2048_tokens_is_refused_by_a_context_of_2048() -> None:
    with pytest.raises(InvalidRequestError, match="2048 tokens and the context holds 2048"):
        processor(2048).process([0] * 2048)


@given(st.integers(1, 30), st.none() | st.integers(1, 40), st.integers(2, 40))
def test_prompt_and_output_never_exceed_the_context(
    num_prompt_tokens: int, max_tokens: int | None, max_model_len: int
) -> None:
    params = SamplingParams(max_tokens=max_tokens)
    if num_prompt_tokens >= max_model_len:
        with pytest.raises(InvalidRequestError):
            processor(max_model_len).process([0] * num_prompt_tokens, params)
        return
    request = processor(max_model_len).process([0] * num_prompt_tokens, params)
    room = max_model_len - num_prompt_tokens
    expected = room if max_tokens is None else min(room, max_tokens)
    assert request.sampling_params.max_tokens == expected


def test_a_minimum_that_the_context_has_no_room_for_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"min_tokens=5 does not fit.*room for 4 of 10"):
        processor(10).process([0] * 6, SamplingParams(min_tokens=5))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (SamplingParams(logit_bias={27: 1}), "logit_bias names token id 27.* 0 to 26"),
        (SamplingParams(stop_token_ids=(99,)), "stop_token_ids names token id 99.* 0 to 26"),
    ],
)
def test_parameters_that_name_unknown_tokens_are_refused(
    params: SamplingParams, message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        processor().process("abc", params)


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_more_logprobs_than_the_vocabulary_has_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{name}=9 asks for more"):
        InputProcessor(None, 8, 100).process([1], SamplingParams(**{name: 9}))


def test_without_a_tokenizer_texts_and_stop_strings_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="text prompt needs a tokenizer"):
        processor(with_tokenizer=False).process("abc")
    with pytest.raises(InvalidRequestError, match="stop strings need a tokenizer"):
        processor(with_tokenizer=False).process([1], SamplingParams(stop="x"))


def test_parameters_of_another_type_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="from_dict"):
        processor().process("abc", {"n": 1})  # type: ignore[arg-type]
