"""A text in both languages, and how a message in the reader's one is made.

The ledger imports nothing of the command line: whoever shows it hands a `Say` in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

Language = Literal["en", "zh"]
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
