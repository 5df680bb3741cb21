"""/v1/embeddings: texts as vectors, where the model, or who serves it, says how to pool."""

from __future__ import annotations

import base64
import struct

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from infra_lab.errors import InvalidRequestError, about
from infra_lab.server.api_errors import bad_request
from infra_lab.server.context import client_of, service_of, track_embedding
from infra_lab.server.protocol.embeddings import EmbeddingRequest
from infra_lab.server.service import Service
from infra_lab.server.sse import unless_client_leaves

router = APIRouter()


@router.post("/v1/embeddings")
async def create_embedding(body: EmbeddingRequest, request: Request) -> Response:
    """A vector of length 1 for each input. A model that was not trained for it gives vectors that
    mean little: it is refused unless the server was started with --pooling."""
    service = service_of(request)
    pooling = _checked_pooling(body, service)

    def encode() -> list[list[int]]:
        return [_token_ids(service, one, _name(body, i)) for i, one in enumerate(body.inputs)]

    async def work() -> tuple[list[list[float]], int]:
        return await service.embed(client_of(request), len(body.inputs), encode, pooling)

    vectors, num_tokens = await unless_client_leaves(request.receive, work())
    track_embedding(request, body.model, body.user, num_tokens)
    encoded = _base64 if body.encoding_format == "base64" else list
    data = [
        {"object": "embedding", "index": index, "embedding": encoded(vector)}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    return JSONResponse({"object": "list", "data": data, "model": body.model, "usage": usage})


def _checked_pooling(body: EmbeddingRequest, service: Service) -> str:
    """How the vectors are to be pooled; raises ApiError for a request that can have none."""
    if service.adapter_of(body.model) is not None:
        raise bad_request(
            f"{body.model} is an adapter, and embeddings are the model's own: name "
            f"{service.settings.model_name}",
            "model",
        )
    if (pooling := service.settings.pooling) is None:
        raise bad_request(
            f"{service.settings.model_name} does not say how its states become one vector: it was "
            f"trained to go on with a text. Serve an embedding model, or start the server with "
            f"--pooling mean or --pooling last to read vectors out all the same",
            "model",
        )
    if body.dimensions is not None and body.dimensions != service.hidden_size:
        raise bad_request(
            f"dimensions must be {service.hidden_size}, the model's own, not {body.dimensions}: "
            f"leave it out",
            "dimensions",
        )
    if not body.inputs:
        raise bad_request("input is empty: give at least one text", "input")
    return pooling


def _name(body: EmbeddingRequest, index: int) -> str:
    """What an input is called in a message about it."""
    return "input" if body.inputs == [body.input] else f"input[{index}]"


def _token_ids(service: Service, text: str | list[int], name: str) -> list[int]:
    with about(name):
        token_ids = service.token_ids(text)
    if not token_ids:
        raise InvalidRequestError(f"{name} is empty: give at least one token", name)
    if len(token_ids) > service.max_model_len:
        raise InvalidRequestError(
            f"{name} has {len(token_ids)} tokens and the context holds {service.max_model_len}: "
            f"shorten it",
            name,
        )
    for token_id in token_ids:
        if not 0 <= token_id < service.vocab_size:
            raise InvalidRequestError(
                f"{name} names token id {token_id}, outside the vocabulary: ids go from 0 to "
                f"{service.vocab_size - 1}",
                name,
            )
    return token_ids


def _base64(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
