# SPDX-License-Identifier: Apache-2.0
"""Request bodies: the supported parameters of OpenAI's API, with OpenAI's ranges and defaults."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from qeff_zoo.runtime import Dry, Grammar, Mirostat, Xtc
from qeff_zoo.serving.answers.custom_tools import as_function_call, function_of
from qeff_zoo.serving.errors import invalid, unknown_parameter
from qeff_zoo.serving.requests.allowed_tools import with_allowed_tools
from qeff_zoo.serving.requests.leniency import HARMLESS, callable_tools, ignore, without_hints

#: One text, several, or some of them as token ids. Validation of a long list stops at its first error, to save memory.
Texts: TypeAlias = (
    str
    | Annotated[list[str], Field(fail_fast=True)]
    | Annotated[list[int], Field(fail_fast=True)]
    | Annotated[list[str | Annotated[list[int], Field(fail_fast=True)]], Field(fail_fast=True)]
)
#: Documents at the beginning of a prompt, as texts or token ids; or documents for a chat template.
Documents: TypeAlias = (
    Annotated[list[str], Field(fail_fast=True, max_length=1024)]
    | Annotated[list[dict[str, Any]], Field(fail_fast=True, max_length=1024)]
    | Annotated[list[Annotated[list[int], Field(fail_fast=True)]], Field(max_length=1024)]
)
Penalty: TypeAlias = Annotated[float, Field(ge=-2, le=2)]
Stop: TypeAlias = Annotated[str, Field(min_length=1, max_length=1024)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
#: Maximum number of tokens in parameters, beyond any context.
MAX_TOKENS = 1 << 31
#: Maximum number of stop strings; each is looked for in every new text.
MAX_STOPS = 64
TokenId: TypeAlias = Annotated[int, Field(ge=0, lt=MAX_TOKENS)]
#: Token id as a key of a JSON object.
TokenKey: TypeAlias = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
#: Number of tokens to which a text is truncated, as in vLLM; -1 for as many as the model takes.
Truncation: TypeAlias = Annotated[int, Field(ge=1, le=MAX_TOKENS)] | Literal[-1] | None
_FEW = Field(max_length=1024)


def _short(texts: Sequence[str], most: int) -> Sequence[str]:
    """Return texts that have at most a number of characters together."""
    if (count := sum(map(len, texts))) > most:
        raise ValueError(f"at most {most:,} characters are expected in all, not {count:,}")
    return texts


def whole_number(value: Any) -> Any:
    """Return an integer for a whole number such as 16.0; anything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _limit(value: Any) -> Any:
    """Return a number of tokens: None for -1, which is no limit in llama.cpp and LM Studio; an integer for 16.0."""
    value = whole_number(value)
    return None if value == -1 else value


def _biases(value: Any) -> Any:
    """Return biases by token for pairs, as llama-server has them; false there is none of the token."""
    pairs = value if isinstance(value, list) else None
    if pairs is None or not all(isinstance(one, list) and len(one) == 2 for one in pairs):
        return value
    return {str(token): -100.0 if bias is False else bias for token, bias in pairs}


#: Maximum number of generated tokens; None for the rest of the context.
Limit: TypeAlias = Annotated[Annotated[int, Field(ge=1)] | None, BeforeValidator(_limit)]

