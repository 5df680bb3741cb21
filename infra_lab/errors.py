"""Every error that a user of infra_lab can cause, in one small hierarchy.

A message says what was given, what was wanted and what to do. Commands print it and exit
with `exit_status`; nobody sees a traceback for their own mistake.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class InfraLabError(Exception):
    """Base of all errors meant for a person to read."""

    exit_status = 1
    label = "error: "  # before the message, where a command prints it


class UsageError(InfraLabError):
    """A command or a function was called with arguments that make no sense."""

    exit_status = 2


class ModelNotFoundError(InfraLabError):
    """No model answers to the given name; the message says how to get one."""


class ModelLoadError(InfraLabError):
    """A checkpoint exists but cannot be used: damaged, incomplete or unsupported."""


class InvalidRequestError(InfraLabError, ValueError):
    """One request is refused for its own fault; other requests are not touched.

    Attributes:
        param: the parameter at fault, where it is one of the request's.
    """

    exit_status = 2

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


@contextmanager
def about(param: str) -> Iterator[None]:
    """Names the parameter at fault in every InvalidRequestError from inside that names none."""
    try:
        yield
    except InvalidRequestError as error:
        error.param = error.param or param
        raise


class StructuredOutputError(InfraLabError):
    """A document of a required form cannot be continued; the request that wants it ends."""


class ModelPullError(InfraLabError):
    """A known model could not be fetched, or what came is not what was expected."""


class ForeignKernelsError(InfraLabError, ImportError):
    """`import kernels` finds another package of that name than infra-lab's own."""
