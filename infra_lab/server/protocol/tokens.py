"""The requests of /tokenize and /detokenize, as in vLLM's server."""

from __future__ import annotations

from pydantic import Field

from infra_lab.server.protocol.base import Strict
from infra_lab.server.protocol.chat import ChatMessage


class TokenizeRequest(Strict):
    """Either a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = Field(None, description="Of a prompt; default: true.")
    add_generation_prompt: bool | None = Field(None, description="Of messages; default: true.")
    return_token_strs: bool = False


class DetokenizeRequest(Strict):
    model: str | None = None
    tokens: list[int]