#: Parameters that identify the user or the accounting: accepted and ignored.
_IGNORED = frozenset(
    {
        "diagnostics", "metadata", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
        "request_id", "safety_identifier", "service_tier", "store", "user", "user_profile_id", "workspace_id",
    }
)  # fmt: skip
#: Names of parameters in the APIs of llama-server and Mistral.
_RENAMED = MappingProxyType(
    {
        "n_predict": "max_tokens",
        "random_seed": "seed",
        "repeat_penalty": "repetition_penalty",
        "typ_p": "typical_p",
    }
)
#: Anthropic's edit of a conversation that keeps all reasoning, as its coding agents send it.
_KEEPS_ALL = tuple(
    {"edits": [{"type": "clear_thinking_20251015", "keep": keep}]}
    for keep in ("all", {"type": "all"})
)
#: Unsupported parameters, and the values that leave them off: samplers of vLLM, llama.cpp and transformers first.
_NEUTRAL: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "add_special_tokens": (False,),
        "background": (False,),
        "cache_prompt": (True,),
        "detokenize": (True,),
        "diversity_penalty": (0,),
        "dynatemp_range": (0,),
        "early_stopping": (False,),
        "encoding_format": ("float",),
        "epsilon_cutoff": (0,),
        "eta_cutoff": (0,),
        "length_penalty": (1.0,),
        "lora": ([],),
        "min_keep": (0,),
        "n_predict": (-1,),
        "n_probs": (0,),
        "no_repeat_ngram_size": (0,),
        "num_beams": (1,),
        "options": ({},),
        "parse_tool_calls": (True,),
        "penalize_nl": (False,),
        "plugins": ([],),
        "post_sampling_probs": (False,),
        "reasoning_format": ("auto", "deepseek"),
        "response_fields": ([],),
        "return_tokens": (False,),
        "safe_prompt": (False,),
        "separate_reasoning": (True,),
        "smoothing_factor": (0,),
        "system_prompt": ("",),
        "t_max_predict_ms": (0, -1),
        "t_max_prompt_ms": (0, -1),
        "tfs_z": (1.0,),
        "thinking_forced_open": (False,),
        "top_a": (0,),
        "top_n_sigma": (-1, 0),
        "transforms": ([],),
        "priority": (0,),
        "skip_special_tokens": (True,),
        "spaces_between_special_tokens": (True,),
        "use_activation": (True,),
        "use_beam_search": (False,),
        "best_of": (1,),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "suffix": ("",),
        "billing_policy": (
            {"type": "billing_policy"},
            {"type": "billing_policy", "bill_to": "self"},
        ),
        "context_management": ([], {}, {"edits": []}, *_KEEPS_ALL),
        "extra_body": ({},),
        "fallbacks": ([], "default"),
        "format": ("",),
        "image_data": ([],),
        "mcp_servers": ([],),
    }
)


_INT64 = 1 << 63
#: Maximum number of messages of a chat. A template may take time quadratic in their number.
MAX_MESSAGES = 8192
#: Maximum number of different roles of a chat, since a template's forms are probed for each of them.
_MAX_ROLES = 64
#: Maximum number of functions of a chat.
MAX_TOOLS = 1024
#: Maximum number of characters of a text to tokenize.
MAX_TEXT = 1 << 20
#: Maximum number of characters of a regular expression or a grammar.
MAX_FORM = 65536
#: Maximum number of characters of all texts to choose from.
_MAX_CHOICES = 262_144


class RequestBody(BaseModel):
    """Body of a request. Null means absent; an unsupported parameter that would change the result is refused."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    model: str = ""  # the server's model

    @model_validator(mode="before")
    @classmethod
    def _known(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        kept = {}
        for given, value in values.items():
            is_neutral = given in _IGNORED or value in _NEUTRAL.get(given, ())
            name = _RENAMED.get(given, given)
            is_free = name in cls.model_fields and values.get(name) is None
            is_used = given in cls.model_fields or is_free
            if value is None or (is_neutral and not is_used):
                continue
            if name not in cls.model_fields:
                if given not in HARMLESS:
                    raise unknown_parameter(given, value)
                ignore(given, value)
                continue
            kept[name] = value
        return kept


class StreamOptions(BaseModel):
    """Options of a stream."""

    model_config = ConfigDict(strict=True, extra="forbid")

    include_usage: bool = False
    continuous_usage_stats: bool = False  # as in vLLM: every chunk has the usage so far
    include_obfuscation: bool = False  # padding against eavesdroppers; there is none


class NamedSchema(BaseModel):
    """A named JSON Schema."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: str = ""
    description: str | None = None
    content: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None  # always strict


class ResponseFormat(BaseModel):
    """Structured output, as in OpenAI's API; a `json_object` has a schema in llama-server's, a `value` in TGI's."""

    model_config = ConfigDict(strict=True, extra="forbid")

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    content: dict[str, Any] | None = Field(
        None, validation_alias=AliasChoices("schema", "value"), serialization_alias="schema"
    )

    @model_validator(mode="after")
    def _whole(self) -> "ResponseFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema and type 'json_schema' come together")
        if self.type != "json_object" and self.content is not None:
            raise ValueError("schema comes with type 'json_object'")
        return self

    @property
    def form(self) -> partial[Grammar] | None:
        """Function that returns the grammar of the structured output; None for free text."""
        if self.type == "text":
            return None
        return partial(Grammar.json, self.json_schema.content if self.json_schema else self.content)


