"""Log-probabilities in the two shapes that OpenAI's API has for them, and the bytes of a token."""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Any

from infra_lab.models.tokenizer import Tokenizer
from infra_lab.step import TokenLogprobs

REPLACEMENT = "\ufffd"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_WORD_BOUNDARY = "\u2581"  # SentencePiece's visible space


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for every byte, back to the byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(256 + index): byte for index, byte in enumerate(others)
    }


_BYTES = _byte_alphabet()


class TokenTexts:
    """What single tokens are shown as, looked up once each."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, bytes] = {}

    def bytes_of(self, token_id: int) -> bytes:
        """What the token adds to a text in its middle; b"" for an id that the tokenizer lacks."""
        if token_id not in self._known:
            self._known[token_id] = self._find(token_id)
        return self._known[token_id]

    def text_of(self, token_id: int) -> str:
        """The text, or "bytes:\\\\xe2\\\\x82" for a token that ends inside a character."""
        raw = self.bytes_of(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def _find(self, token_id: int) -> bytes:
        name = self._tokenizer.backend.id_to_token(token_id)
        if name is None:
            return b""
        if match := _BYTE_TOKEN.fullmatch(name):
            return bytes([int(match[1], 16)])
        if _WORD_BOUNDARY in name:
            return name.replace(_WORD_BOUNDARY, " ").encode()
        text = self._tokenizer.decode([token_id], skip_special_tokens=False)
        if REPLACEMENT in text and all(char in _BYTES for char in name):
            return bytes(_BYTES[char] for char in name)
        return text.encode()


def completion_logprobs(
    texts: TokenTexts, entries: Sequence[TokenLogprobs | None], first_ids: Sequence[int], at: int
) -> dict[str, Any]:
    """The shape of /v1/completions.

    Args:
        entries: one a token; None, for a prompt's first token, has no log-probability.
        first_ids: the tokens that None stands for, in order.
        at: where in the choice's text the first token begins, in characters.
    """
    result: dict[str, Any] = {
        "tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []
    }  # fmt: skip
    unknown = iter(first_ids)
    decoder = getincrementaldecoder("utf-8")("replace")  # a character counts where it is whole
    for entry in entries:
        token_id = next(unknown) if entry is None else entry.token_id
        text = texts.text_of(token_id)
        top = None
        if entry is not None:
            top = {texts.text_of(token): value for token, value in reversed(entry.top)}
            top[text] = entry.logprob  # the chosen one is always among them
        result["tokens"].append(text)
        result["token_logprobs"].append(None if entry is None else entry.logprob)
        result["top_logprobs"].append(top)
        result["text_offset"].append(at)
        at += len(decoder.decode(texts.bytes_of(token_id)))
    return result


def chat_logprobs(
    texts: TokenTexts, entries: Sequence[TokenLogprobs], num_top: int
) -> dict[str, Any]:
    """The shape of /v1/chat/completions."""

    def one(token_id: int, logprob: float) -> dict[str, Any]:
        raw = texts.bytes_of(token_id)
        return {"token": texts.text_of(token_id), "logprob": logprob, "bytes": list(raw)}

    content = [
        one(entry.token_id, entry.logprob)
        | {"top_logprobs": [one(token, value) for token, value in entry.top[:num_top]]}
        for entry in entries
    ]
    return {"content": content, "refusal": None}
