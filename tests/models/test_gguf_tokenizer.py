from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter, TokenType
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from infra_lab.errors import ModelLoadError
from infra_lab.models.gguf_header import GGUFHeader, read_header
from infra_lab.models.gguf_tokenizer import build_tokenizer, chat_template, special_tokens
from infra_lab.models.pretokenizers import PRE_TOKENIZERS

CORPUS = [
    "The quick brown fox jumps over 12 lazy dogs, isn't it?\n\n1. One  thing\n\n2.  Another\n",
    "def f(x):\n    return x + 1234  # naïve\n\n\tprint('HELLO World')",
    "你好,世界。 I'LL be there at 10:45 -- don't WAIT!!\r\n",
]
CONTROL = ("<|end|>", "<|start|>")
text = st.text(
    st.sampled_from("aehot THE'sl0123.,!\n\r\t-_é你好½²") | st.characters(codec="utf-8"),
    max_size=40,
)


def split_by(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def gpt2_rule() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def smollm_rule() -> pre_tokenizers.PreTokenizer:
    """As SmolLM2's own tokenizer.json has it."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )


def transformers_rule(name: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    def rule() -> pre_tokenizers.PreTokenizer:
        from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

        return split_by(GGUF_PRE_TOKENIZER_SPLITS[name])

    return rule


RULES = {"gpt-2": gpt2_rule, "smollm": smollm_rule} | {
    name: transformers_rule(name) for name in ("qwen2", "llama-bpe", "tekken")
}


def trained(rule: pre_tokenizers.PreTokenizer) -> Tokenizer:
    """A small byte-level BPE whose merges were learned under the rule."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = rule
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        min_frequency=1,
        show_progress=False,
        special_tokens=[AddedToken(token, special=True) for token in CONTROL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def write_tokenizer(
    path: Path,
    tokens: Sequence[str],
    kinds: Sequence[int],
    model: str = "gpt2",
    add: Callable[[GGUFWriter], None] = lambda writer: None,
) -> GGUFHeader:
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_token_list(list(tokens))
    writer.add_token_types(list(kinds))
    add(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_header(path)


def write_byte_level(
    path: Path, tokenizer: Tokenizer, pre: str, add: Callable[[GGUFWriter], None] | None = None
) -> GGUFHeader:
    vocabulary = tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]

    def add_all(writer: GGUFWriter) -> None:
        writer.add_tokenizer_pre(pre)
        writer.add_token_merges([" ".join(merge) for merge in merges])
        writer.add_eos_token_id(0)
        writer.add_bos_token_id(1)
        if add is not None:
            add(writer)

    kinds = [TokenType.CONTROL if token in CONTROL else TokenType.NORMAL for token in tokens]
    return write_tokenizer(path, tokens, kinds, add=add_all)


@pytest.fixture(scope="module", params=RULES)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizer that was trained, and the one built from its GGUF metadata."""
    original = trained(RULES[request.param]())
    path = tmp_path_factory.mktemp("tokenizer") / "m.gguf"
    return original, build_tokenizer(write_byte_level(path, original, request.param))


@settings(max_examples=60, deadline=None)
@given(text=text)
def test_byte_level_ids_are_those_of_the_tokenizer_that_was_trained(
    text: str, pair: tuple[Tokenizer, Tokenizer]
) -> None:
    original, built = pair
    assert built.encode(text, add_special_tokens=False).ids == original.encode(text).ids


@settings(max_examples=60, deadline=None)
@given(text=text)
def test_byte_level_text_survives_the_round_trip(
    text: str, pair: tuple[Tokenizer, Tokenizer]
) -> None:
    _, built = pair
    assert built.decode(built.encode(text, add_special_tokens=False).ids) == text


def test_control_tokens_are_found_whole_and_dropped_on_decoding(
    pair: tuple[Tokenizer, Tokenizer],
) -> None:
    _, built = pair
    ids = built.encode("<|start|>a<|end|>", add_special_tokens=False).ids
    assert ids == [1, built.token_to_id("a"), 0]
    assert built.decode(ids) == "a"
    assert built.decode(ids, skip_special_tokens=False) == "<|start|>a<|end|>"


def test_smollm_cuts_digits_before_space_so_that_a_blank_line_stays_one_token(
    tmp_path: Path,
) -> None:
    original = trained(smollm_rule())
    as_smollm = build_tokenizer(write_byte_level(tmp_path / "a.gguf", original, "smollm"))
    as_gpt2 = build_tokenizer(write_byte_level(tmp_path / "b.gguf", original, "gpt-2"))
    assert as_smollm.encode("\n\n1").tokens == ["ĊĊ", "1"]
    assert as_gpt2.encode("\n\n1").tokens == ["Ċ", "Ċ", "1"]


def test_user_defined_tokens_are_whole_but_kept_on_decoding(tmp_path: Path) -> None:
    tokens = ["a", "b", "ab", "<think>"]
    kinds = [TokenType.NORMAL] * 3 + [TokenType.USER_DEFINED]
    header = write_tokenizer(
        tmp_path / "m.gguf", tokens, kinds, add=lambda writer: writer.add_token_merges(["a b"])
    )
    built = build_tokenizer(header)
    ids = built.encode("ab<think>").ids
    assert ids == [2, 3]
    assert built.decode(ids) == "ab<think>"


@pytest.mark.parametrize(
    ("pre", "flags", "wanted"),
    [
        ("gpt-2", {}, "x"),
        ("llama-bpe", {}, "<|start|>x"),
        ("llama-bpe", {"add_bos_token": False}, "x"),
        ("gpt-2", {"add_bos_token": True, "add_eos_token": True}, "<|start|>x<|end|>"),
    ],
)
def test_bos_and_eos_are_added_as_the_file_or_its_family_says(
    pre: str, flags: dict[str, bool], wanted: str, tmp_path: Path
) -> None:
    def add(writer: GGUFWriter) -> None:
        for name, value in flags.items():
            writer.add_bool(f"tokenizer.ggml.{name}", value)

    original = trained(gpt2_rule())
    built = build_tokenizer(write_byte_level(tmp_path / "m.gguf", original, pre, add))
    assert built.decode(built.encode("x").ids, skip_special_tokens=False) == wanted
    assert built.encode("x", add_special_tokens=False).ids == [original.token_to_id("x")]


SPACE = "\u2581"
PIECES = [SPACE, *"abcd", "ab", "bc", "cd", "abc", "bcd", SPACE + "a", SPACE + "ab", SPACE * 2]
SP_TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]


def write_sentencepiece(path: Path, scores: Sequence[float], **flags: bool) -> GGUFHeader:
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
    kinds += [TokenType.BYTE] * 256 + [TokenType.NORMAL] * len(PIECES)

    def add(writer: GGUFWriter) -> None:
        writer.add_token_scores([0.0] * 259 + list(scores))
        writer.add_unk_token_id(0)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        for name, value in flags.items():
            writer.add_bool(f"tokenizer.ggml.{name}", value)

    return write_tokenizer(path, SP_TOKENS, kinds, "llama", add)


def merge_best_first(text: str, scores: Sequence[float]) -> list[str]:
    """SentencePiece by its definition: join the neighbours that make the best-scored token, the
    leftmost first, until none do; what is no token falls apart into bytes."""
    score_of = dict(zip(PIECES, scores, strict=True))
    symbols = list(SPACE + text.replace(" ", SPACE)) if text else []
    while True:
        joined = [
            (-score_of[left + right], position)
            for position, (left, right) in enumerate(pairwise(symbols))
            if left + right in score_of
        ]
        if not joined:
            break
        _, position = min(joined)
        symbols[position : position + 2] = ["".join(symbols[position : position + 2])]
    tokens: list[str] = []
    for symbol in symbols:
        known = symbol in score_of
        tokens += [symbol] if known else [f"<0x{byte:02X}>" for byte in symbol.encode()]
    return tokens


@settings(max_examples=80, deadline=None)
@given(
    text=st.text(st.sampled_from("abcd é你"), max_size=24),
    order=st.permutations([float(-rank) for rank in range(len(PIECES))]),
)
def test_sentencepiece_merges_the_best_scored_token_first(
    text: str, order: list[float], tmp_path_factory: pytest.TempPathFactory
) -> None:
    header = write_sentencepiece(tmp_path_factory.mktemp("sp") / "m.gguf", order)
    built = build_tokenizer(header)
    encoded = built.encode(text, add_special_tokens=False)
    assert encoded.tokens == merge_best_first(text, order)
    assert built.decode(encoded.ids) == text


def test_sentencepiece_prompts_start_with_bos_unless_the_file_says_no(tmp_path: Path) -> None:
    scores = [0.0] * len(PIECES)
    default = build_tokenizer(write_sentencepiece(tmp_path / "a.gguf", scores))
    without = build_tokenizer(write_sentencepiece(tmp_path / "b.gguf", scores, add_bos_token=False))
    assert default.encode("d").tokens == ["<s>", SPACE, "d"]
    assert without.encode("d").tokens == [SPACE, "d"]


def test_sentencepiece_adds_no_space_where_the_file_says_so(tmp_path: Path) -> None:
    header = write_sentencepiece(
        tmp_path / "m.gguf", [0.0] * len(PIECES), add_space_prefix=False, add_bos_token=False
    )
    built = build_tokenizer(header)
    assert built.encode("d a").tokens == ["d", SPACE + "a"]
    assert built.decode(built.encode(" d").ids) == " d"


def test_special_tokens_and_template_are_taken_from_the_metadata(tmp_path: Path) -> None:
    header = write_byte_level(
        tmp_path / "m.gguf",
        trained(gpt2_rule()),
        "gpt-2",
        lambda writer: writer.add_chat_template("{{ messages }}"),
    )
    assert special_tokens(header) == {"bos_token": "<|start|>", "eos_token": "<|end|>"}
    assert chat_template(header) == "{{ messages }}"


def test_an_unsupported_tokenizer_model_is_named(tmp_path: Path) -> None:
    header = write_tokenizer(tmp_path / "m.gguf", ["a"], [1], model="bert")
    with pytest.raises(ModelLoadError, match="tokenizer model 'bert' is not supported"):
        build_tokenizer(header)


def test_an_unknown_pre_tokenizer_is_refused_rather_than_guessed(tmp_path: Path) -> None:
    header = write_byte_level(tmp_path / "m.gguf", trained(gpt2_rule()), "poro-chat")
    with pytest.raises(ModelLoadError, match="'poro-chat' is not supported"):
        build_tokenizer(header)
    assert "poro-chat" not in PRE_TOKENIZERS


@pytest.mark.parametrize(
    ("tokens", "merges", "message"),
    [
        (["a", "b"], ["a b"], "merge 'a b' does not join two tokens to a third"),
        (["a", "b", "ab"], ["ab"], "merge 'ab' does not join"),
        (["a", "a"], ["a a"], "two tokens of the vocabulary are the same"),
        (["a"], [], r"no list 'tokenizer\.ggml\.merges'"),
    ],
)
def test_a_vocabulary_that_does_not_fit_its_merges_is_refused(
    tokens: list[str], merges: list[str], message: str, tmp_path: Path
) -> None:
    header = write_tokenizer(
        tmp_path / "m.gguf",
        tokens,
        [1] * len(tokens),
        add=lambda writer: writer.add_token_merges(merges),
    )
    with pytest.raises(ModelLoadError, match=message):
        build_tokenizer(header)


def test_a_special_token_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    header = write_tokenizer(
        tmp_path / "m.gguf", ["a"], [1], add=lambda writer: writer.add_eos_token_id(7)
    )
    with pytest.raises(ModelLoadError, match="eos_token_id is 7, outside the vocabulary of 1"):
        special_tokens(header)


def test_metadata_without_a_vocabulary_is_refused(tiny: Any, tmp_path: Path) -> None:
    config = tiny.config("llama", num_hidden_layers=1)
    path = tiny.gguf(tmp_path / "m.gguf", config, tiny.weights(config))
    with pytest.raises(ModelLoadError, match=r"no 'tokenizer\.ggml\.model'"):
        build_tokenizer(read_header(path))
