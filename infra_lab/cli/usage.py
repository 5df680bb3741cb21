"""What typer says of a wrong command line, in the words and the one line of our own errors:
what was given, what was wanted, and which help explains it."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any


def is_usage_error(error: BaseException) -> bool:
    """Whether typer raised it. Some versions raise their own exceptions and others click's, which
    have no base in common but all of these attributes."""
    return hasattr(error, "format_message") and hasattr(error, "exit_code")


def explain_usage(error: Any, arguments: Sequence[str]) -> str:
    """One line for an error that `is_usage_error`, raised for these arguments of `infra-lab`."""
    ctx = getattr(error, "ctx", None)
    command = f"infra-lab {arguments[0]}" if ctx is None else ctx.command_path
    return f"{_said(error, ctx, arguments)} (see `{command} --help`)"


def suggestion(given: str, known: Collection[str], otherwise: str) -> str:
    """`: did you mean 'x'?`, or `: otherwise` if nothing known is like what was given."""
    from difflib import get_close_matches

    close = get_close_matches(given, known, n=1)
    if close:
        return f": did you mean {close[0]!r}?"
    return f": {otherwise}" if otherwise else ""


def _said(error: Any, ctx: Any, arguments: Sequence[str]) -> str:
    message: str = error.format_message()
    parameter = getattr(error, "param", None)
    if parameter is not None:
        return _wrong_value(error.message or "", parameter, arguments)
    if ctx is None:
        needs_value = re.match(r"Option '(.*?)' requires", message)
        return f"{needs_value[1]} needs a value" if needs_value else _lowered(message)
    if hasattr(error, "possibilities") and error.option_name.startswith("-"):
        known = [name for one in ctx.command.get_params(ctx) for name in one.opts]
        return f"no option {error.option_name!r}{suggestion(error.option_name, known, '')}"
    if match := re.match(r"No such command '(.*?)'", message):
        names = ctx.command.list_commands(ctx)
        near = suggestion(match[1], names, f"commands are {', '.join(names)}")
        return f"no command {match[1]!r} of `{ctx.command_path}`{near}"
    if match := re.match(r"Got unexpected extra argument.*? \((.*)\)$", message, re.DOTALL):
        return f"too many arguments, from {match[1]!r} on: quote a text of several words"
    return _lowered(message)


def _wrong_value(message: str, parameter: Any, arguments: Sequence[str]) -> str:
    is_option = parameter.param_type_name == "option"
    name = parameter.metavar or parameter.name
    if is_option:
        used = [one for one in parameter.opts if one in arguments]
        name = max(used or parameter.opts, key=len)
    if message.startswith("must be"):
        return f"{name} {message}"
    if not message:
        return f"{name} is missing"
    given = _given(parameter.opts, arguments)
    value = "that" if given is None else repr(given)
    kinds = {"integer": "a whole number", "number": "a number", "float": "a number"}
    for kind, wanted in kinds.items():
        if kind in message:
            return f"{name} must be {wanted}, not {value}"
    return f"{name}: {_lowered(message)}"


def _given(names: Collection[str], arguments: Sequence[str]) -> str | None:
    """The last value that the command line gives to an option."""
    for index in range(len(arguments) - 1, -1, -1):
        name, separator, value = arguments[index].partition("=")
        if name in names:
            if separator:
                return value
            return arguments[index + 1] if index + 1 < len(arguments) else None
    return None


def _lowered(message: str) -> str:
    return message[:1].lower() + message[1:].rstrip(".")