class StructuredOutputs(BaseModel):
    """Structured output, as in vLLM's API: exactly one of these."""

    model_config = ConfigDict(strict=True, extra="forbid")

    schema_: dict[str, Any] | None = Field(None, alias="json")
    json_object: Literal[True] | None = None
    regex: Annotated[str, Field(max_length=MAX_FORM)] | None = None
    choice: (
        Annotated[
            list[str],
            Field(min_length=1, max_length=4096),
            AfterValidator(partial(_short, most=_MAX_CHOICES)),
        ]
        | None
    ) = None
    grammar_: Annotated[str, Field(max_length=MAX_FORM)] | None = Field(None, alias="grammar")

    @model_validator(mode="after")
    def _one(self) -> "StructuredOutputs":
        if len(self.model_fields_set) != 1:
            raise ValueError("one of json, json_object, regex, choice and grammar is expected")
        return self

    @property
    def form(self) -> partial[Grammar]:
        """Function that returns the grammar of the structured output."""
        if self.regex is not None:
            return partial(Grammar.regex, self.regex)
        if self.choice is not None:
            return partial(Grammar.choice, self.choice)
        if self.grammar_ is not None:
            return partial(Grammar.context_free, self.grammar_)
        return partial(Grammar.json, self.schema_)


class _Generating(RequestBody):
    """Fields of chats and completions. vLLM has the group after OpenAI's, llama-server the last one."""

    n: int = Field(1, ge=1, le=128)
    seed: int | None = Field(None, ge=-_INT64, lt=_INT64)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: Share = 1.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    stop: Annotated[
        Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)],
        BeforeValidator(lambda given: given or []),
    ] = []
    stream: bool = False
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None

    top_k: int = Field(0, ge=-1)  # -1 and 0 for all tokens
    min_p: Share = 0.0
    repetition_penalty: float = Field(1.0, ge=0.01, le=100)
    ignore_eos: bool = False
    logit_bias: Annotated[
        dict[TokenKey, Annotated[float, Field(ge=-100, le=100)]], _FEW, BeforeValidator(_biases)
    ] = {}
    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1, fail_fast=True)] | None = None
    bad_words: Annotated[list[Stop], _FEW, AfterValidator(partial(_short, most=MAX_FORM))] = []
    stop_token_ids: Annotated[list[TokenId], _FEW] = []
    include_stop_str_in_output: bool = False
    min_tokens: int = Field(0, ge=0, le=MAX_TOKENS)
    prompt_logprobs: int | None = Field(None, ge=0, le=20)
    return_token_ids: bool = False
    truncate_prompt_tokens: Truncation = None
    truncation_side: Literal["left", "right"] = "left"
    structured_outputs: StructuredOutputs | None = None
    documents: Documents = []
    return_tokens_as_token_ids: bool = False

    grammar: Annotated[str, Field(max_length=MAX_FORM)] = ""
    json_schema: dict[str, Any] | None = None
    typical_p: float = Field(1.0, gt=0, le=1)
    xtc_probability: Share = 0.0
    xtc_threshold: Share = 0.1
    dry_multiplier: float = Field(0.0, ge=0, le=100)
    dry_base: float = Field(1.75, ge=1.1, le=100)
    dry_allowed_length: int = Field(2, ge=1, le=MAX_TOKENS)
    dry_penalty_last_n: int = Field(-1, ge=-1, le=MAX_TOKENS)
    dry_sequence_breakers: Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    mirostat: Literal[0, 1, 2] = 0
    mirostat_tau: float = Field(5.0, ge=0, le=100)
    mirostat_eta: Share = 0.1

    @property
    def llama_samplers(self) -> dict[str, Any]:
        """Sampling parameters of llama-server's API that the request has."""
        found: dict[str, Any] = {}
        if self.xtc_probability:
            found["xtc"] = Xtc(probability=self.xtc_probability, threshold=self.xtc_threshold)
        if self.mirostat:
            found["mirostat"] = Mirostat(
                version=self.mirostat, tau=self.mirostat_tau, eta=self.mirostat_eta
            )
        if self.dry_multiplier:
            breakers = self.dry_sequence_breakers
            changed: dict[str, Any] = (
                {} if breakers is None else {"sequence_breakers": tuple(breakers)}
            )
            found["dry"] = Dry(
                multiplier=self.dry_multiplier,
                base=self.dry_base,
                allowed_length=self.dry_allowed_length,
                last_n=self.dry_penalty_last_n,
                **changed,
            )
        return found


