"""What of a JSON Schema must be looked at before a grammar is made of it.

The grammar engine refuses the keywords that it does not know and most of what contradicts
itself. Three things are left: patterns are in another dialect than its own, keys of an object
may repeat, which spoils `minProperties`, and a schema may ask for a document without an end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from infra_lab.errors import InvalidRequestError
from infra_lab.sampling.regex_dialect import to_engine

Schema = dict[str, Any]
DIALECTS = ("2020-12", "2019-09", "draft-07", "draft-06", "draft-04")
# Keywords under which other schemas stand: one, several, or one for each name.
_ONE = ("additionalProperties", "items", "additionalItems")
_SEVERAL = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")


def prepare(text: str) -> Schema:
    """The schema as the engine shall read it, which is always an object.

    Raises InvalidRequestError for what the engine would read differently from what is meant.
    """
    root: Schema | bool = json.loads(text)
    if root is False:
        raise InvalidRequestError("structured_outputs: the schema is false, which nothing meets")
    if root is True:
        return {}
    dialect = root.get("$schema", DIALECTS[0])
    if not isinstance(dialect, str) or not any(name in dialect for name in DIALECTS):
        raise InvalidRequestError(
            f"the schema is written for {dialect!r}: write it for one of {', '.join(DIALECTS)}"
        )
    try:
        for schema in list(_schemas(root)):
            _prepare_one(schema)
    except RecursionError:
        raise InvalidRequestError("the schema is nested too deeply: make it flatter") from None
    return root


def _prepare_one(schema: Schema) -> None:
    if "x-guidance" in schema:
        raise InvalidRequestError("the schema has 'x-guidance', which is not JSON Schema: drop it")
    if isinstance(schema.get("pattern"), str):
        schema["pattern"] = to_engine(schema["pattern"])
    for pattern in schema.get("patternProperties", ()):
        # A narrower class would leave names to additionalProperties that are not its business.
        if to_engine(pattern) != pattern:
            raise InvalidRequestError(
                f"the name pattern {pattern!r} under 'patternProperties' uses \\w, \\d or \\s, of "
                f"which dialects differ on the extent: write out the class, such as [0-9]"
            )
    least, required = schema.get("minProperties"), schema.get("required", ())
    if isinstance(least, int) and isinstance(required, (list, tuple)):
        distinct = len({name for name in required if isinstance(name, str)}) + 1
        if least > distinct:
            raise InvalidRequestError(
                f"minProperties={least} cannot be promised, for a name may come twice: "
                f"name the properties under 'required', or give at most {distinct}"
            )


def _schemas(schema: object) -> Iterator[Schema]:
    """A schema and those inside it, wherever a keyword holds one."""
    if not isinstance(schema, dict):
        return
    yield schema
    inside = [schema.get(name) for name in _ONE]
    for name in _SEVERAL:
        inside += items if isinstance(items := schema.get(name), list) else []
    for name in _NAMED:
        inside += items.values() if isinstance(items := schema.get(name), dict) else []
    for one in inside:
        yield from _schemas(one)


def has_finite_document(root: Schema) -> bool:
    """Whether the schema's recursion, if it has some, can end.

    The least fixed point over its references: one that needs itself first has no document.
    """
    references = {ref for one in _schemas(root) if isinstance(ref := one.get("$ref"), str)}
    targets = {ref: target for ref in references if (target := _resolve(root, ref)) is not None}
    endless = set(targets)
    while ended := {ref for ref in endless if _is_finite(targets[ref], endless)}:
        endless -= ended
    return _is_finite(root, endless)


def _resolve(root: Schema, reference: str) -> object:
    """What a reference into the same document names; None for any other."""
    if not reference.startswith("#"):
        return None
    found: object = root
    for part in reference.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdigit() and int(name) < len(found):
            found = found[int(name)]
        elif isinstance(found, dict) and name in found:
            found = found[name]
        else:
            return None
    return found


def _is_finite(schema: object, endless: set[str]) -> bool:
    if not isinstance(schema, dict):
        return schema is not False
    if schema.get("$ref") in endless:
        return False
    if not all(_is_finite(one, endless) for one in schema.get("allOf", ())):
        return False
    for name in ("anyOf", "oneOf"):
        if name in schema and not any(_is_finite(one, endless) for one in schema[name]):
            return False
    types = schema.get("type")
    if types is None or "enum" in schema or "const" in schema:
        return True
    for kind in [types] if isinstance(types, str) else types:
        if kind not in ("object", "array"):
            return True
        needed = _members(schema) if kind == "object" else _elements(schema)
        if all(_is_finite(one, endless) for one in needed):
            return True
    return False


def _members(schema: Schema) -> Iterator[object]:
    """The schemas of what an object must have."""
    for name in schema.get("required", ()):
        by_name = schema.get("properties", {})
        by_pattern = schema.get("patternProperties", {})
        matching = [one for pattern, one in by_pattern.items() if re.search(pattern, name)]
        if name in by_name:
            yield by_name[name]
        yield from matching
        if name not in by_name and not matching:
            yield schema.get("additionalProperties", True)


def _elements(schema: Schema) -> Iterator[object]:
    """The schemas of what an array must have."""
    first, rest = schema.get("prefixItems", []), schema.get("items", True)
    if isinstance(rest, list):
        first, rest = rest, schema.get("additionalItems", True)
    least = int(schema.get("minItems", 0))
    yield from first[:least]
    if least > len(first):
        yield rest
