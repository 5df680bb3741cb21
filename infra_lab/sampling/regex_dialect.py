"""Regular expressions that mean the same to Python's `re` and to the grammar engine.

The engine reads the syntax of Rust's regex crate, which differs in places. What one of the two
does not know, or reads differently, is refused; where only the extent of a character class
differs (is a superscript two a word character?), the engine gets a class that both agree on. So
`re.fullmatch` accepts whatever was generated. Answers "whose regex dialect is this?".
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator

from infra_lab.errors import InvalidRequestError

# A class of which all of what it allows, or all of what it forbids, is beyond dispute: the
# narrow one is ASCII, as JSON Schema wants it, the wide one holds whatever anybody counts in.
NARROW = {"w": "A-Za-z0-9_", "d": "0-9", "s": r"\t\n\x0B\x0C\r "}
WIDE = {"w": r"\w\p{L}\p{M}\p{N}", "d": r"\d\p{N}", "s": r"\s\x1C-\x1F\x{FEFF}"}
_PIECE = re.compile(r"\\(.)|\(\?([a-zA-Z]*)|(?:[*+?]|\{[0-9]+,?[0-9]*\})([?+]?)|(.)", re.DOTALL)


def to_engine(pattern: str) -> str:
    """The same language, or a part of it where Unicode versions could differ, for the engine.

    Raises InvalidRequestError, saying what and why, for a pattern that Python refuses or that
    the two could read differently.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise InvalidRequestError(f"the pattern {pattern!r:.80} is wrong: {error}") from None
        except FutureWarning as warning:
            raise InvalidRequestError(
                f"the pattern {pattern!r:.80} is ambiguous: {warning}; put \\ before the character"
            ) from None
    return "".join(_translated(pattern))


def _translated(pattern: str) -> Iterator[str]:
    position, class_start, is_negated = 0, -1, False
    while position < len(pattern):
        inside = class_start >= 0
        piece = _PIECE.match(pattern, position)
        assert piece is not None
        escaped, flags, suffix, _ = piece.groups()
        text = piece.group()
        if escaped is not None:
            yield _escape(escaped, inside, is_negated)
        elif inside:
            text = pattern[position]
            # "]" right after the opening is itself a member.
            if text == "]" and position > class_start:
                class_start = -1
            yield text
        elif text == "[":
            is_negated = pattern.startswith("[^", position)
            text = "[^" if is_negated else "["
            class_start = position + len(text)
            if pattern.startswith("]", class_start):
                text += r"\]"
            yield text
            position += is_negated + text.endswith(r"\]")
        else:
            _require_known(pattern, flags, suffix)
            yield text
        position += 1 if inside and escaped is None else len(piece.group())


def _escape(escaped: str, inside: bool, is_negated: bool) -> str:
    kind = escaped.lower()
    if kind not in NARROW:
        return f"\\{escaped}"
    # What a negated class lists is what it forbids, and there the wide one is the safe one.
    if escaped.islower():
        members = WIDE[kind] if is_negated and inside else NARROW[kind]
        return members if inside else f"[{members}]"
    return f"[^{NARROW[kind] if is_negated and inside else WIDE[kind]}]"


def _require_known(pattern: str, flags: str | None, suffix: str | None) -> None:
    if suffix == "+":
        raise InvalidRequestError(
            f"the pattern {pattern!r:.80} has a possessive quantifier, which is not supported: "
            f"leave out the second +"
        )
    for flag in flags or "":
        if flag not in "isPu":
            raise InvalidRequestError(
                f"the pattern {pattern!r:.80} sets the flag {flag!r}, which is not supported: "
                f"i and s are"
            )


def alternatives(texts: Iterable[str]) -> str:
    """A pattern, for the engine, that matches exactly these texts."""
    return "|".join("".join(f"\\x{{{ord(char):X}}}" for char in text) for text in texts)
