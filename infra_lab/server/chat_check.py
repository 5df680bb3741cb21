"""What of a chat request contradicts itself, and which form its answer must have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from infra_lab.server.api_errors import bad_request
from infra_lab.server.checks import check_num_logprobs, check_stream_options
from infra_lab.server.protocol.chat import (
    ChatCompletionRequest,
    JsonObjectResponseFormat,
    JsonSchemaResponseFormat,
    TextResponseFormat,
)
from infra_lab.server.protocol.tools import NamedToolChoice
from infra_lab.server.tool_calls import arguments_schema, required_schema


@dataclass(frozen=True, slots=True)
class Form:
    """`form`: structured outputs as SamplingParams.from_dict takes them, None for free text;
    `param`: the parameter that asks for it."""

    form: dict[str, Any] | None
    param: str


def tool_choice_of(body: ChatCompletionRequest) -> str | NamedToolChoice:
    """What goes where the request says nothing: "auto" with tools, "none" without."""
    if body.tool_choice is not None:
        return body.tool_choice
    return "auto" if body.tools else "none"


def form_of(body: ChatCompletionRequest) -> Form:
    choice = tool_choice_of(body)
    tools = body.tools or []
    if isinstance(choice, NamedToolChoice):
        (tool,) = [one for one in tools if one.function.name == choice.function.name]
        return Form(_json(arguments_schema(tool)), "tools")
    if choice == "required":
        return Form(_json(required_schema(tools, body.parallel_tool_calls is not False)), "tools")
    if isinstance(body.response_format, JsonSchemaResponseFormat):
        schema = body.response_format.json_schema.schema_
        return Form({"json": schema}, "response_format")
    if isinstance(body.response_format, JsonObjectResponseFormat):
        return Form({"json_object": True}, "response_format")
    return Form(body.structured_outputs, "structured_outputs")


def check(body: ChatCompletionRequest) -> None:
    """What the engine has no word for; raises ApiError 400."""
    given, newer = body.max_tokens, body.max_completion_tokens
    if given is not None and newer is not None and given != newer:
        raise bad_request(
            f"max_tokens={given} and max_completion_tokens={newer} are two names of one "
            f"parameter: give one of them",
            "max_tokens",
        )
    check_stream_options(body)
    top = body.top_logprobs
    if top is not None and not body.logprobs:
        raise bad_request("top_logprobs needs logprobs: set it to true", "top_logprobs")
    check_num_logprobs("top_logprobs", top)
    _check_tools(body)
    _check_form(body)


def _check_tools(body: ChatCompletionRequest) -> None:
    choice = tool_choice_of(body)
    names = [tool.function.name for tool in body.tools or []]
    for name in names:
        if names.count(name) > 1:
            raise bad_request(f"two tools are named {name!r}: give each its own name", "tools")
    if not names:
        if body.tool_choice not in (None, "none"):
            raise bad_request("tool_choice needs tools: give at least one", "tool_choice")
        if body.parallel_tool_calls is not None:
            raise bad_request("parallel_tool_calls needs tools", "parallel_tool_calls")
        return
    if isinstance(choice, NamedToolChoice) and choice.function.name not in names:
        raise bad_request(
            f"tool_choice names {choice.function.name!r}: tools are {', '.join(names)}",
            "tool_choice",
        )
    if choice != "auto":
        return
    remedy = 'set tool_choice to "required" or name a function'
    if body.parallel_tool_calls is False:
        raise bad_request(
            f"nothing keeps the model from a second call under tool_choice auto: leave "
            f"parallel_tool_calls out, or {remedy}",
            "parallel_tool_calls",
        )
    for index, tool in enumerate(body.tools or []):
        if tool.function.strict:
            raise bad_request(
                f"nothing forces arguments into a schema under tool_choice auto: leave strict "
                f"out, or {remedy}",
                f"tools[{index}].function.strict",
            )


def _check_form(body: ChatCompletionRequest) -> None:
    has_format = body.response_format is not None and not isinstance(
        body.response_format, TextResponseFormat
    )
    asked = ["response_format"] * has_format + ["structured_outputs"] * (
        body.structured_outputs is not None
    )
    if body.tools and tool_choice_of(body) != "none":
        asked.append("tools")
    if len(asked) > 1:
        raise bad_request(
            f"{' and '.join(asked)} each say what form the answer has: give one of them", asked[0]
        )


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    """Without white space, in which a small model may lose itself."""
    return {"json": schema, "disable_any_whitespace": True}
