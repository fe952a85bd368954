# SPDX-License-Identifier: Apache-2.0
"""Bodies of ollama's API, and the chat, completion or embedding of OpenAI's API that each is."""

from collections.abc import Iterator
from itertools import count
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from qeff_zoo.serving.errors import unknown_parameter
from qeff_zoo.serving.objects import Object
from qeff_zoo.serving.schemas import MAX_MESSAGES, MAX_TOOLS, RequestBody, Texts

_SAME = ("temperature", "top_k", "top_p", "min_p", "seed", "stop", "presence_penalty", "frequency_penalty")  # fmt: skip
#: Parameters of OpenAI's API by ollama's options; None for options of ollama's runner, which change no output here.
_OPTIONS = {name: name for name in _SAME} | {
    "repeat_penalty": "repetition_penalty",
    "num_predict": "max_completion_tokens",
    **dict.fromkeys(
        (
            "f16_kv", "logits_all", "low_vram", "main_gpu", "mirostat_eta", "mirostat_tau", "num_batch", "num_ctx",
            "num_gpu", "num_keep", "num_thread", "numa", "penalize_newline", "repeat_last_n", "use_mlock", "use_mmap",
            "vocab_only",
        )
    ),
}  # fmt: skip
_NEUTRAL = {"mirostat": 0, "tfs_z": 1, "typical_p": 1}
#: Number of tokens after a raw prompt without `num_predict`.
_RAW_TOKENS = 128


class OllamaMessage(BaseModel):
    """Message of a chat; images are in base64."""

    model_config = ConfigDict(strict=True, extra="forbid")

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_name: str | None = None

    def as_chat(self, calls: Iterator[int], results: Iterator[int]) -> Object:
        """Return the message of a chat.

        Args:
            calls: Numbers of calls, which have no identifiers in ollama's API.
            results: Numbers of results, which are in the order of their calls.
        """
        found: Object = {"role": self.role, "content": self.content}
        if self.images:
            urls = [f"data:image/*;base64,{one}" for one in self.images]
            shown = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
            found["content"] = [*shown, {"type": "text", "text": self.content or ""}]
        if self.thinking:
            found["reasoning_content"] = self.thinking
        if self.tool_calls:
            found["tool_calls"] = [
                {"type": "function", **call, "id": f"call{next(calls):05}"}
                for call in self.tool_calls
            ]
        if self.role == "tool":
            found |= {"tool_call_id": f"call{next(results):05}", "name": self.tool_name}
        return found


class GenerationBody(RequestBody):
    """Fields of chats and generated texts."""

    stream: bool = True
    options: dict[str, Any] = Field(default_factory=dict)
    format: Literal["", "json"] | dict[str, Any] = ""
    think: bool | Literal["low", "medium", "high"] | None = None
    keep_alive: float | str | None = None  # the server's --idle-timeout decides

    def parameters(self) -> Object:
        """Return the parameters of OpenAI's API that the options and the format set."""
        found: Object = {"model": self.model}
        for name, value in self.options.items():
            if name not in _OPTIONS and value != _NEUTRAL.get(name):
                raise unknown_parameter(name, value)
            if (parameter := _OPTIONS.get(name)) is not None:
                found[parameter] = value
        if found.get("max_completion_tokens") in (-1, -2):  # to the end of the context
            del found["max_completion_tokens"]
        if isinstance(self.format, dict):
            schema = {"name": "", "schema": self.format}
            found["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif self.format:
            found["response_format"] = {"type": "json_object"}
        return found


class ChatBody(GenerationBody):
    """Body of /api/chat; without messages it loads the model."""

    messages: list[OllamaMessage] = Field([], max_length=MAX_MESSAGES)
    tools: list[dict[str, Any]] = Field([], max_length=MAX_TOOLS)


class GenerateBody(GenerationBody):
    """Body of /api/generate; without a prompt it loads the model."""

    prompt: str = ""
    system: str = ""
    images: list[str] = Field([])
    raw: bool = False  # without the chat template
    suffix: Literal[""] = ""
    template: Literal[""] = ""
    context: list[int] = Field([], max_length=0)

    @property
    def messages(self) -> list[OllamaMessage]:
        """Messages of the chat; none without a prompt."""
        system = [OllamaMessage(role="system", content=self.system)] if self.system else []
        message = OllamaMessage(role="user", content=self.prompt, images=self.images)
        return [*system, message] if self.prompt or self.images else []


def chat_of(body: ChatBody | GenerateBody) -> Object:
    """Return the body of the chat."""
    calls, results = count(), count()
    found = body.parameters()
    found["messages"] = [one.as_chat(calls, results) for one in body.messages]
    found["tools"] = body.tools if isinstance(body, ChatBody) else []
    if body.think is True:
        found["chat_template_kwargs"] = {"enable_thinking": True, "thinking": True}
    elif body.think is not None:
        found["reasoning_effort"] = body.think or "none"
    return found


def completion_of(body: GenerateBody) -> Object:
    """Return the body of the completion of a raw prompt."""
    found = body.parameters()
    limit = found.pop("max_completion_tokens", _RAW_TOKENS)
    return {**found, "prompt": body.prompt, "max_tokens": limit}


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
