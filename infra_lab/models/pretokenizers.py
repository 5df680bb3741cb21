"""How byte-level BPE vocabularies cut text into words before merging, by GGUF's names for it.

A GGUF file names the rule its merges were learned under (`tokenizer.ggml.pre`) and leaves the
rule itself to the reader. Under another rule text still round-trips, but into tokens the model
has hardly seen: SmolLM2 cut as GPT-2 loses its token for a blank line before a numbered list.
The rules are llama.cpp's, and those of the models' own tokenizer.json.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ANY_CASE_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_PUNCTUATION_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_LLAMA3 = rf"{_ANY_CASE_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_PUNCTUATION_AND_SPACE}"
_QWEN2 = rf"{_ANY_CASE_CONTRACTIONS}|{_WORD}|\p{{N}}|{_PUNCTUATION_AND_SPACE}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """`patterns` are applied one after the other, each cutting the pieces that the last left.

    `whole_words_first` takes a word that is itself a token as it is, whatever the merges say;
    `adds_bos` is for files that do not say whether a prompt starts with BOS.
    """

    patterns: tuple[str, ...]
    whole_words_first: bool = False
    adds_bos: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*splits, to_bytes])


_GPT2_WORDS = PreTokenizer((_GPT2,))
_DIGITS_THEN_GPT2 = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA3_WORDS = PreTokenizer((_LLAMA3,), whole_words_first=True, adds_bos=True)
_QWEN2_WORDS = PreTokenizer((_QWEN2,))

PRE_TOKENIZERS = {
    "gpt-2": _GPT2_WORDS,
    "smollm": _DIGITS_THEN_GPT2,
    "starcoder": _DIGITS_THEN_GPT2,
    "llama3": _LLAMA3_WORDS,
    "llama-v3": _LLAMA3_WORDS,
    "llama-bpe": _LLAMA3_WORDS,
    "falcon3": _LLAMA3_WORDS,
    "qwen2": _QWEN2_WORDS,
    "deepseek-r1-qwen": _QWEN2_WORDS,
    "megrez": _QWEN2_WORDS,
    "tekken": PreTokenizer((_TEKKEN,), whole_words_first=True, adds_bos=True),
}
