# SPDX-License-Identifier: Apache-2.0
"""Chat templates of a package: messages in, the prompt's text out, as transformers renders it.

Templates are code that comes with checkpoints; they run in a sandbox without side effects, and within a budget.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from qeff_zoo.disk.regular import read_text
from qeff_zoo.errors import GenerationError
from qeff_zoo.package.files import read_json
from qeff_zoo.runtime.text.template_source import Message, TemplateSource
from qeff_zoo.terminal.sanitize import shortened

__all__ = ["ChatOptions", "ChatTemplate", "Message", "special_tokens"]

#: Folder of templates beside the default one, as in transformers.
FOLDER = "additional_chat_templates"
_DEFAULT, _TOOL_USE = "default", "tool_use"  # transformers' names
_TAG = "qzqzqcontinuezqzqz"  # a word that no message contains
#: Variables that select thinking, and that an effort sets.
_THINKING = ("enable_thinking", "thinking")
_RESERVED = ("messages", "tools", "documents", "add_generation_prompt", "self")


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """Options of a rendering, as those of transformers' `apply_chat_template`.

    Args:
        tools: Definitions of functions, as in OpenAI's API.
        documents: Documents for the template, each with a title and a text.
        variables: Further variables of the template, such as `enable_thinking`.
        reasoning_effort: Variable `reasoning_effort`. It also sets `enable_thinking` and `thinking`, to false for
            "none" and to true for other values, if the template reads them.
        add_generation_prompt: Whether the prompt ends with the beginning of a new message of the assistant.
        continue_final_message: Whether the prompt ends within the last message, which the model continues.
        template: Name of a template; None for the default one, or for `tool_use` if there are tools.

    Raises:
        GenerationError: If options contradict each other.
    """

    tools: Sequence[Mapping[str, Any]] = ()
    documents: Sequence[Mapping[str, Any]] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)
    reasoning_effort: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template: str | None = None

    def __post_init__(self) -> None:
        reserved = [name for name in _RESERVED if name in self.variables]
        if reserved:
            raise GenerationError(
                f"Variable {reserved[0]!r} of a chat template is set; expected other variables, such as "
                "enable_thinking. Use the option of this name."
            )

    def values(self, source: TemplateSource) -> dict[str, Any]:
        """Return the variables of a rendering."""
        effort = self.reasoning_effort
        chosen: dict[str, Any] = {}
        if effort is not None:
            chosen = {name: effort != "none" for name in _THINKING if source.names(name)}
            chosen["reasoning_effort"] = effort
        return {
            "tools": [*self.tools] or None,
            "documents": [*self.documents] or None,
            "add_generation_prompt": self.add_generation_prompt and not self.continue_final_message,
            **chosen,
            **self.variables,
        }


USUAL_CHAT = ChatOptions()


class ChatTemplate:
    """Chat templates with the special tokens that they may use.

    Args:
        source: Jinja source of the template; several by name.
        tokens: Special tokens by name: bos_token, eos_token, …
        defaults: Variables of renderings whose options have none of these names.

    Raises:
        GenerationError: If a default has the name of an option.
    """

    def __init__(
        self,
        source: str | Mapping[str, str],
        tokens: Mapping[str, str],
        defaults: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._defaults = ChatOptions(variables=defaults).variables
        sources = {_DEFAULT: source} if isinstance(source, str) else source
        self._sources = {name: TemplateSource(text, tokens) for name, text in sources.items()}

    @classmethod
    def find(cls, folder: Path) -> "ChatTemplate | None":
        """Return the chat templates of a folder, if it has one.

        Args:
            folder: A folder with chat_template.jinja, or with tokenizer_config.json that has a `chat_template`.
        """
        config = read_json(folder / "tokenizer_config.json")
        file = folder / "chat_template.jinja"
        older = read_json(folder / "chat_template.json")  # of processors
        template = older.get("chat_template", config.get("chat_template"))
        if isinstance(template, list):  # several, by name
            template = {entry["name"]: entry["template"] for entry in template}
        sources: dict[str, Any] = (
            dict(template) if isinstance(template, dict) else {_DEFAULT: template}
        )
        if file.is_file():
            sources[_DEFAULT] = read_text(file)
        sources |= {path.stem: read_text(path) for path in sorted(folder.glob(f"{FOLDER}/*.jinja"))}
        sources = {name: text for name, text in sources.items() if text}
        return cls(sources, special_tokens(folder)) if sources else None

    @property
    def sources(self) -> dict[str, str]:
        """Jinja sources by name."""
        return {name: source.text for name, source in self._sources.items()}

    @property
    def takes_tools(self) -> bool:
        """Whether a template renders definitions of functions."""
        return any(source.takes_tools for source in self._sources.values())

    def source(self, options: ChatOptions = USUAL_CHAT) -> TemplateSource:
        """Return the template that the options select.

        Raises:
            GenerationError: If there is none, or several without a default.
        """
        name = options.template
        if name is None:
            name = _TOOL_USE if options.tools and _TOOL_USE in self._sources else _DEFAULT
            if len(self._sources) == 1:
                (name,) = self._sources
        if name in self._sources:
            return self._sources[name]
        selected = (
            "a default one" if options.template is None else shortened(repr(options.template))
        )
        raise GenerationError(
            f"The package has no chat template {selected}: it has the names {sorted(self._sources)}. Expected one of "
            "them. Name it."
        )

    def render(self, messages: Sequence[Message], options: ChatOptions = USUAL_CHAT) -> str:
        """Render messages as a prompt, by default for the assistant's reply.

        Args:
            messages: Messages, each with `role` and `content`; see `TemplateSource.normalized` for their forms.
            options: Options of the rendering.

        Raises:
            GenerationError: If the template raises an error, or exceeds its budget.
        """
        source = self.source(options)
        values = {**self._defaults, **options.values(source)}
        if options.continue_final_message:
            return _continued(source, messages, values)
        return source.render(messages, **values)


def _continued(
    source: TemplateSource, messages: Sequence[Message], values: Mapping[str, Any]
) -> str:
    """Return a prompt that ends within the text of the last message, trimmed as the template trims it."""
    *others, last = messages
    content = last.get("content")
    if isinstance(content, list) and content and isinstance(content[-1].get("text"), str):
        tagged: Any = [*content[:-1], {**content[-1], "text": f"{content[-1]['text']}{_TAG} "}]
    else:
        tagged = f"{content}{_TAG} " if isinstance(content, str) else None
    text = source.render([*others, {**last, "content": tagged}], **values) if tagged else ""
    before, tag, after = text.rpartition(_TAG)
    if not tag:
        raise GenerationError(
            f"The last message, of role {shortened(str(last.get('role')))!r}, cannot be continued; expected one with a "
            "text, at the end of what the template renders. Leave continue_final_message out."
        )
    return before if after.startswith(" ") else before.rstrip()


#: Fields of tokenizer_config.json with model-specific special tokens, in old and new releases of transformers.
_OWN = ("extra_special_tokens", "model_specific_special_tokens")


def special_tokens(folder: Path) -> dict[str, str]:
    """Return the texts of a folder's special tokens by name, such as `bos_token`."""
    config = read_json(folder / "tokenizer_config.json")
    known = {**read_json(folder / "special_tokens_map.json"), **config}
    known = {name: value for name, value in known.items() if name.endswith("_token")}
    for name in _OWN:
        more = config.get(name)
        known |= more if isinstance(more, dict) else {}
    tokens = {name: _content(value) for name, value in known.items()}
    return {name: token for name, token in tokens.items() if token is not None}


def _content(token: object) -> str | None:
    """Return the text of a special token, which may be an object, or absent."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None
