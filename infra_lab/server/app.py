"""The web application: routes, what they share, and what errors look like."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from infra_lab import __version__
from infra_lab.engine.llm import LLM
from infra_lab.server import chat_api, completions_api, embeddings_api, page, utility_api
from infra_lab.server.api_errors import ApiError, bad_request, server_fault
from infra_lab.server.middleware import BodyMiddleware, DoorMiddleware, LogMiddleware
from infra_lab.server.service import Service
from infra_lab.server.settings import ServerSettings
from infra_lab.server.sse import ClientGoneError

CLIENT_CLOSED_REQUEST = 499  # nginx's number for the log: nobody reads this answer


class Application:
    """An ASGI application over a loaded model; `service` is there while it runs."""

    def __init__(self, llm: LLM, settings: ServerSettings) -> None:
        self.settings = settings

        @asynccontextmanager
        async def lifespan(api: FastAPI) -> AsyncIterator[None]:
            api.state.service = Service(llm, settings)
            try:
                yield
            finally:
                await api.state.service.close()

        # The documentation pages of FastAPI load scripts from elsewhere: only the schema is served.
        self.api = FastAPI(
            title="infra-lab", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None
        )
        for module in (completions_api, chat_api, embeddings_api, utility_api, page):
            self.api.include_router(module.router)
        self.api.add_exception_handler(ApiError, _answer_api_error)
        self.api.add_exception_handler(RequestValidationError, _answer_validation_error)
        self.api.add_exception_handler(HTTPException, _answer_http_exception)
        self.api.add_exception_handler(ClientGoneError, _answer_nobody)
        self.api.add_exception_handler(Exception, _answer_fault)
        door: ASGIApp = DoorMiddleware(BodyMiddleware(self.api, settings), settings)
        if settings.cors_origins:
            door = CORSMiddleware(
                door,
                allow_origins=settings.cors_origins,
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=["X-Request-Id"],
            )
        self._entry = LogMiddleware(door, settings, self.api.state)

    @property
    def service(self) -> Service:
        service: Service = self.api.state.service
        return service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._entry(scope, receive, send)


async def _answer_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body, error.status, error.headers)


async def _answer_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    explained = explain(error.errors(), error.body)
    return JSONResponse(explained.body, explained.status)


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = str(error.detail)
    if error.status_code == HTTPStatus.BAD_REQUEST:  # FastAPI's, for what Python's parser refuses
        message = "the body is no JSON that can be read: is it UTF-8, and not nested too deeply?"
    elif error.status_code == HTTPStatus.NOT_FOUND:
        message = f"there is no {request.url.path} here; /openapi.json lists what there is"
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        message = f"{request.url.path} does not take {request.method}"
    body = ApiError(error.status_code, message).body
    return JSONResponse(body, error.status_code, error.headers)


async def _answer_nobody(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _answer_fault(request: Request, error: Exception) -> Response:
    """What nobody foresaw; the log gets it from LogMiddleware, to which it goes on."""
    return JSONResponse(server_fault().body, server_fault().status)


def explain(errors: Sequence[Any], body: object) -> ApiError:
    """The first fault of a request that does not have the right shape, in words."""
    if not isinstance(body, dict):
        for error in errors:
            if error["type"] == "json_invalid":
                return bad_request(f"the body is not JSON: {error['ctx']['error']}")
        return bad_request(
            "the body must be a JSON object, sent with Content-Type: application/json"
        )
    # Of a value that may be of several types, each type complains: the one that got furthest in
    # knows best.
    places = [_place(error["loc"][1:], error["type"], body) for error in errors]
    best = max(range(len(errors)), key=lambda index: (_depth(places[index]), -index))
    error, place = errors[best], places[best]
    if error["type"] == "missing":
        return bad_request(f"{place} is missing", place)
    if error["type"] == "extra_forbidden":
        return bad_request(
            f"unknown parameter {place}: this server refuses what it would have to ignore", place
        )
    messages = {one["msg"] for one, where in zip(errors, places, strict=True) if where == place}
    return bad_request(f"{place}: {', or '.join(sorted(messages))}", place)


def _depth(place: str) -> int:
    return place.count(".") + place.count("[")


def _place(location: Sequence[str | int], kind: str, body: object) -> str:
    """A location as in "messages[0].content", without the names of types that pydantic tried."""
    place, value = "", body
    for number, part in enumerate(location):
        if isinstance(part, int) and isinstance(value, list) and part < len(value):
            place, value = f"{place}[{part}]", value[part]
        elif isinstance(value, dict) and part in value:
            place, value = f"{place}.{part}" if place else str(part), value[part]
        elif kind == "missing" and number == len(location) - 1:
            place = f"{place}.{part}" if place else str(part)
    return place
