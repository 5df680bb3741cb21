"""From the messages of a chat request to what the model's chat template takes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any

from infra_lab.errors import InvalidRequestError
from infra_lab.models.tokenizer import Tokenizer
from infra_lab.server.protocol.chat import ChatMessage
from infra_lab.server.protocol.tools import Tool, ToolCall
from infra_lab.server.tool_calls import BEGIN, END

Message = dict[str, Any]

TOOL_PROMPT = """\
You may call functions to help with the user's request. To call one, write nothing but a line
{begin}{{"name": <the function's name>, "arguments": <an object that its parameters describe>}}{end}
for each call. The functions are:
{functions}"""


def chat_token_ids(
    tokenizer: Tokenizer,
    messages: Sequence[ChatMessage],
    tools: Sequence[Tool] = (),
    add_generation_prompt: bool = True,
) -> list[int]:
    """The conversation as the model was trained on it, telling it of `tools`.

    Raises InvalidRequestError, naming the message, for one that makes no sense where it stands or
    that the template refuses.
    """
    if not messages:
        raise InvalidRequestError("messages is empty: give at least one message", "messages")
    check_messages(messages)
    is_native = tokenizer.template_takes_tools
    rendered = [_rendered(message, is_native) for message in messages]
    described = [tool.model_dump(exclude_none=True) for tool in tools]
    if described and not is_native:
        rendered = _with_tools(rendered, described)
    return tokenizer.apply_chat_template(
        rendered, add_generation_prompt, described if is_native else None
    )


def check_messages(messages: Sequence[ChatMessage]) -> None:
    called: set[str] = set()
    for index, message in enumerate(messages):
        place = f"messages[{index}]"
        if message.name is not None:
            _refuse(f"{place}.name", "chat templates have no place for a name: leave it out")
        if message.tool_calls is not None:
            if message.role != "assistant":
                _refuse(f"{place}.tool_calls", "only the assistant calls functions")
            called |= {call.id for call in message.tool_calls}
        elif message.content is None:
            _refuse(f"{place}.content", "give the message a text")
        if message.role == "tool":
            if message.tool_call_id not in called:
                _refuse(
                    f"{place}.tool_call_id",
                    f"{message.tool_call_id!r} is the id of no call in the messages before it",
                )
        elif message.tool_call_id is not None:
            _refuse(f"{place}.tool_call_id", "only a message of role 'tool' answers a call")
    last = messages[-1]
    if last.role == "user" and not last.text:
        _refuse(f"messages[{len(messages) - 1}].content", "an empty question asks nothing")


def _rendered(message: ChatMessage, is_native: bool) -> Message:
    role = "system" if message.role == "developer" else message.role
    rendered: Message = {"role": role, "content": message.text}
    if not message.tool_calls:
        return rendered
    calls = [_call(call) for call in message.tool_calls]
    if is_native:
        rendered["tool_calls"] = [{"type": "function", "function": call} for call in calls]
        return rendered
    lines = [f"{BEGIN}{json.dumps(call, ensure_ascii=False)}{END}" for call in calls]
    rendered["content"] = "\n".join(([message.text] if message.text else []) + lines)
    return rendered


def _call(call: ToolCall) -> Message:
    """Templates write the arguments out themselves, so they get them as an object."""
    arguments: Any = call.function.arguments
    with contextlib.suppress(ValueError, RecursionError):  # an earlier turn's need not be JSON
        arguments = json.loads(arguments)
    return {"name": call.function.name, "arguments": arguments}


def _with_tools(messages: list[Message], tools: list[Message]) -> list[Message]:
    """For a template that knows no tools: they are described in the system message."""
    functions = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    text = TOOL_PROMPT.format(begin=BEGIN, end=END, functions=functions)
    if messages[0]["role"] == "system":
        first = messages[0] | {"content": f"{messages[0]['content']}\n\n{text}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _refuse(param: str, message: str) -> None:
    raise InvalidRequestError(f"{param}: {message}", param)
