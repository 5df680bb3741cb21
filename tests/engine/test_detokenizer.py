"""Streamed text equals the whole text, for every family of tokenizer, whatever the ids."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from infra_lab.engine.detokenizer import (
    REPLACEMENT,
    WINDOW_TOKENS,
    IncrementalDetokenizer,
    Vocabulary,
)

SPECIAL = ["<unk>", "<s>", "</s>"]
CORPUS = ["hello world, the quick brown fox 你好世界 😀 café naïve"] * 3


class Backed:
    """A tokenizer of ours around one of the `tokenizers` library; counts the ids it decodes."""

    def __init__(self, backend: Tokenizer) -> None:
        self.backend = backend
        self.num_decoded = 0

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(self.backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        self.num_decoded += len(token_ids)
        return str(self.backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens))


def byte_level() -> Backed:
    """GPT-2, Llama 3, Qwen and SmolLM2: tokens are bytes, and may end inside a character."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIAL,
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return Backed(backend)


def byte_fallback() -> Backed:
    """Llama 2 and Mistral: words with a leading mark, and bytes for what is in no word."""
    words = ["▁", "h", "e", "l", "o", "▁h", "he", "ll", "▁the", "你", ".", "▁▁"]
    tokens = SPECIAL + [f"<0x{byte:02X}>" for byte in range(256)] + words
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocabulary, [("▁", "h")], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens(SPECIAL)
    return Backed(backend)


def metaspace() -> Backed:
    tokens = [*SPECIAL, "▁hello", "▁", "lo", "▁the", "你"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(SPECIAL)
    return Backed(backend)


def word_piece() -> Backed:
    tokens = [*SPECIAL, "hello", "##lo", ",", "the", "你", "'", "##s"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="<unk>"))
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(SPECIAL)
    return Backed(backend)


TOKENIZERS = {
    maker.__name__: maker() for maker in (byte_level, byte_fallback, metaspace, word_piece)
}
each_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS.keys())


@st.composite
def id_lists(draw: st.DrawFn, tokenizer: Backed) -> list[int]:
    """Any ids, among them unknown ones and bytes that are no UTF-8; and ids of real text."""
    vocab_size = tokenizer.backend.get_vocab_size()
    real = st.text(alphabet="he lo你😀é", max_size=6).map(lambda text: tokenizer.encode(text))
    wild = st.lists(st.integers(0, vocab_size + 1), max_size=12)
    raw = st.binary(max_size=12).map(lambda data: bytes_as_ids(tokenizer, data))
    parts = draw(st.lists(st.one_of(real, wild, raw), max_size=3))
    return [token_id for part in parts for token_id in part]


def bytes_as_ids(tokenizer: Backed, data: bytes) -> list[int]:
    """One id per byte: of the byte-level alphabet's 256 letters, or of "<0x..>" tokens."""
    if tokenizer.backend.token_to_id("<0x00>") is not None:
        found = [tokenizer.backend.token_to_id(f"<0x{byte:02X}>") for byte in data]
    else:
        found = [tokenizer.backend.token_to_id(LETTER_OF_BYTE[byte]) for byte in data]
    return [item for item in found if item is not None]


