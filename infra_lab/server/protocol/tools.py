"""Functions that a model may call, as requests describe them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from infra_lab.server.protocol.base import Strict

FUNCTION_NAME = r"^[a-zA-Z0-9_-]{1,64}$"


class FunctionDefinition(Strict):
    name: str = Field(pattern=FUNCTION_NAME)
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="JSON Schema of the arguments.")
    strict: bool | None = Field(
        None, description="Always so where tool_choice is required or names a function."
    )


class Tool(Strict):
    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(Strict):
    name: str


class NamedToolChoice(Strict):
    type: Literal["function"]
    function: FunctionName


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice


class FunctionCall(Strict):
    name: str = Field(pattern=FUNCTION_NAME)
    arguments: str = Field(description="A JSON object as text.")


class ToolCall(Strict):
    """A call that the assistant made in an earlier turn."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall
