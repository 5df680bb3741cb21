"""What counts as text: any string that UTF-8 can hold. Torch-free.

A Python string may hold half a surrogate pair, be it from JSON's "\\ud800" or from bytes that
are not UTF-8 on a command line; no tokenizer takes it.
"""

from __future__ import annotations

from infra_lab.errors import InvalidRequestError


def require_text(what: str, text: str) -> None:
    """Raises InvalidRequestError, naming `what` and the place, if `text` is not UTF-8 text."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"{what} has half a surrogate pair ({text[error.start]!a}) at character "
            f"{error.start}, which is no text: decode the source as UTF-8 before sending it"
        ) from None
