# SPDX-License-Identifier: Apache-2.0
"""Bodies of Anthropic's Messages API, and their conversion to a chat."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from qeff_zoo.serving.answers.objects import Object
from qeff_zoo.serving.errors import ApiError, brief, unknown_parameter
from qeff_zoo.serving.requests.leniency import callable_tools, ignore
from qeff_zoo.serving.requests.schemas import (
    MAX_MESSAGES,
    MAX_STOPS,
    MAX_TOOLS,
    RequestBody,
    Share,
    Stop,
    whole_number,
)

#: Blocks of tools that a service ran by itself; the answer after them has what a model needs of them.
_HOSTED = ("server_tool_use", "mcp_tool_use", "mcp_tool_result", "container_upload")
_HOSTED_RESULT = "_tool_result"


class MessageTool(BaseModel):
    """Function that a model may call."""

    model_config = ConfigDict(strict=True, extra="ignore")  # hints for caches and examples

    type: Literal["custom"] = "custom"
    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None  # calls match the schema


class ToolChoice(BaseModel):
    """Choice of functions."""

    model_config = ConfigDict(strict=True, extra="forbid")

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class Thinking(BaseModel):
    """Whether the model thinks before it answers."""

    model_config = ConfigDict(strict=True, extra="ignore")

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None  # thinking counts toward max_tokens


class OutputFormat(BaseModel):
    """Structured output."""

    model_config = ConfigDict(strict=True, extra="forbid")

    type: Literal["json_schema"]
    content: dict[str, Any] = Field(alias="schema")


class OutputConfig(BaseModel):
    """Effort and form of an output."""

    model_config = ConfigDict(strict=True, extra="forbid")

    effort: Annotated[str, Field(max_length=64)] | None = None
    format: OutputFormat | None = None


class Message(BaseModel):
    """Message with a text, or with blocks."""

    model_config = ConfigDict(strict=True, extra="forbid")

    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]]


class CountRequest(RequestBody):
    """Body of /v1/messages/count_tokens."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: str | list[dict[str, Any]] | None = None
    tools: Annotated[
        list[MessageTool],
        Field(max_length=MAX_TOOLS),
        BeforeValidator(lambda tools: callable_tools(tools, ("custom",))),
    ] = Field(default_factory=list)
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: Any = None  # every prompt is cached
    thread: dict[str, Any] | None = None

    def as_chat(self) -> Object:
        """Return the body of the chat.

        Raises:
            ApiError: The server would have to keep the conversation.
        """
        if self.thread:
            raise _unsupported_thread(self.thread)
        messages = [message for one in self.messages for message in _messages_of(one)]
        if self.system:
            text = self.system if isinstance(self.system, str) else _text_of(self.system)
            messages.insert(0, {"role": "system", "content": text})
        chosen = self.tool_choice or ToolChoice(type="auto")
        kinds: dict[str, Any] = {"auto": "auto", "any": "required", "none": "none"}
        named = {"type": "function", "function": {"name": chosen.name or ""}}
        found: Object = {
            "model": self.model,
            "messages": messages,
            "tools": [_tool(one) for one in self.tools],
            "tool_choice": kinds.get(chosen.type, named),
            "parallel_tool_calls": not chosen.disable_parallel_tool_use,
        }
        config = self.output_config or OutputConfig()
        if config.format:
            schema = {"name": "", "schema": config.format.content}
            found["response_format"] = {"type": "json_schema", "json_schema": schema}
        found["reasoning_effort"] = config.effort
        if self.thinking and self.thinking.type == "disabled":
            found["reasoning_effort"] = "none"
        elif self.thinking:
            found["chat_template_kwargs"] = {"enable_thinking": True, "thinking": True}
        return found


class MessagesRequest(CountRequest):
    """Body of /v1/messages."""

    max_tokens: Annotated[int, Field(ge=1), BeforeValidator(whole_number)]
    temperature: float | None = Field(None, ge=0, le=1)
    top_p: Share | None = None
    top_k: int | None = Field(None, ge=0)
    stop_sequences: Annotated[list[Stop], Field(max_length=MAX_STOPS)] = Field(default_factory=list)
    stream: bool = False

    def as_chat(self) -> Object:
        """Return the body of the chat, whose length is the rest of the context."""
        sampling = {name: getattr(self, name) for name in ("temperature", "top_p", "top_k")}
        given = {name: value for name, value in sampling.items() if value is not None}
        return {**super().as_chat(), **given, "stop": self.stop_sequences}


def _unsupported_thread(thread: Mapping[str, Any]) -> ApiError:
    """Return the refusal of a kept conversation, after which Anthropic's tool runner sends whole conversations."""
    details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return unknown_parameter("thread", thread, details)


