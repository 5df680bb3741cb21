"""What a route finds beside a request's body: the service, who asks, and the log's line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from infra_lab.server.generation import Generation
from infra_lab.server.protocol.base import GenerationRequest

if TYPE_CHECKING:
    from infra_lab.server.service import Service


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def client_of(request: Request) -> str:
    """Whom limits count for: the API key, where there are keys, else the address."""
    client: str = request.scope["infra_lab"]["client"]
    return client


def track(request: Request, generation: Generation, body: GenerationRequest) -> None:
    """Lets the log tell how this generation went, once it is over."""
    request.scope["infra_lab"] |= {"generation": generation, "body": body}


def track_embedding(request: Request, model: str, user: str | None, num_tokens: int) -> None:
    """Lets the log tell of an answer that generated nothing."""
    fields: dict[str, Any] = {"model": model, "prompt_tokens": num_tokens}
    request.scope["infra_lab"]["fields"] = fields if user is None else fields | {"user": user}


def log_fields(facts: dict[str, Any], shows_text: bool) -> dict[str, Any]:
    """What the log says of an answer, from what was noted of it."""
    generation: Generation | None = facts.get("generation")
    body: GenerationRequest | None = facts.get("body")
    if generation is None or body is None:
        return dict(facts.get("fields", {}))
    fields: dict[str, Any] = {
        "response_id": generation.request_id,
        "model": body.model,
        "stream": bool(body.stream),
        "prompt_tokens": generation.num_prompt_tokens,
        "completion_tokens": generation.num_output_tokens,
        "cached_tokens": generation.num_cached_tokens,
        "finish_reasons": generation.finish_reasons,
    }
    if body.user is not None:
        fields["user"] = body.user
    if shows_text:
        fields["request"] = body.model_dump(mode="json", exclude_none=True, by_alias=True)
    return fields
