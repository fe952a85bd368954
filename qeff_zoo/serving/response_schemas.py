# SPDX-License-Identifier: Apache-2.0
"""Body of /v1/responses, and its conversion to a chat."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from qeff_zoo.serving.errors import ApiError
from qeff_zoo.serving.objects import Object
from qeff_zoo.serving.schemas import (
    MAX_MESSAGES,
    MAX_TOOLS,
    NamedFunction,
    RequestBody,
    Share,
)


class ResponseFunction(BaseModel):
    """Function that a model may call."""

    model_config = ConfigDict(strict=True, extra="forbid")

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedResponseFunction(NamedFunction):
    """Choice of a function that must be called."""

    type: Literal["function"]


class TextFormat(BaseModel):
    """Form of a text: free, any JSON object, or JSON of a schema."""

    model_config = ConfigDict(strict=True, extra="forbid")

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    description: str | None = None
    content: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextOptions(BaseModel):
    """Options of a text."""

    model_config = ConfigDict(strict=True, extra="forbid")

    format: TextFormat = Field(default_factory=TextFormat)
    verbosity: str | None = None  # only for OpenAI's models


class ReasoningOptions(BaseModel):
    """Options of reasoning."""

    model_config = ConfigDict(strict=True, extra="forbid")

    effort: Annotated[str, Field(max_length=64)] | None = None
    summary: str | None = None  # the reasoning itself is returned
    generate_summary: str | None = None


class ResponsesRequest(RequestBody):
    """Body of /v1/responses. The last group is not in OpenAI's API."""

    input: str | Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = None
    previous_response_id: Annotated[str, Field(max_length=128)] | None = None
    store: bool = True
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: Share | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    text: TextOptions = Field(default_factory=TextOptions)
    tools: Annotated[list[ResponseFunction], Field(max_length=MAX_TOOLS)] = Field(
        default_factory=list
    )
    tool_choice: Literal["none", "auto", "required"] | NamedResponseFunction = "auto"
    parallel_tool_calls: bool = True
    reasoning: ReasoningOptions | None = None
    include: list[Literal["reasoning.encrypted_content", "message.output_text.logprobs"]] = Field(
        default_factory=list
    )  # reasoning is returned as text
    top_logprobs: int = Field(0, ge=0, le=20)
    truncation: Literal["disabled"] = "disabled"
    background: bool = False
    metadata: dict[str, str] = Field(default_factory=dict)

    top_k: int | None = Field(None, ge=-1)
    min_p: Share | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    @property
    def effort(self) -> str | None:
        """Effort of reasoning; None for the model's own."""
        return self.reasoning.effort if self.reasoning else None

    @property
    def has_logprobs(self) -> bool:
        """Whether the text has log-probabilities."""
        return self.top_logprobs > 0 or "message.output_text.logprobs" in self.include

    @property
    def shown_choice(self) -> str | Object:
        """Choice of a function, as in the object of the response."""
        chosen = self.tool_choice
        return chosen if isinstance(chosen, str) else chosen.model_dump()

    def check_background(self) -> None:
        """Refuse a response in the background that is streamed, or not kept.

        Raises:
            ApiError: It is.
        """
        problem = None
        if self.background and self.stream:
            problem = "Both 'background' and 'stream' are true; expected one"
        elif self.background and not self.store:
            problem = "Parameter background can only be used when `store` is true; expected both, or neither"
        if problem:
            raise ApiError(400, f"{problem}. Change one.", param="background", code="invalid_value")

    def as_chat(self, messages: list[Object]) -> Object:
        """Return the body of the chat.

        Args:
            messages: Messages of earlier responses and of the input.
        """
        if self.instructions is not None:  # those of earlier responses no longer apply
            messages = [{"role": "system", "content": self.instructions}, *messages]
        names = ("temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty")
        sampling = {name: getattr(self, name) for name in names}
        form = self.text.format
        response_format: Object = {"type": form.type}
        if form.type == "json_schema":
            schema = {"name": form.name or "", "schema": form.content or {}, "strict": form.strict}
            response_format["json_schema"] = schema
        chosen = self.tool_choice
        if not isinstance(chosen, str):
            chosen = {"type": "function", "function": {"name": chosen.name}}  # type: ignore[assignment]
        return {
            "model": self.model,
            "messages": messages,
            **{name: value for name, value in sampling.items() if value is not None},
            "max_completion_tokens": self.max_output_tokens,
            **({"logprobs": True, "top_logprobs": self.top_logprobs} if self.has_logprobs else {}),
            "response_format": response_format,
            "tools": [
                {"type": "function", "function": one.model_dump(exclude={"type"})}
                for one in self.tools
            ],
            "tool_choice": chosen,
            "parallel_tool_calls": self.parallel_tool_calls,
            "reasoning_effort": self.effort,
            "chat_template_kwargs": self.chat_template_kwargs,
        }
