"""Builds a fast tokenizer from what a GGUF file's metadata holds.

The two kinds that decoder models use: byte-level BPE ("gpt2": SmolLM, Llama 3, Qwen) and
SentencePiece BPE ("llama": Llama 2, Mistral). Answers "what is the difference between
byte-level BPE and SentencePiece with byte fallback?".
"""

from __future__ import annotations

from typing import Any

from gguf.constants import TokenType
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from infra_lab.errors import ModelLoadError
from infra_lab.models.gguf_header import GGUFHeader
from infra_lab.models.pretokenizers import PRE_TOKENIZERS, PreTokenizer

_SPACE = "\u2581"  # SentencePiece's visible space
_NAMED_TOKENS = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}


def build_tokenizer(header: GGUFHeader) -> Tokenizer:
    """Raises ModelLoadError when the metadata is incomplete, or names a tokenizer model or a
    pre-tokenizer that is not supported."""
    model = header.scalar("tokenizer.ggml.model", str)
    if model == "gpt2":
        return _byte_level(header)
    if model == "llama":
        return _sentencepiece(header)
    raise ModelLoadError(
        f"{header.path}: tokenizer model {model!r} is not supported; gpt2 (byte-level BPE) and "
        "llama (SentencePiece) are"
    )


def special_tokens(header: GGUFHeader) -> dict[str, str]:
    """The tokens a chat template may name: {"bos_token": "<s>", ...}, those that are set."""
    tokens = header.values("tokenizer.ggml.tokens")
    found: dict[str, str] = {}
    for name, key in _NAMED_TOKENS.items():
        token_id = header.scalar(f"tokenizer.ggml.{key}_token_id", int, -1)
        if token_id >= len(tokens):
            raise ModelLoadError(
                f"{header.path}: {key}_token_id is {token_id}, outside the vocabulary of "
                f"{len(tokens)}"
            )
        if token_id >= 0:
            found[f"{name}_token"] = tokens[token_id]
    return found


def chat_template(header: GGUFHeader) -> str | None:
    return header.scalar("tokenizer.chat_template", str, "") or None


def _byte_level(header: GGUFHeader) -> Tokenizer:
    pre_tokenizer = _pre_tokenizer(header)
    merges = _listed_merges(header)
    tokenizer = Tokenizer(_bpe(header, merges, ignore_merges=pre_tokenizer.whole_words_first))
    tokenizer.pre_tokenizer = pre_tokenizer.build()
    tokenizer.decoder = decoders.ByteLevel()
    _add_whole_tokens(tokenizer, header)
    _add_bos_and_eos(tokenizer, header, adds_bos=pre_tokenizer.adds_bos)
    return tokenizer


def _sentencepiece(header: GGUFHeader) -> Tokenizer:
    unknown = special_tokens(header).get("unk_token", "<unk>")
    tokenizer = Tokenizer(
        _bpe(header, _merges_by_score(header), byte_fallback=True, fuse_unk=True, unk_token=unknown)
    )
    show_spaces = normalizers.Replace(" ", _SPACE)
    hide_spaces = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if header.scalar("tokenizer.ggml.add_space_prefix", bool, True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), show_spaces])
        tokenizer.decoder = decoders.Sequence([*hide_spaces, decoders.Strip(" ", 1, 0)])
    else:
        tokenizer.normalizer = show_spaces
        tokenizer.decoder = decoders.Sequence(hide_spaces)
    _add_whole_tokens(tokenizer, header)
    _add_bos_and_eos(tokenizer, header, adds_bos=True)
    return tokenizer


def _bpe(header: GGUFHeader, merges: list[tuple[str, str]], **options: Any) -> models.BPE:
    vocabulary = {token: index for index, token in enumerate(_tokens(header))}
    return models.BPE(vocab=vocabulary, merges=merges, **options)


def _tokens(header: GGUFHeader) -> list[str]:
    tokens = header.values("tokenizer.ggml.tokens")
    if len(set(tokens)) < len(tokens):
        raise ModelLoadError(f"{header.path}: two tokens of the vocabulary are the same")
    return tokens


def _pre_tokenizer(header: GGUFHeader) -> PreTokenizer:
    name = header.scalar("tokenizer.ggml.pre", str, "gpt-2")
    if name not in PRE_TOKENIZERS:
        raise ModelLoadError(
            f"{header.path}: pre-tokenizer {name!r} is not supported, and another would cut text "
            f"into the wrong tokens; supported are {', '.join(PRE_TOKENIZERS)}. The model's "
            "Hugging Face folder brings its own"
        )
    return PRE_TOKENIZERS[name]


def _listed_merges(header: GGUFHeader) -> list[tuple[str, str]]:
    """The file's merges, best first, each "left right". The library does not survive one whose
    parts or result are no tokens, so that is looked for here."""
    vocabulary = set(_tokens(header))
    merges = []
    for merge in header.values("tokenizer.ggml.merges"):
        left, _, right = merge.partition(" ")
        if not {left, right, left + right} <= vocabulary:
            raise ModelLoadError(
                f"{header.path}: the tokenizer's merge {merge!r} does not join two tokens to a "
                "third"
            )
        merges.append((left, right))
    return merges


def _merges_by_score(header: GGUFHeader) -> list[tuple[str, str]]:
    """SentencePiece stores scores, not merges: two tokens merge if what they make is a token,
    the best-scored one first."""
    tokens = _tokens(header)
    scores = header.values("tokenizer.ggml.scores")
    if len(scores) != len(tokens):
        raise ModelLoadError(
            f"{header.path}: {len(tokens)} tokens but {len(scores)} tokenizer scores"
        )
    vocabulary = set(tokens)
    by_score = sorted(zip(scores, tokens, strict=True), key=lambda item: -item[0])
    return [
        (token[:cut], token[cut:])
        for _, token in by_score
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    ]


def _add_whole_tokens(tokenizer: Tokenizer, header: GGUFHeader) -> None:
    """Control tokens (dropped when decoding for people) and user-defined ones (kept) are found
    whole in the text, before anything else cuts it."""
    kinds = header.metadata.get("tokenizer.ggml.token_type", [])
    whole = {TokenType.CONTROL: True, TokenType.USER_DEFINED: False, TokenType.UNKNOWN: True}
    tokens = header.values("tokenizer.ggml.tokens")
    # In the order of their ids: the library numbers added tokens that way when it saves them.
    tokenizer.add_tokens(
        [
            AddedToken(token, special=whole[kind], normalized=False)
            for token, kind in zip(tokens, kinds, strict=False)
            if kind in whole and token
        ]
    )


def _add_bos_and_eos(tokenizer: Tokenizer, header: GGUFHeader, adds_bos: bool) -> None:
    named = special_tokens(header)
    before = [named["bos_token"]] if _adds(header, "bos", named, default=adds_bos) else []
    after = [named["eos_token"]] if _adds(header, "eos", named, default=False) else []
    if before or after:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after],
            pair=[*before, "$A", *after, *before, "$B:1", *after],
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in before + after],
        )


def _adds(header: GGUFHeader, kind: str, named: dict[str, str], default: bool) -> bool:
    wanted = header.scalar(f"tokenizer.ggml.add_{kind}_token", bool, default)
    return wanted and f"{kind}_token" in named
