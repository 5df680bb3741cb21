"""The small routes: models, tokens, health, metrics, the state of the cache."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from infra_lab.errors import about
from infra_lab.server.api_errors import bad_request, unavailable
from infra_lab.server.chat_prompt import chat_token_ids
from infra_lab.server.context import service_of
from infra_lab.server.protocol.tokens import DetokenizeRequest, TokenizeRequest
from infra_lab.server.service import Service

router = APIRouter()
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@router.get("/health")
async def health(request: Request) -> dict[str, str]:
    """200 while requests are taken; 503 once the engine has failed or shuts down."""
    engine = service_of(request).engine
    if engine.fault is not None:
        raise unavailable(f"the engine has failed: {engine.fault}")
    if engine.is_draining:
        raise unavailable("the server is shutting down")
    return {"status": "ok"}


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus' text format."""
    return Response(service_of(request).metrics.text(), media_type=METRICS_TYPE)


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    """The served model and its LoRA adapters."""
    service = service_of(request)
    names = [service.settings.model_name, *service.adapters]
    return {"object": "list", "data": [_model(service, name) for name in names]}


@router.get("/v1/models/{model:path}")
async def retrieve_model(model: str, request: Request) -> dict[str, Any]:
    service = service_of(request)
    service.adapter_of(model)
    return _model(service, model)


@router.get("/v1/cache")
async def cache(request: Request) -> dict[str, Any]:
    """What the KV cache holds now, and how often its prefixes were found so far, in tokens."""
    service = service_of(request)
    stats = service.engine.stats
    queries, hits = stats.prefix_cache_queries, stats.prefix_cache_hits
    return {
        "object": "cache",
        "block_size": service.block_size,
        "blocks": {
            "total": stats.num_blocks,
            "used": stats.blocks_used,
            "cached": stats.blocks_cached,
            "free": stats.blocks_free,
        },
        "prefix_cache": {
            "queries": queries,
            "hits": hits,
            "hit_rate": hits / queries if queries else 0.0,
        },
        "requests": {"running": stats.running, "waiting": stats.waiting},
    }


@router.get("/v1/cache/blocks")
async def cache_blocks(request: Request) -> dict[str, Any]:
    """Every block's state, and the blocks of each sample in the batch."""
    return await service_of(request).block_map()


@router.post("/tokenize")
async def tokenize(body: TokenizeRequest, request: Request) -> Response:
    """The token ids of a prompt, or of messages as the chat template writes them."""
    service = service_of(request)
    _check_model(service, body.model)
    if (body.prompt is None) == (body.messages is None):
        raise bad_request("give either prompt or messages", "prompt")
    if body.messages is None and body.add_generation_prompt is not None:
        raise bad_request("add_generation_prompt is for messages", "add_generation_prompt")
    if body.messages is not None and body.add_special_tokens is not None:
        raise bad_request(
            "add_special_tokens is for a prompt: the chat template writes its own",
            "add_special_tokens",
        )

    def encode() -> list[int]:
        if body.messages is None:
            text, adds_special = body.prompt or "", body.add_special_tokens is not False
            with about("prompt"):
                service.check_length(len(text))
                return service.tokenizer.encode(text, adds_special)
        begins_answer = body.add_generation_prompt is not False
        return chat_token_ids(service.tokenizer, body.messages, (), begins_answer)

    tokens = await service.in_thread(encode, {})
    answer = {"count": len(tokens), "max_model_len": service.max_model_len, "tokens": tokens}
    if body.return_token_strs:
        answer["token_strs"] = [service.texts.text_of(token) for token in tokens]
    return JSONResponse(answer)


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
    """The text of token ids, special tokens included."""
    service = service_of(request)
    _check_model(service, body.model)
    for index, token in enumerate(body.tokens):
        if not 0 <= token < service.vocab_size:
            raise bad_request(
                f"tokens[{index}] is {token}, outside the vocabulary: ids go from 0 to "
                f"{service.vocab_size - 1}",
                f"tokens[{index}]",
            )

    def decode() -> str:
        return service.tokenizer.decode(body.tokens, skip_special_tokens=False)

    return JSONResponse({"prompt": await service.in_thread(decode, {})})


def _check_model(service: Service, model: str | None) -> None:
    if model is not None:
        service.adapter_of(model)


def _model(service: Service, name: str) -> dict[str, Any]:
    base = service.settings.model_name
    return {
        "id": name,
        "object": "model",
        "created": service.started_at,
        "owned_by": "infra-lab",
        "root": base,
        "parent": None if name == base else base,
        "max_model_len": service.max_model_len,
    }