def letters_of_bytes() -> list[str]:
    """GPT-2's table: printable bytes stand for themselves, the others follow from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {byte: chr(byte) for byte in printable}
    table |= {byte: chr(256 + index) for index, byte in enumerate(others)}
    return [table[byte] for byte in range(256)]


LETTER_OF_BYTE = letters_of_bytes()


def whole(tokenizer: Backed, prompt: list[int], output: list[int], skip: bool) -> str:
    before = tokenizer.decode(prompt, skip)
    after = tokenizer.decode(prompt + output, skip)
    same = 0
    while same < min(len(before), len(after)) and before[same] == after[same]:
        same += 1
    return after[same:]


def stream(tokenizer: Backed, prompt: list[int], output: list[int], skip: bool = True) -> list[str]:
    detokenizer = IncrementalDetokenizer(Vocabulary(tokenizer), prompt, skip)
    return [*(detokenizer.append([item]) for item in output), detokenizer.finish()]


@each_tokenizer
@given(data=st.data(), skip=st.booleans())
def test_without_a_prompt_the_pieces_concatenate_to_the_decoded_ids(
    tokenizer: Backed, data: st.DataObject, skip: bool
) -> None:
    output = data.draw(id_lists(tokenizer))
    assert "".join(stream(tokenizer, [], output, skip)) == tokenizer.decode(output, skip)


@each_tokenizer
@given(data=st.data(), skip=st.booleans())
def test_after_a_prompt_the_pieces_concatenate_to_the_text_as_it_reads_after_the_prompt(
    tokenizer: Backed, data: st.DataObject, skip: bool
) -> None:
    prompt, output = data.draw(id_lists(tokenizer)), data.draw(id_lists(tokenizer))
    assert "".join(stream(tokenizer, prompt, output, skip)) == whole(
        tokenizer, prompt, output, skip
    )


@each_tokenizer
@given(data=st.data())
def test_nothing_shown_is_ever_taken_back_whatever_comes_next(
    tokenizer: Backed, data: st.DataObject
) -> None:
    prompt, output = data.draw(id_lists(tokenizer)), data.draw(id_lists(tokenizer))
    shown = "".join(stream(tokenizer, prompt, output)[:-1])
    other = output + data.draw(id_lists(tokenizer))
    assert whole(tokenizer, prompt, other, True).startswith(shown)


@each_tokenizer
@given(data=st.data())
def test_tokens_that_come_several_a_step_give_the_same_text(
    tokenizer: Backed, data: st.DataObject
) -> None:
    output = data.draw(id_lists(tokenizer))
    cut = data.draw(st.integers(0, len(output)))
    detokenizer = IncrementalDetokenizer(Vocabulary(tokenizer))
    text = (
        detokenizer.append(output[:cut]) + detokenizer.append(output[cut:]) + detokenizer.finish()
    )
    assert text == tokenizer.decode(output)


@given(st.text())
def test_valid_text_never_shows_a_replacement_character(text: str) -> None:
    tokenizer = TOKENIZERS["byte_level"]
    for piece in stream(tokenizer, [], tokenizer.encode(text)):
        assert REPLACEMENT not in piece or REPLACEMENT in text


def test_an_emoji_is_shown_with_its_last_byte() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    assert stream(tokenizer, [], bytes_as_ids(tokenizer, "😀".encode())) == ["", "", "", "😀", ""]


def test_a_broken_byte_is_shown_as_soon_as_it_cannot_be_mended() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    assert stream(tokenizer, [], bytes_as_ids(tokenizer, b"\xf0ab")) == [
        "",
        REPLACEMENT + "a",
        "b",
        "",
    ]


def test_a_character_cut_off_by_the_end_is_shown_at_the_finish() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    assert stream(tokenizer, [], bytes_as_ids(tokenizer, b"a\xf0\x9f")) == [
        "a",
        "",
        "",
        REPLACEMENT,
    ]


def test_a_word_after_a_prompt_keeps_its_leading_space() -> None:
    tokenizer = TOKENIZERS["byte_fallback"]
    the = tokenizer.backend.token_to_id("▁the")
    assert stream(tokenizer, [the], [the]) == [" the", ""]
    assert stream(tokenizer, [], [the]) == ["the", ""]


def test_a_character_that_the_prompt_began_is_shown_as_a_whole() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    ids = bytes_as_ids(tokenizer, "😀".encode())
    assert stream(tokenizer, ids[:2], ids[2:]) == ["", "😀", ""]


def test_a_run_of_byte_tokens_that_the_prompt_began_is_judged_as_a_whole() -> None:
    tokenizer = TOKENIZERS["byte_fallback"]
    ids = bytes_as_ids(tokenizer, "好好世".encode())
    assert "".join(stream(tokenizer, ids[:6], ids[6:])) == "世"


def test_special_tokens_are_shown_only_when_asked_for() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    output = [*tokenizer.encode("he"), 2, *tokenizer.encode("lo")]
    assert "".join(stream(tokenizer, [], output, skip=True)) == "helo"
    assert "".join(stream(tokenizer, [], output, skip=False)) == "he</s>lo"


@each_tokenizer
@given(data=st.data())
def test_a_token_costs_the_decoding_of_a_few_tokens_however_long_the_text(
    tokenizer: Backed, data: st.DataObject
) -> None:
    output = data.draw(id_lists(tokenizer)) * 20
    vocabulary = Vocabulary(tokenizer)
    for token_id in set(output):
        vocabulary.shows(token_id, True)
    detokenizer = IncrementalDetokenizer(vocabulary)
    tokenizer.num_decoded = 0
    for token_id in output:
        detokenizer.append([token_id])
    assert tokenizer.num_decoded <= 4 * WINDOW_TOKENS * len(output)
