"""Readers of one key of a quantization_config, which name it when its value is amiss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra_lab.errors import ModelLoadError


def integer(values: Mapping[str, Any], key: str) -> int:
    value = values.get(key)
    if type(value) is not int:
        raise _error(values, key, "an integer")
    return value


def number(values: Mapping[str, Any], key: str, default: float) -> float:
    value = values.get(key, default)
    if type(value) not in (int, float):
        raise _error(values, key, "a number")
    return float(value)


def flag(values: Mapping[str, Any], key: str, default: bool = False) -> bool:
    value = values.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise _error(values, key, "true or false")
    return value


def text(values: Mapping[str, Any], key: str, default: str) -> str:
    value = values.get(key)
    if value is None:
        return default
    if not isinstance(value, str):
        raise _error(values, key, "a string")
    return value


def strings(values: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = values.get(key) or []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _error(values, key, "a list of strings")
    return tuple(value)


def group_size(values: Mapping[str, Any], key: str = "group_size") -> int | None:
    """None for the -1 that stands for a whole row."""
    size = integer(values, key)
    if size != -1 and size < 1:
        raise _error(values, key, "a positive integer or -1")
    return None if size == -1 else size


def refuse_unless(values: Mapping[str, Any], key: str, *allowed: Any) -> None:
    value = values.get(key)
    if value not in allowed:
        wanted = " or ".join(repr(item) for item in allowed if item is not None)
        raise ModelLoadError(f"quantization_config: {key} {value!r} is not supported; {wanted} is")


def _error(values: Mapping[str, Any], key: str, wanted: str) -> ModelLoadError:
    return ModelLoadError(
        f"quantization_config: {key!r} is {values.get(key)!r}; {wanted} was expected"
    )
