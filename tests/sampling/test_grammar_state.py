"""A document in the making: a function of its tokens, whichever way it came to them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra_lab.errors import StructuredOutputError
from infra_lab.sampling.grammar import GrammarCompiler
from infra_lab.sampling.grammar_state import GrammarState
from infra_lab.structured_outputs import StructuredOutputsParams
from tests.sampling.grammar_helpers import (
    END_OF_TURN,
    EOS,
    byte_level_tokenizer,
    visible_bytes,
)

TOKENIZER = byte_level_tokenizer()
VOCAB = TOKENIZER.vocab_size + 5
COMPILER = GrammarCompiler(TOKENIZER, VOCAB)
GRAMMARS = [
    COMPILER.compile(form)
    for form in (
        StructuredOutputsParams(json={"type": "array", "items": {"enum": ["ab", 12, None]}}),
        StructuredOutputsParams(json={"properties": {"a": {"type": "integer"}}, "type": "object"}),
        StructuredOutputsParams(regex="(ab|abc|é)*x?"),
        StructuredOutputsParams(choice=["ab", "abc", "a"]),
    )
]


def same(left: GrammarState, right: GrammarState) -> None:
    assert left.token_ids == right.token_ids
    assert left.has_ended == right.has_ended
    assert left.is_complete == right.is_complete
    if not left.has_ended:
        assert np.array_equal(left.allowed(), right.allowed())


@settings(max_examples=80)
@given(grammar=st.sampled_from(GRAMMARS), data=st.data(), min_tokens=st.integers(0, 6))
def test_steps_forward_back_drafts_and_forks_end_where_the_tokens_alone_lead(
    grammar: object, data: st.DataObject, min_tokens: int
) -> None:
    def fresh(token_ids: list[int]) -> GrammarState:
        return grammar.start((END_OF_TURN,), min_tokens, token_ids)  # type: ignore[attr-defined]

    state = fresh([])
    for _ in range(data.draw(st.integers(1, 12))):
        action = data.draw(st.sampled_from(["advance", "advance", "back", "draft", "fork"]))
        if action == "back":
            state.roll_back(data.draw(st.integers(0, state.num_tokens)))
        elif action == "fork":
            other = state.fork()
            if not state.has_ended:
                state.advance(int(state.allowed().nonzero()[0][0]))
            state = other
        elif not state.has_ended and action == "advance":
            allowed = state.allowed().nonzero()[0].tolist()
            state.advance(data.draw(st.sampled_from(allowed)))
        elif not state.has_ended:
            draft = data.draw(st.lists(st.integers(0, VOCAB - 1), max_size=3))
            allowed = state.allowed().nonzero()[0].tolist()
            draft = [data.draw(st.sampled_from(allowed)), *draft]
            before = list(state.token_ids)
            masks = state.masks(draft)
            assert state.token_ids == before
            for index, mask in enumerate(masks):
                assert np.array_equal(mask, fresh(before + draft[:index]).allowed())
            if len(masks) <= len(draft):
                stopper = draft[len(masks) - 1]
                assert stopper in (EOS, END_OF_TURN) or not masks[-1][stopper]
        same(state, fresh(state.token_ids))


def test_the_end_is_allowed_exactly_where_the_document_is_whole() -> None:
    state = GRAMMARS[3].start((END_OF_TURN,))
    spellings = {"": False, "a": True, "ab": True, "abc": True}
    for text, whole in spellings.items():
        state.roll_back(0)
        for char in text:
            state.advance(TOKENIZER.encode(char)[0])
        assert state.is_complete is whole
        assert bool(state.allowed()[EOS]) is bool(state.allowed()[END_OF_TURN]) is whole
    assert state.allowed().sum() == 2  # nothing but an end may follow "abc"


def test_before_min_tokens_the_document_goes_on_if_it_can() -> None:
    (a,), (b,) = TOKENIZER.encode("a"), TOKENIZER.encode("b")
    state = GRAMMARS[3].start(min_tokens=9)
    state.advance(a)
    assert not state.allowed()[EOS]
    state.advance(b)
    assert not state.allowed()[EOS]
    state.advance(*TOKENIZER.encode("c"))
    assert state.allowed().nonzero()[0].tolist() == [EOS]


def test_a_token_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    state = GRAMMARS[3].start()
    for wrong in (EOS, *TOKENIZER.encode("z"), VOCAB - 1):
        with pytest.raises(StructuredOutputError, match="does not continue"):
            state.advance(wrong)
    same(state, GRAMMARS[3].start())
    state.advance(*TOKENIZER.encode("a"))
    state.advance(EOS)
    for after in (EOS, *TOKENIZER.encode("b")):
        with pytest.raises(StructuredOutputError, match="has ended"):
            state.advance(after)
    assert state.error == "the document has ended"
    with pytest.raises(ValueError, match="3 tokens of 2"):
        state.roll_back(3)


STAND_INS = {char: byte for byte, char in enumerate(visible_bytes())}
BYTES_OF = {
    token_id: bytes(STAND_INS[char] for char in TOKENIZER.backend.id_to_token(token_id))
    for token_id in range(2, TOKENIZER.vocab_size)
}
BY_BYTE = {text[0]: token_id for token_id, text in BYTES_OF.items() if len(text) == 1}
CHOICES = ("ab", "abc", "a", "éa", "é12", '{"')


@given(choice=st.sampled_from(CHOICES), length=st.integers(0, 3))
def test_what_is_allowed_is_what_brute_force_over_the_texts_allows(
    choice: str, length: int
) -> None:
    """Bytes, so that a token may be half a character."""
    prefix = choice.encode()[:length]
    spelling = [BY_BYTE[byte] for byte in prefix]
    state = COMPILER.compile(StructuredOutputsParams(choice=CHOICES)).start((), 0, spelling)
    wanted = {
        token_id
        for token_id, text in BYTES_OF.items()
        if any(one.encode().startswith(prefix + text) for one in CHOICES)
    }
    if prefix.decode(errors="replace") in CHOICES:
        wanted.add(EOS)
    assert set(state.allowed().nonzero()[0].tolist()) == wanted
