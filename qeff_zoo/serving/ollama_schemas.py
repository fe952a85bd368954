# SPDX-License-Identifier: Apache-2.0
"""Bodies of ollama's API, and their conversion to a chat or a completion."""

import json
from collections import deque
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from qeff_zoo.serving.errors import unknown_parameter
from qeff_zoo.serving.objects import Object
from qeff_zoo.serving.schemas import MAX_MESSAGES, MAX_TOOLS, RequestBody, Texts

_SAME = ("temperature", "top_k", "top_p", "min_p", "seed", "stop", "presence_penalty", "frequency_penalty")  # fmt: skip
#: Parameters of a chat, by ollama's names of options.
_OPTIONS = dict(zip(_SAME, _SAME, strict=True)) | {
    "repeat_penalty": "repetition_penalty",
    "num_predict": "max_completion_tokens",
}
#: Options of ollama's own runner, and of samplers that are off.
_IGNORED = frozenset(
    {
        "f16_kv", "logits_all", "low_vram", "main_gpu", "mirostat_eta", "mirostat_tau", "num_batch", "num_ctx",
        "num_gpu", "num_keep", "num_thread", "numa", "penalize_newline", "repeat_last_n", "use_mlock", "use_mmap",
        "vocab_only",
    }
)  # fmt: skip
#: Number of tokens after a raw prompt without `num_predict`.
_RAW_TOKENS = 128
_NEUTRAL = {"mirostat": 0, "tfs_z": 1, "typical_p": 1}


class OllamaMessage(BaseModel):
    """Message of a chat; images are in base64."""

    model_config = ConfigDict(strict=True, extra="forbid")

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[dict[str, dict[str, Any]]] | None = None
    tool_name: str | None = None

    def as_chat(self, waiting: deque[str]) -> Object:
        """Return the message of a chat.

        Args:
            waiting: Identifiers of calls without results, which ollama's API has not: results are in their order.
        """
        found: Object = {"role": self.role, "content": self.content or ""}
        if self.images:
            shown = [{"url": f"data:image/*;base64,{one}"} for one in self.images]
            parts = [{"type": "image_url", "image_url": one} for one in shown]
            found["content"] = [*parts, {"type": "text", "text": found["content"]}]
        if self.thinking:
            found["reasoning_content"] = self.thinking
        if self.tool_calls:
            names = [f"call{number:05}" for number in range(len(self.tool_calls))]
            waiting.extend(names)
            found["tool_calls"] = [
                {"id": name, "type": "function", "function": _function(call.get("function", {}))}
                for name, call in zip(names, self.tool_calls, strict=True)
            ]
        if self.role == "tool":
            found |= {"tool_call_id": waiting.popleft() if waiting else "", "name": self.tool_name}
        return found


def _function(function: Object) -> Object:
    return {**function, "arguments": json.dumps(function.get("arguments", {}), ensure_ascii=False)}


class Generating(RequestBody):
    """Fields of chats and generated texts."""

    stream: bool = True
    options: dict[str, Any] = Field(default_factory=dict)
    format: Literal["", "json"] | dict[str, Any] = ""
    think: bool | Literal["low", "medium", "high"] | None = None
    keep_alive: float | str | None = None  # the server's --idle-timeout decides

    def sampling(self) -> Object:
        """Return the parameters of a chat that the options and the format set."""
        found: Object = {"model": self.model}
        for name, value in self.options.items():
            if name in _OPTIONS:
                found[_OPTIONS[name]] = value
            elif name not in _IGNORED and value != _NEUTRAL.get(name):
                raise unknown_parameter(name, value)
        if found.get("max_completion_tokens") in (-1, -2):  # to the end of the context
            del found["max_completion_tokens"]
        if isinstance(self.format, dict):
            schema = {"name": "", "schema": self.format}
            found["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif self.format:
            found["response_format"] = {"type": "json_object"}
        return found

    def chat_of(self, messages: list[OllamaMessage]) -> Object:
        """Return the body of a chat of messages."""
        waiting = deque[str]()
        found = {**self.sampling(), "messages": [one.as_chat(waiting) for one in messages]}
        if self.think is True:
            found["chat_template_kwargs"] = {"enable_thinking": True, "thinking": True}
        elif self.think is not None:
            found["reasoning_effort"] = self.think or "none"
        return found


class ChatBody(Generating):
    """Body of /api/chat; without messages it loads the model."""

    messages: Annotated[list[OllamaMessage], Field(max_length=MAX_MESSAGES)] = Field(
        default_factory=list
    )
    tools: Annotated[list[dict[str, Any]], Field(max_length=MAX_TOOLS)] = Field(
        default_factory=list
    )

    def as_chat(self) -> Object:
        """Return the body of the chat."""
        return {**self.chat_of(self.messages), "tools": self.tools}


class GenerateBody(Generating):
    """Body of /api/generate; without a prompt it loads the model."""

    prompt: str = ""
    system: str = ""
    images: list[str] = Field(default_factory=list)
    raw: bool = False  # without the chat template
    suffix: Literal[""] = ""
    template: Literal[""] = ""
    context: Annotated[list[int], Field(max_length=0)] = Field(default_factory=list)

    def as_chat(self) -> Object:
        """Return the body of the chat."""
        system = [OllamaMessage(role="system", content=self.system)] if self.system else []
        return self.chat_of(
            [*system, OllamaMessage(role="user", content=self.prompt, images=self.images)]
        )

    def as_completion(self) -> Object:
        """Return the body of the completion."""
        found = self.sampling()
        limit = found.pop("max_completion_tokens", _RAW_TOKENS)
        return {**found, "prompt": self.prompt, "max_tokens": limit}


class EmbedBody(RequestBody):
    """Body of /api/embed."""

    input: Texts
    truncate: bool = True
    dimensions: int | None = Field(None, ge=1)
    options: dict[str, Any] = Field(default_factory=dict)
    keep_alive: float | str | None = None


class ShowBody(RequestBody):
    """Body of /api/show."""

    verbose: bool = False
