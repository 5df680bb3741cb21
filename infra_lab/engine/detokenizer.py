"""Token ids to text, a piece at a time, never showing half a character.

Answers "why can you not decode token by token, and what does streaming cost?". A token may end
inside a character (byte-level BPE), the first token's space may vanish (SentencePiece), and a run
of byte tokens is judged as a whole (byte fallback). So a short window of the latest tokens is
decoded again each time, and only what later tokens cannot change is shown. The library's own
`DecodeStream` was tried first: it raises on byte-fallback runs that turn out to be invalid, and
never gives up the text that it still holds at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from infra_lab.engine.input_processor import TextTokenizer

REPLACEMENT = "\ufffd"
# A token has at least one byte, so the last 4 tokens hold the whole of a 4-byte character, and show
# whether the text ends inside one.
WINDOW_TOKENS = 4


class Vocabulary:
    """What detokenizing needs to know about a tokenizer, found out once and shared by requests.

    Attributes:
        byte_token_ids: the byte-fallback tokens "<0x00>" to "<0xFF>", empty where there are none.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._shows: dict[tuple[int, bool], bool] = {}
        self.byte_token_ids = _byte_token_ids(getattr(tokenizer, "backend", None))

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        if not token_ids:
            return ""
        return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def shows(self, token_id: int, skip_special_tokens: bool) -> bool:
        """Whether a token ever adds text. Skipped special tokens and ids that the tokenizer does
        not know add none. Decoded twice over, since a first token's space may be stripped."""
        key = (token_id, skip_special_tokens)
        if key not in self._shows:
            self._shows[key] = self.decode([token_id, token_id], skip_special_tokens) != ""
        return self._shows[key]


class IncrementalDetokenizer:
    """Turns one sample's ids into text; the pieces concatenate to the whole.

    The whole is `decode(prompt + output)` less what it has in common with the start of
    `decode(prompt)`: the text as it reads after the prompt. A character that the prompt began and
    the output completed is shown as a whole; one that the output leaves broken stays the prompt's.
    Each token costs the decoding of a few tokens, however long the text. U+FFFD is shown once
    the bytes that it stands for can no longer become a character.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        prompt_token_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
    ) -> None:
        self._vocabulary = vocabulary
        self._skip_special_tokens = skip_special_tokens
        self._window = self._tail(prompt_token_ids)
        self._prompt_text: str | None = self._decode()
        self._num_shown = 0

    def append(self, token_ids: Iterable[int]) -> str:
        """Takes the next tokens and returns the text that is now certain."""
        skip = self._skip_special_tokens
        added = [item for item in token_ids if self._vocabulary.shows(item, skip)]
        if not added:
            return ""
        self._window += added
        if added[-1] in self._vocabulary.byte_token_ids:
            return ""  # one invalid byte more would turn the whole run into U+FFFD
        text = self._decode()
        num_held = 1 if text.endswith(REPLACEMENT) else 0
        piece = self._advance(text, len(text) - num_held)
        if self._prompt_text is None and len(self._window) > 2 * WINDOW_TOKENS:
            del self._window[:-WINDOW_TOKENS]
            self._num_shown = len(self._decode()) - num_held
        return piece

    def finish(self) -> str:
        """The text still held back, now that no more tokens will come."""
        text = self._decode()
        return self._advance(text, len(text))

    def _advance(self, text: str, num_certain: int) -> str:
        certain = text[:num_certain]
        if self._prompt_text is not None:
            self._num_shown = _common_prefix_length(self._prompt_text, certain)
        piece = certain[self._num_shown :]
        if piece:
            self._prompt_text = None  # past the prompt: from here on the text only grows
            self._num_shown = num_certain
        return piece

    def _decode(self) -> str:
        return self._vocabulary.decode(self._window, self._skip_special_tokens)

    def _tail(self, prompt_token_ids: Sequence[int]) -> list[int]:
        """The prompt's last tokens that add text, with the whole of a byte run cut by the edge."""
        tail: list[int] = []
        for token_id in reversed(prompt_token_ids):
            if not self._vocabulary.shows(token_id, self._skip_special_tokens):
                continue
            byte_ids = self._vocabulary.byte_token_ids
            if len(tail) >= WINDOW_TOKENS and not (tail[-1] in byte_ids and token_id in byte_ids):
                break
            tail.append(token_id)
        return tail[::-1]


def _common_prefix_length(one: str, other: str) -> int:
    length = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        length += 1
    return length


def _byte_token_ids(backend: Any) -> frozenset[int]:
    token_to_id = getattr(backend, "token_to_id", None)
    if token_to_id is None:
        return frozenset()
    ids = (token_to_id(f"<0x{byte:02X}>") for byte in range(256))
    return frozenset(item for item in ids if item is not None)
