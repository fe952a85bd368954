# SPDX-License-Identifier: Apache-2.0
"""Body of /v1/responses, and its conversion to a chat."""

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from qeff_zoo.serving.answers.objects import Object
from qeff_zoo.serving.apis.openai.responses.tools import (
    ChosenTool,
    Origin,
    ResponseTools,
    origins_of,
)
from qeff_zoo.serving.errors import ApiError
from qeff_zoo.serving.requests.allowed_tools import with_allowed_tools
from qeff_zoo.serving.requests.leniency import ignore
from qeff_zoo.serving.requests.schemas import MAX_MESSAGES, Limit, RequestBody, Share

#: What a response may include: reasoning and log-probabilities. The others are of tools that the server does not run.
_Include = Literal[
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
    "message.input_image.image_url",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "web_search_call.action.sources",
    "web_search_call.results",
]
_Id = Annotated[str, Field(max_length=128)]


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


class ConversationId(BaseModel):
    """Conversation of a response."""

    model_config = ConfigDict(strict=True, extra="forbid")

    id: _Id


class ResponsesRequest(RequestBody):
    """Body of /v1/responses. The last group is not in OpenAI's API."""

    input: str | Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = None
    previous_response_id: _Id | None = None
    conversation: _Id | ConversationId | None = None
    store: bool = True
    max_output_tokens: Limit = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: Share | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    text: TextOptions = Field(default_factory=TextOptions)
    tools: ResponseTools = Field(default_factory=list)
    tool_choice: Literal["none", "auto", "required"] | ChosenTool = "auto"
    parallel_tool_calls: bool = True
    reasoning: ReasoningOptions | None = None
    include: list[_Include] = Field(default_factory=list)  # reasoning is returned as text
    top_logprobs: int = Field(0, ge=0, le=20)
    truncation: Literal["disabled"] = "disabled"
    background: bool = False
    metadata: dict[str, str] = Field(default_factory=dict, max_length=1024)

    top_k: int | None = Field(None, ge=-1)
    min_p: Share | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _allowed(cls, values: Any) -> Any:
        return with_allowed_tools(values)

    @field_validator("truncation", mode="before")
    @classmethod
    def _whole(cls, value: Any) -> Any:
        """Ignore `auto`, which leaves out the middle of a conversation that is too long; here it is refused."""
        if value != "auto":
            return value
        ignore("truncation", value)
        return "disabled"

    @cached_property
    def origins(self) -> dict[str, Origin]:
        """Tools by the names of their functions in the chat.

        Raises:
            ApiError: Two have the same name.
        """
        return origins_of(self.tools)

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
        return chosen if isinstance(chosen, str) else chosen.model_dump(exclude_none=True)

    @property
    def conversation_id(self) -> str | None:
        """Id of the conversation; None for none."""
        named = self.conversation
        return named.id if isinstance(named, ConversationId) else named

    def check_storage(self) -> None:
        """Refuse a response in the background that is not kept, and one that continues two conversations.

        Raises:
            ApiError: It is one of those.
        """
        if self.background and not self.store:
            problem = "Parameter background can only be used when `store` is true; expected both, or neither"
            raise ApiError(400, f"{problem}. Change one.", param="background", code="invalid_value")
        if self.conversation is not None and self.previous_response_id is not None:
            problem = "Both 'conversation' and 'previous_response_id' are set; expected one"
            raise ApiError(
                400, f"{problem}. Leave one out.", param="conversation", code="invalid_value"
            )

    def _chosen(self, chosen: ChosenTool) -> str:
        """Return the name of a chosen tool in the chat, whose namespace may be left out."""
        for name, origin in self.origins.items():
            is_there = chosen.namespace in (None, origin.namespace)
            if is_there and (chosen.type, chosen.name) == (origin.tool.type, origin.tool.name):
                return name
        return chosen.name

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
            name = self._chosen(chosen)
            chosen = {"type": "function", "function": {"name": name}}  # type: ignore[assignment]
        return {
            "model": self.model,
            "messages": messages,
            **{name: value for name, value in sampling.items() if value is not None},
            "max_completion_tokens": self.max_output_tokens,
            **({"logprobs": True, "top_logprobs": self.top_logprobs} if self.has_logprobs else {}),
            "response_format": response_format,
            "tools": [
                {"type": "function", "function": {**one.tool.as_function(), "name": name}}
                for name, one in self.origins.items()
            ],
            "tool_choice": chosen,
            "parallel_tool_calls": self.parallel_tool_calls,
            "reasoning_effort": self.effort,
            "chat_template_kwargs": self.chat_template_kwargs,
        }