class _InMessage(BaseModel):
    """Object in a message's content. Null means absent; unknown fields are refused."""

    model_config = ConfigDict(strict=True)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, values: Any) -> Any:
        for name, value in values.items() if isinstance(values, dict) else ():
            if name not in cls.model_fields and value is not None:
                refusal = unknown_parameter(name, value)
                refusal.param = "messages"
                raise refusal
        return values


class _Part(_InMessage):
    """Part of a message's content."""

    # Cache hints for other services, such as OpenAI's and Anthropic's, which change no result.
    prompt_cache_breakpoint: Any = None
    cache_control: Any = None


class _MediaPart(_Part):
    """Image, video or recording in a message."""

    uuid: str | None = None  # vLLM's key of its cache; here a file's content is the key


class TextPart(_Part):
    """Text of a message."""

    type: Literal["text"]
    text: str


class RefusalPart(_Part):
    """Text of an assistant's message that refuses, in OpenAI's histories."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        """The text."""
        return self.refusal


class ImageUrl(_InMessage):
    """URL of an image."""

    url: str
    detail: str | None = None  # "low" for fewer image tokens; else the processor's own


class ImagePart(_MediaPart):
    """Image in a message."""

    type: Literal["image_url"]
    image_url: ImageUrl


class VideoUrl(_InMessage):
    """URL of a video."""

    url: str


class VideoPart(_MediaPart):
    """Video in a message, as in vLLM's API."""

    type: Literal["video_url"]
    video_url: VideoUrl


class InputAudio(_InMessage):
    """Content of a recording."""

    data: str
    format: str | None = None  # the file itself has its format


class AudioPart(_MediaPart):
    """Recording in a message."""

    type: Literal["input_audio"]
    input_audio: InputAudio


Part = Annotated[
    TextPart | RefusalPart | ImagePart | VideoPart | AudioPart, Field(discriminator="type")
]
_TEXTS = (TextPart, RefusalPart)
#: Names that chat templates use for the parts that are no text.
_IN_TEMPLATES = {"image_url": "image", "video_url": "video", "input_audio": "audio"}


#: Accounting of Claude Code, with which its system prompt begins. It changes with each request, and with it the prompt
#: of every conversation from its first tokens on; it instructs no model.
_ACCOUNTING = re.compile(r"\s*x-anthropic-billing-header:(?:[ \t]*[\w-]+=[^;\n]*;)*[ \t]*\n?")


class ChatMessage(BaseModel):
    """One message; fields beyond role and content are for the chat template."""

    model_config = ConfigDict(strict=True, extra="allow")

    role: Annotated[str, Field(max_length=256)]
    content: str | Annotated[list[Part], Field(fail_fast=True)] | None = None

    @property
    def images(self) -> list[str]:
        """URLs of its images, in order."""
        parts = self.content if isinstance(self.content, list) else []
        return [part.image_url.url for part in parts if isinstance(part, ImagePart)]

    @property
    def details(self) -> list[str | None]:
        """Level of detail of each image."""
        parts = self.content if isinstance(self.content, list) else []
        return [part.image_url.detail for part in parts if isinstance(part, ImagePart)]

    @property
    def videos(self) -> list[str]:
        """URLs of its videos, in order."""
        parts = self.content if isinstance(self.content, list) else []
        return [part.video_url.url for part in parts if isinstance(part, VideoPart)]

    @property
    def recordings(self) -> list[str]:
        """Recordings in base64, in order."""
        parts = self.content if isinstance(self.content, list) else []
        return [part.input_audio.data for part in parts if isinstance(part, AudioPart)]

    @property
    def text(self) -> str:
        """Text of the message, without its images, videos and recordings."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content if isinstance(part, _TEXTS))
        return self.content or ""

    def as_template_input(self) -> dict[str, Any]:
        """Return the message for chat templates, which bring text into the form that they read."""
        content: Any = self.content
        if isinstance(content, list):
            content = [
                {"type": "text", "text": part.text}
                if isinstance(part, _TEXTS)
                else {"type": _IN_TEMPLATES[part.type]}
                for part in content
            ]
        if self.role in ("system", "developer") and _ACCOUNTING.match(self.text):
            content = _ACCOUNTING.sub("", self.text, count=1)
        extra = dict(self.model_extra or {})
        if isinstance(calls := extra.get("tool_calls"), list):
            extra["tool_calls"] = [*map(as_function_call, calls)]
        return {"role": self.role, "content": content, **extra}


def _few_roles(messages: list[ChatMessage]) -> list[ChatMessage]:
    count = len({message.role for message in messages})
    if count > _MAX_ROLES:
        raise ValueError(f"at most {_MAX_ROLES} different roles are expected, not {count:,}")
    return messages


Messages: TypeAlias = Annotated[
    list[ChatMessage],
    Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES),
    AfterValidator(_few_roles),
]
#: Name of one of several chat templates, never a source.
TemplateName: TypeAlias = Annotated[str, Field(max_length=64)]


class Definition(BaseModel):
    """Part of a tool's definition; unknown keys are hints to other services, see `leniency`."""

    model_config = ConfigDict(strict=True)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, values: Any) -> Any:
        return without_hints(values, cls.model_fields)