def _tool(tool: MessageTool) -> Object:
    function: Object = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _messages_of(message: Message) -> Iterator[Object]:
    """Yield the messages of a chat: one of each result of a tool, and one of the rest."""
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
        return
    if message.role == "system":
        yield {"role": message.role, "content": _text_of(message.content)}
        return
    if message.role == "assistant":
        yield _assistant(message.content)
        return
    parts: list[Object] = []
    for block in message.content:
        if block.get("type") == "tool_result":
            content = block.get("content") or ""
            if not isinstance(content, str | list):
                raise _unknown(content)
            text = content if isinstance(content, str) else _parts(content)
            frame = {"role": "tool", "tool_call_id": block.get("tool_use_id")}
            yield {**frame, "content": text}
        else:
            parts += _parts([block])
    if parts:
        yield {"role": "user", "content": parts}


def _assistant(blocks: Sequence[Mapping[str, Any]]) -> Object:
    texts: list[str] = []
    thoughts: list[str] = []
    message: Object = {"role": "assistant"}
    for block in blocks:
        kind = block.get("type")
        if kind == "text":
            texts.append(_string(block, "text"))
        elif kind == "thinking":
            thoughts.append(_string(block, "thinking"))
        elif kind == "tool_use":
            function = {"name": block.get("name"), "arguments": block.get("input") or {}}
            call = {"id": block.get("id"), "type": "function", "function": function}
            message.setdefault("tool_calls", []).append(call)
        elif isinstance(kind, str) and (kind in _HOSTED or kind.endswith(_HOSTED_RESULT)):
            ignore(f"messages.type={kind}", block)
        elif kind != "redacted_thinking":
            raise _unknown(kind)
    thought = {"reasoning_content": "".join(thoughts)} if thoughts else {}
    return {**message, "content": "".join(texts), **thought}


def _parts(blocks: Sequence[Any]) -> list[Object]:
    """Return blocks of a user's message or a result by their names in a chat; a document is its texts."""
    found: list[Object] = []
    for block in blocks:
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind in ("document", "search_result"):
            found += _texts_of(block)
        elif kind == "tool_reference":  # the tool itself is among the tools
            ignore("messages.type=tool_reference", block)
        else:
            found.append(_part(block))
    return found


def _texts_of(document: Mapping[str, Any]) -> list[Object]:
    """Return the parts of a document with a text, or of a search result: title, context and content."""
    source: Any = document.get("source")
    heads = [document.get(name) for name in ("title", "context")]
    if document.get("type") == "search_result":
        heads, content = [document.get("title"), source], document.get("content")
    elif not isinstance(source, Mapping):
        raise _unknown(source)
    elif source.get("type") == "text":
        content = source.get("data")
    elif source.get("type") == "content":
        content = source.get("content")
    else:
        raise _unreadable(source)
    texts = [{"type": "text", "text": f"{one}\n"} for one in heads if isinstance(one, str) and one]
    if isinstance(content, str):
        return [*texts, {"type": "text", "text": f"{content}\n"}]
    if not isinstance(content, list):
        raise _unknown(content)
    return [*texts, *map(_part, content)]


def _unreadable(source: Mapping[str, Any]) -> ApiError:
    """Return the refusal of a document that is no text, such as a PDF."""
    kind = source.get("media_type", source.get("type"))
    return ApiError(
        400,
        f"A document is {brief(kind)}, which this server does not read; expected one of type text or content. Send its "
        "text, or its pages as images.",
        param="messages",
        code="invalid_value",
    )


def _part(block: Any) -> Object:
    """Return a block of a user's message by its name in a chat."""
    if not isinstance(block, Mapping):
        raise _unknown(block)
    kind = block.get("type")
    if kind == "text":
        return {"type": "text", "text": _string(block, "text")}
    source = block.get("source")
    if kind == "image" and isinstance(source, Mapping):
        url = source.get("url")
        if source.get("type") == "base64":
            url = f"data:{source.get('media_type', 'image/png')};base64,{source.get('data', '')}"
        return {"type": "image_url", "image_url": {"url": url}}
    raise _unknown(kind)


def _text_of(blocks: Sequence[Mapping[str, Any]]) -> str:
    return "".join(_string(block, "text") for block in blocks)


def _string(block: Mapping[str, Any], name: str) -> str:
    if not isinstance(text := block.get(name), str):
        raise _unknown(text)
    return text


def _unknown(value: object) -> ApiError:
    return ApiError(
        400,
        f"A block of a message is {brief(value)}; expected text, image, document, search_result, tool_use, tool_result "
        "or thinking with their fields. Change it, or leave it out.",
        param="messages",
        code="invalid_value",
    )
