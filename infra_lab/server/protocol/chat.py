"""The request of /v1/chat/completions."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from infra_lab.server.protocol.base import GenerationRequest, Strict
from infra_lab.server.protocol.tools import Tool, ToolCall, ToolChoice


class TextPart(Strict):
    type: Literal["text"]
    text: str


class ChatMessage(Strict):
    """`developer` is today's name of `system`."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = Field(None, description="Refused: chat templates have no place for it.")
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: None = None

    @property
    def text(self) -> str:
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "".join(part.text for part in self.content)


class JsonSchemaFormat(Strict):
    """`name` and `description` label the schema and do not change the answer, which always keeps
    to it, `strict` or not."""

    name: str
    schema_: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class TextResponseFormat(Strict):
    type: Literal["text"]


class JsonObjectResponseFormat(Strict):
    type: Literal["json_object"]


class JsonSchemaResponseFormat(Strict):
    type: Literal["json_schema"]
    json_schema: JsonSchemaFormat


ResponseFormat = TextResponseFormat | JsonObjectResponseFormat | JsonSchemaResponseFormat


class ChatCompletionRequest(GenerationRequest):
    messages: list[ChatMessage]
    max_tokens: int | None = Field(None, description="The older name of max_completion_tokens.")
    max_completion_tokens: int | None = Field(
        None, description="Most tokens of the answer; null is as many as the context holds."
    )
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, description="0 to 20; needs logprobs.")
    response_format: ResponseFormat | None = Field(None, discriminator="type")
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
