"""The texts that calibration and evaluation read, and never the same one.

Answers "what does a perplexity depend on?": the text, the window and the stride before the model.
Without a file of the user's the text is a book in the public domain, cut at a chapter: methods
see its beginning, and are judged on the rest.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from infra_lab.errors import UsageError

BOOK = "Alice's Adventures in Wonderland"
_FIRST_EVALUATED = "CHAPTER VI\n"


def calibration_text(path: Path | None = None) -> str:
    """A file's text, or the book's chapters I to V."""
    return _book().partition(_FIRST_EVALUATED)[0].rstrip() if path is None else read_text(path)


def evaluation_text(path: Path | None = None) -> str:
    """A file's text, or the book from chapter VI to its end."""
    if path is not None:
        return read_text(path)
    _, heading, rest = _book().partition(_FIRST_EVALUATED)
    return heading + rest


def read_text(path: Path) -> str:
    """The text of a file. Raises UsageError where there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as text: {error}") from None


def _book() -> str:
    return files("infra_lab.quantization.text").joinpath("alice.txt").read_text(encoding="utf-8")
