"""A text in both languages, and how a message in the reader's one is made.

A text stands once, in both languages side by side: `say("3 hints", "3 条提示")`.
A part that shows nothing itself imports nothing of the command line: whoever shows it hands a
`Say` in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, get_args

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = get_args(Language)
Text = Mapping[Language, str]
Say = Callable[[str, str], str]
"""Takes a text in English and in Chinese, and gives the one to show."""


def text(en: str, zh: str) -> Text:
    return {"en": en, "zh": zh}


TO = text(" to ", " 到 ")
"""Between the two ends of a range."""


def english(en: str, zh: str) -> str:
    """The `Say` of who names no language."""
    return en


def speaker(language: str) -> Say:
    """The `Say` of a language."""
    return lambda en, zh: zh if language == "zh" else en
