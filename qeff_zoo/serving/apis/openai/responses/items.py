# SPDX-License-Identifier: Apache-2.0
"""Items of the Responses API -> messages of a chat.

Reasoning, a message and calls of the assistant that follow each other are one message of a chat.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from qeff_zoo.serving.answers.custom_tools import INPUT
from qeff_zoo.serving.answers.objects import Object
from qeff_zoo.serving.apis.openai.responses.tools import function_name
from qeff_zoo.serving.errors import ApiError, brief
from qeff_zoo.serving.requests.leniency import ignore

#: Items of tools that a service ran by itself; the answer after them has what a model needs of them.
_HOSTED = (
    *("code_interpreter_call", "file_search_call", "image_generation_call", "mcp_approval_request"),
    *("mcp_approval_response", "mcp_list_tools", "web_search_call"),
)
#: Items of calls, with the functions from them to the name and the arguments.
_CALLS: Mapping[str, Callable[[Mapping[str, Any]], tuple[Any, Any]]] = MappingProxyType(
    {
        "function_call": lambda item: (item.get("name"), item.get("arguments", "")),
        "custom_tool_call": lambda item: (item.get("name"), {INPUT: item.get("input", "")}),
        "local_shell_call": lambda item: ("local_shell", item.get("action")),
    }
)
_RESULTS = tuple(f"{name}_output" for name in _CALLS)
_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text", "refusal")


def messages_of(items: str | Sequence[Mapping[str, Any]], earlier: int = 0) -> list[Object]:
    """Return the messages of items; a text is a message of the user.

    Args:
        items: The items.
        earlier: Number of items before those of the request, by whose numbers errors name them.

    Raises:
        ApiError: An item is of an unknown form.
    """
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    messages: list[Object] = []
    for number, item in enumerate(items, -earlier):
        kind = item.get("type", "message")
        if not isinstance(kind, str):
            raise _unknown(number, "type", kind)
        if kind == "message":
            _add_message(messages, item, number)
        elif kind == "reasoning":
            texts = item.get("content") or item.get("summary") or []
            if not isinstance(texts, list):
                raise _unknown(number, "content", texts)
            _assistant(messages)["reasoning_content"] = "".join(_text(one, number) for one in texts)
        elif kind in _CALLS:
            call = {
                "id": item.get("call_id"),
                "type": "function",
                "function": _called(item, number),
            }
            _assistant(messages).setdefault("tool_calls", []).append(call)
        elif kind in _RESULTS:
            output = item.get("output", "")
            content = output if isinstance(output, str) else _content(output, number)
            frame = {"role": "tool", "tool_call_id": item.get("call_id")}
            messages.append({**frame, "content": content})
        elif kind in _HOSTED:
            ignore(f"input.type={kind}", item)
        else:
            raise _unknown(number, "type", kind)
    return messages


def _called(item: Mapping[str, Any], number: int) -> Object:
    """Return the function and the arguments of a call."""
    name, arguments = _CALLS[item["type"]](item)
    namespace = item.get("namespace")
    if namespace is not None:
        if not (isinstance(name, str) and isinstance(namespace, str)):
            raise _unknown(number, "namespace", namespace)
        name = function_name(name, namespace)
    return {"name": name, "arguments": arguments}


def _add_message(messages: list[Object], item: Mapping[str, Any], number: int) -> None:
    role, content = item.get("role"), item.get("content", "")
    if not isinstance(role, str):
        raise _unknown(number, "role", role)
    content = content if isinstance(content, str) else _content(content, number)
    if role != "assistant":
        messages.append({"role": role, "content": content})
        return
    if isinstance(content, list):
        content = "".join(part["text"] for part in content if part["type"] == "text")
    message = _assistant(messages)
    if message.get("content") or message.get("tool_calls"):  # of another turn
        messages.append({"role": "assistant", "content": content})
    else:
        message["content"] = content


def _assistant(messages: list[Object]) -> Object:
    """Return the last message, which is of the assistant; append one if it is not."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _content(parts: Any, number: int) -> list[Object]:
    """Return parts of a message's content by the names that chats have for them."""
    if not isinstance(parts, list):
        raise _unknown(number, "content", parts)
    return [_part(part, number) for part in parts]


def _part(part: Any, number: int) -> Object:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in _TEXTS:
        return {"type": "text", "text": _text(part, number)}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": part.get("input_audio")}
    raise _unknown(number, "content type", kind)


def _text(part: Any, number: int) -> str:
    text = part.get("text", part.get("refusal")) if isinstance(part, Mapping) else None
    if not isinstance(text, str):
        raise _unknown(number, "text", text)
    return text


def _unknown(number: int, what: str, value: Any) -> ApiError:
    return ApiError(
        400,
        f"Item {number} has the {what} {brief(value)}; expected messages with text, images or audio, "
        f"reasoning, {', '.join(_CALLS)}, {', '.join(_RESULTS)}. Change the item, or leave it out.",
        param="input",
        code="invalid_value",
    )
