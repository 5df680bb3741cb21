"""Errors as OpenAI's clients expect them: a status, and `{"error": {...}}` that names the
parameter at fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra_lab.errors import InvalidRequestError

RETRY_AFTER_S = 1  # what a client that met a full queue is told to wait
TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """An answer with a status of 400 or more.

    Attributes:
        param: the request's parameter at fault, if it is one's fault.
        code: for programs to tell cases apart; None where the status says it all.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        fallback = "server_error" if self.status >= 500 else "invalid_request_error"
        return {
            "error": {
                # What cannot be UTF-8 is shown escaped: a message may quote what was sent.
                "message": self.message.encode("utf-8", "backslashreplace").decode(),
                "type": TYPES.get(self.status, fallback),
                "param": self.param,
                "code": self.code,
            }
        }


def bad_request(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, message, param)


def too_many_requests(message: str) -> ApiError:
    headers = {"Retry-After": str(RETRY_AFTER_S)}
    return ApiError(429, message, code="rate_limit_exceeded", headers=headers)


def unavailable(message: str) -> ApiError:
    return ApiError(503, message, headers={"Retry-After": str(RETRY_AFTER_S)})


def server_fault() -> ApiError:
    return ApiError(500, "the server has a fault there; its log says more")


def too_late() -> ApiError:
    return ApiError(504, "the answer took longer than a request may take here")


def from_invalid_request(error: InvalidRequestError, names: Mapping[str, str]) -> ApiError:
    """`names`: what the engine's parameters are called in this request, where it differs."""
    param = None if error.param is None else names.get(error.param, error.param)
    return bad_request(str(error), param)
