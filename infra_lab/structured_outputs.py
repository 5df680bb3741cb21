"""What form an answer must have: the request-level setting behind structured outputs.

Torch-free and validated at construction like SamplingParams; whether a grammar can be made of
it, and met, is found out in `sampling.grammar`. Answers "how do I ask for JSON and get JSON?".
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NoReturn

from infra_lab.errors import InvalidRequestError

KINDS = ("json", "regex", "choice", "json_object")


@dataclass(frozen=True, slots=True)
class StructuredOutputsParams:
    """Exactly one of the four forms; equal forms compare and hash equal.

    Attributes:
        json: a JSON Schema as text, mapping or boolean; kept as text, its properties in their
            order, for that is the order in which the answer has them.
        regex: what the whole answer must match, as by `re.fullmatch`.
        choice: the answers there are, at least one, none of them empty.
        json_object: whether any JSON object will do.
        disable_any_whitespace: whether JSON comes without any space between its tokens. Else
            there may be one space, or a line break and up to 16 spaces: bounded, because a
            small model that may go on indenting never stops.
    """

    json: Any = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    json_object: bool = False
    disable_any_whitespace: bool = False

    def __post_init__(self) -> None:
        for name in ("json_object", "disable_any_whitespace"):
            if not isinstance(getattr(self, name), bool):
                _refuse(f"{name} must be true or false, not {getattr(self, name)!r}")
        given = [name for name in KINDS if getattr(self, name) not in (None, False)]
        # A schema may be False: nothing is valid, which is for the compiler to refuse.
        if self.json is False:
            given.insert(0, "json")
        if len(given) != 1:
            found = " and ".join(given) if given else "none of them"
            _refuse(f"needs exactly one of {', '.join(KINDS)}, and has {found}")
        if self.disable_any_whitespace and given[0] not in ("json", "json_object"):
            _refuse("disable_any_whitespace is for json and json_object: leave it out")
        if given[0] == "json":
            object.__setattr__(self, "json", _schema_text(self.json))
        elif given[0] == "regex":
            _require_text("regex", self.regex)
        elif given[0] == "choice":
            object.__setattr__(self, "choice", _choices(self.choice))

    @classmethod
    def from_dict(cls, parameters: Mapping[str, Any]) -> StructuredOutputsParams:
        """Builds one from a mapping such as a decoded JSON object."""
        if not isinstance(parameters, Mapping):
            _refuse(f"must be a mapping such as {{'regex': '[0-9]+'}}, not {parameters!r}")
        known = [field.name for field in fields(cls)]
        for name in parameters:
            if name not in known:
                _refuse(f"has no setting {name!r}: known are {', '.join(known)}")
        return cls(**parameters)


def _schema_text(schema: object) -> str:
    """The schema as JSON text in one line."""
    try:
        if isinstance(schema, str):
            schema = json.loads(schema, parse_constant=_not_json)
        if not isinstance(schema, (dict, bool)):
            _refuse(f"json must be a schema: an object, true or false, not {schema!r:.60}")
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:
        _refuse("json has half a surrogate pair in it, which is no text: take it out")
    except (TypeError, ValueError, RecursionError) as error:
        _refuse(f"json is not JSON: {str(error) or type(error).__name__}")
    return text


def _not_json(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _choices(choices: object) -> tuple[str, ...]:
    if isinstance(choices, (str, bytes, Mapping)) or not isinstance(choices, Collection):
        _refuse(f"choice must be a list of texts, not {choices!r:.60}")
    for choice in choices:
        _require_text("choice", choice)
        if not choice:
            _refuse("choice has an empty text in it: give each at least one character")
    if not choices:
        _refuse("choice is empty: give at least one")
    return tuple(dict.fromkeys(choices))


def _require_text(name: str, text: object) -> None:
    if not isinstance(text, str):
        _refuse(f"{name} must be text, not {text!r:.60}")
    try:
        text.encode()
    except UnicodeEncodeError:
        _refuse(f"{name} has half a surrogate pair in it, which is no text: take it out")


def _refuse(message: str) -> NoReturn:
    raise InvalidRequestError(f"structured_outputs: {message}", "structured_outputs")