class Function(Definition):
    """Function that a model may call."""

    name: str = Field(pattern=r"^[A-Za-z0-9_./-]{1,128}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None  # calls match the schema; those that are required always do


class Tool(Definition):
    """Tool: a function, or the function of a custom tool."""

    type: Literal["function", "custom"]
    function: Function

    @model_validator(mode="before")
    @classmethod
    def _as_function(cls, values: Any) -> Any:
        """Move `strict` into the function, beside which some clients send it; make a function of a custom tool."""
        if not isinstance(values, dict):
            return values
        if isinstance(custom := values.get("custom"), dict):
            custom = without_hints(custom, ("name", "description", "format"))
            given = (custom.get(name) for name in ("name", "description", "format"))
            beside = {name: value for name, value in values.items() if name != "custom"}
            return {**beside, "function": function_of(*given)}
        function = values.get("function")
        if isinstance(function, dict) and isinstance(values.get("strict"), bool):
            return {**values, "function": {"strict": values["strict"], **function}}
        return values

    def as_template_input(self) -> dict[str, Any]:
        """Return the definition for chat templates."""
        found = self.function.model_dump(exclude={"strict"}, exclude_none=True)
        empty = {"type": "object", "properties": {}}
        return {
            "type": "function",
            "function": {**found, "parameters": found.get("parameters", empty)},
        }


Tools: TypeAlias = Annotated[
    list[Tool],
    Field(max_length=MAX_TOOLS),
    BeforeValidator(lambda tools: callable_tools(tools, ("function", "custom"))),
]


class NamedFunction(BaseModel):
    """Name of a function."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: str


class NamedTool(BaseModel):
    """Choice of a function that must be called."""

    model_config = ConfigDict(strict=True, extra="forbid")

    type: Literal["function"]
    function: NamedFunction

    @model_validator(mode="before")
    @classmethod
    def _as_function(cls, values: Any) -> Any:
        match values:
            case {"type": "custom", "custom": named}:
                return {"type": "function", "function": named}
            case {"type": "function" | "tool", "name": name, **rest} if not rest:
                return {"type": "function", "function": {"name": name}}
        return values


def _choice(value: Any) -> Any:
    """Return the text of a choice that Anthropic and Mistral write as an object, or by another name."""
    kind = value["type"] if isinstance(value, dict) and [*value] == ["type"] else value
    if kind in ("any", "required"):
        return "required"
    return kind if kind in ("none", "auto") else value


ToolChoice: TypeAlias = Annotated[
    Literal["none", "auto", "required"] | NamedTool, BeforeValidator(_choice)
]


def _with_thinking(values: Any) -> Any:
    """Return a chat whose reasoning is set by names of other services as one with this server's.

    DashScope has `enable_thinking`, DeepSeek and GLM `thinking` with a type, OpenRouter `reasoning` with an effort, and
    ollama `think`.
    """
    if not isinstance(values, dict):
        return values
    found, effort = {**values}, None
    for name, key in (
        ("reasoning", "effort"),
        ("thinking", "type"),
        ("enable_thinking", ""),
        ("think", ""),
    ):
        given = found.get(name)
        inner = given.get(key) if isinstance(given, dict) and [*given] == [key] and key else given
        if inner is False or inner == "disabled":
            effort = "none"
        elif inner is True or inner == "enabled":
            effort = "enabled"
        elif name in ("reasoning", "think") and isinstance(inner, str):
            effort = inner
        elif given is not None:
            continue  # rejected by name
        found.pop(name, None)
    kwargs = found.get("chat_template_kwargs") or {}
    if effort == "enabled" and isinstance(kwargs, dict):
        found["chat_template_kwargs"] = {"enable_thinking": True, "thinking": True, **kwargs}
    elif effort and found.get("reasoning_effort") is None:
        found["reasoning_effort"] = effort
    return found


class ChatRequest(_Generating):
    """Body of /v1/chat/completions. vLLM has the last group too."""

    messages: Messages
    max_completion_tokens: Limit = None
    max_tokens: Limit = None  # its former name
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: Tools = []
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    reasoning_effort: Annotated[str, Field(max_length=64)] | None = None

    echo: bool = False  # the last message, if it is the assistant's, precedes its continuation
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: TemplateName | None = None
    chat_template_kwargs: dict[str, Any] = {}
    include_reasoning: bool = True
    thinking_token_budget: int | None = Field(None, ge=0)
    mm_processor_kwargs: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _allowed(cls, values: Any) -> Any:
        return with_allowed_tools(_with_thinking(values))

    @property
    def offered(self) -> list[Tool]:
        """Functions that the model may call."""
        return [] if self.tool_choice == "none" else self.tools

    @property
    def custom_tools(self) -> frozenset[str]:
        """Names of the custom tools among them."""
        return frozenset(tool.function.name for tool in self.offered if tool.type == "custom")


class CompletionRequest(_Generating):
    """Body of /v1/completions."""

    prompt: Texts
    suffix: Annotated[str, Field(max_length=MAX_TEXT)] = ""  # text after the generated one
    echo: bool = False
    # 0 with `echo` or `prompt_logprobs` alone
    max_tokens: Annotated[int | None, Field(ge=0), BeforeValidator(_limit)] = 16
    logprobs: int | None = Field(None, ge=0, le=5)

    # Not in OpenAI's API; for models that translate.
    language: str | None = Field(None, min_length=1, max_length=64)
    source_language: str | None = Field(None, min_length=1, max_length=64)

    @model_validator(mode="after")
    def _scored(self) -> "CompletionRequest":
        if self.max_tokens == 0 and not self.echo and self.prompt_logprobs is None:
            raise invalid(
                "max_tokens", 0, "1 or more without echo and prompt_logprobs", "Change it"
            )
        return self


class TemplateRequest(RequestBody):
    """Fields of requests with a chat that is only rendered, as in vLLM's API."""

    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: TemplateName | None = None
    chat_template_kwargs: dict[str, Any] = {}

    @property
    def chat(self) -> ChatRequest:
        """Chat of the messages."""
        names = self.model_fields_set & ChatRequest.model_fields.keys()
        return ChatRequest(**{name: getattr(self, name) for name in names})


class TokenizeRequest(TemplateRequest):
    """Body of /tokenize, as in vLLM's API: a prompt, or messages; or a content, as in llama-server's."""

    prompt: Annotated[str, Field(max_length=MAX_TEXT)] | None = None
    return_token_strs: bool = False
    tools: Tools = []
    reasoning_effort: Annotated[str, Field(max_length=64)] | None = None
    content: Annotated[str, Field(max_length=MAX_TEXT)] | None = None
    add_special: bool = False
    with_pieces: bool = False

    @model_validator(mode="after")
    def _one(self) -> "TokenizeRequest":
        if sum(one is not None for one in (self.prompt, self.messages, self.content)) != 1:
            raise ValueError("one of prompt, messages and content is expected")
        return self

    @property
    def text(self) -> tuple[str, bool]:
        """Text, and whether special tokens are added to it."""
        if self.content is not None:
            return self.content, self.add_special
        return self.prompt or "", self.add_special_tokens is not False


class DetokenizeRequest(RequestBody):
    """Body of /detokenize, as in vLLM's API."""

    tokens: Annotated[list[TokenId], Field(fail_fast=True, max_length=1 << 20)]


class UnloadAdapter(BaseModel):
    """Body of /v1/unload_lora_adapter, as in vLLM's API."""

    model_config = ConfigDict(strict=True)

    lora_name: str = Field(min_length=1, max_length=256)


class LoadAdapter(UnloadAdapter):
    """Body of /v1/load_lora_adapter: a folder of the server's machine, or a Hub id."""

    lora_path: str = Field(min_length=1, max_length=4096)


def listed(texts: Texts) -> list[str | list[int]]:
    """Return texts as a list, each a text or token ids; at least one, possibly empty."""
    if isinstance(texts, str):
        return [texts]
    several: list[Any] = texts
    return several if several and not isinstance(several[0], int) else [several]
