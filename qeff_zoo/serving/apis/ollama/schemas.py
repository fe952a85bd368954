# SPDX-License-Identifier: Apache-2.0
"""Bodies of ollama's API, and the chat, completion or embedding of OpenAI's API that each is."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from qeff_zoo.serving.answers.objects import Object
from qeff_zoo.serving.errors import unknown_parameter
from qeff_zoo.serving.requests.schemas import MAX_MESSAGES, MAX_TOOLS, RequestBody, Texts

_SAME = (
    *("temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "stop"),
    *("presence_penalty", "frequency_penalty", "mirostat", "mirostat_eta", "mirostat_tau"),
)
#: Parameters of OpenAI's API by ollama's options; None for options of ollama's runner, which change no output here.
_OPTIONS = {name: name for name in _SAME} | {
    "repeat_penalty": "repetition_penalty",
    "num_predict": "max_completion_tokens",
    **dict.fromkeys(
        (
            "f16_kv", "logits_all", "low_vram", "main_gpu", "num_batch", "num_ctx",
            "num_gpu", "num_keep", "num_thread", "numa", "penalize_newline", "repeat_last_n", "use_mlock", "use_mmap",
            "vocab_only",
        )
    ),
}  # fmt: skip
_NEUTRAL = {"tfs_z": 1}
#: Options by the names of parameters that clients of other APIs, such as the AI SDK's, send beside `options`.
_BESIDE = {name: name for name in _SAME} | {
    "max_output_tokens": "num_predict",
    "max_tokens": "num_predict",
}
#: Number of tokens after a raw prompt without `num_predict`.
_RAW_TOKENS = 128


class OllamaMessage(BaseModel):
    """Message of a chat; images are in base64."""

    model_config = ConfigDict(strict=True, extra="forbid")

    role: str
    # Some clients send an empty list with images alone.
    content: Annotated[str | None, BeforeValidator(lambda content: content or None)] = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    tool_name: str | None = None

    def as_chat(self) -> Object:
        """Return the message of a chat, without identifiers of calls."""
        found: Object = {"role": self.role, "content": self.content}
        if self.images:
            urls = [f"data:image/*;base64,{one}" for one in self.images]
            shown = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
            found["content"] = [*shown, {"type": "text", "text": self.content or ""}]
        if self.thinking:
            found["reasoning_content"] = self.thinking
        if self.tool_calls:
            found["tool_calls"] = [{"type": "function", **call} for call in self.tool_calls]
        return found


class GenerationBody(RequestBody):
    """Fields of chats and generated texts."""

    stream: bool = True
    options: dict[str, Any] = Field(default_factory=dict)
    format: Literal["", "json"] | dict[str, Any] = ""
    think: bool | Literal["low", "medium", "high"] | None = None
    keep_alive: float | str | None = None  # the server's --idle-timeout decides
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20)
    # Hints about prompts beyond the context, which are refused here.
    truncate: bool = True
    shift: bool = True

    @model_validator(mode="before")
    @classmethod
    def _options_beside(cls, values: Any) -> Any:
        """Move parameters into the options, which precede them."""
        if not isinstance(values, dict):
            return values
        beside = {name: one for name, one in values.items() if name in _BESIDE and one is not None}
        options = values.get("options") or {}
        if not beside or not isinstance(options, dict):
            return values
        named = {_BESIDE[name]: value for name, value in beside.items()}
        kept = {name: value for name, value in values.items() if name not in _BESIDE}
        return {**kept, "options": {**named, **options}}

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
    tool_choice: str | dict[str, Any] = "auto"  # OpenAI's, of a chat or a response


class GenerateBody(GenerationBody):
    """Body of /api/generate; without a prompt it loads the model."""

    prompt: str = ""
    system: str = ""
    images: list[str] = Field([])
    raw: bool = False  # without the chat template
    suffix: str = ""  # of the prompt, which no chat template renders then
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
    found = body.parameters()
    found["messages"] = _chat_messages(body.messages)
    if isinstance(body, ChatBody):
        found |= {"tools": body.tools, "tool_choice": _choice(body.tool_choice)}
    if body.logprobs:
        found |= {"logprobs": True, "top_logprobs": body.top_logprobs}
    if body.think is True:
        found["chat_template_kwargs"] = {"enable_thinking": True, "thinking": True}
    elif body.think is not None:
        found["reasoning_effort"] = body.think or "none"
    return found


def _chat_messages(messages: Sequence[OllamaMessage]) -> list[Object]:
    """Return the messages of a chat; calls and results without identifiers get those of their order."""
    found = [message.as_chat() for message in messages]
    calls = [call for message in found for call in message.get("tool_calls", ())]
    for place, call in enumerate(calls):
        call["id"] = str(call.get("id") or f"call{place:05}")
    ids = [call["id"] for call in calls]
    results = [place for place, message in enumerate(messages) if message.role == "tool"]
    for number, place in enumerate(results):
        in_order = ids[number] if number < len(ids) else f"call{number:05}"
        found[place]["tool_call_id"] = name = messages[place].tool_call_id or in_order
        function = calls[ids.index(name)].get("function") if name in ids else None
        called = function.get("name") if isinstance(function, dict) else None
        found[place]["name"] = messages[place].tool_name or called
    return found


def _choice(given: str | Object) -> str | Object:
    """Return the choice of a function as in a chat."""
    if isinstance(given, dict) and given.get("type") == "function" and "name" in given:
        return {"type": "function", "function": {"name": given["name"]}}
    return given


def completion_of(body: GenerateBody) -> Object:
    """Return the body of the completion of a raw prompt."""
    found = body.parameters()
    limit = found.pop("max_completion_tokens", _RAW_TOKENS)
    found["logprobs"] = body.top_logprobs if body.logprobs else None
    found["suffix"] = body.suffix
    return {**found, "prompt": body.prompt, "max_tokens": limit}


class EmbedBody(RequestBody):
    """Body of /api/embed."""

    input: Texts
    truncate: bool = True
    dimensions: int | None = Field(None, ge=1)
    options: dict[str, Any] = Field(default_factory=dict)
    keep_alive: float | str | None = None


class EmbeddingsBody(RequestBody):
    """Body of /api/embeddings, the former endpoint for one text; without a prompt it loads the model."""

    prompt: str = ""
    options: dict[str, Any] = Field(default_factory=dict)
    keep_alive: float | str | None = None


class ShowBody(RequestBody):
    """Body of /api/show."""

    verbose: bool = False

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, values: Any) -> Any:
        """Return the body with `model` for its former name."""
        if isinstance(values, dict) and (name := values.get("name")) is not None:
            kept = {other: value for other, value in values.items() if other != "name"}
            return {**kept, "model": kept.get("model") or name}
        return values
