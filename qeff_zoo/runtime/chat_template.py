# SPDX-License-Identifier: Apache-2.0
"""Chat template of a package: messages in, the prompt's text out, as transformers renders it.

Templates are code that comes with checkpoints; they run in a sandbox without side effects, and within a budget.
"""

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import jinja2
import jinja2.nodes
import jinja2.parser
from jinja2.ext import Extension, loopcontrols

from qeff_zoo.disk.regular import read_text
from qeff_zoo.errors import GenerationError
from qeff_zoo.package.files import read_json
from qeff_zoo.runtime.template_sandbox import Sandbox
from qeff_zoo.terminal.sanitize import shortened

Message = Mapping[str, Any]
_T = TypeVar("_T")
_WORD = "qzqzq"  # a word that no template contains
_REASONING = ("reasoning_content", "thinking", "reasoning")  # names that clients use


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}`, a mark of generated text for training; only its content is rendered."""

    tags = {"generation"}  # noqa: RUF012 -- as in Jinja

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Return the block's content."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """Chat template with the special tokens that it may use.

    Args:
        source: Jinja source of the template.
        tokens: Special tokens by name: bos_token, eos_token, …
    """

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        self._sandbox = Sandbox(
            [_Generation, loopcontrols],
            filters={"tojson": _to_json},
            functions={"raise_exception": _refuse, "strftime_now": _now},
        )
        self._source = source
        self._tokens = tokens

    @classmethod
    def find(cls, folder: Path) -> "ChatTemplate | None":
        """Return the chat template of a folder, if it has one.

        Args:
            folder: A folder with chat_template.jinja, or with tokenizer_config.json that has a `chat_template`.
        """
        config = read_json(folder / "tokenizer_config.json")
        file = folder / "chat_template.jinja"
        older = read_json(folder / "chat_template.json")  # of processors
        source = older.get("chat_template", config.get("chat_template"))
        if file.is_file():
            source = read_text(file)
        if isinstance(source, list):  # several, by name
            source = {entry["name"]: entry["template"] for entry in source}.get("default")
        if not source:
            return None
        return cls(source, special_tokens(folder))

    def render(self, messages: Sequence[Message]) -> str:
        """Render messages as a prompt for the assistant's reply.

        Args:
            messages: Messages, each with `role` and `content`. A key that is None counts as absent, and reasoning may
                have any of its names. Text content is wrapped in a list of one part for a template that supports only
                lists, which renders no plain text in transformers.

        Raises:
            GenerationError: If the template raises an error, or exceeds its budget.
        """
        return _guarded(lambda: self._written(messages, in_parts=self._reads_parts_alone))

    @cached_property
    def _template(self) -> jinja2.Template:
        """The template, parsed on first use, so that an invalid one does not affect plain prompts."""
        return self._sandbox.parsed(self._source)

    def _written(self, messages: Sequence[Message], *, in_parts: bool) -> str:
        return self._sandbox.rendered(
            self._template,
            messages=[_plain(message, in_parts=in_parts) for message in messages],
            tools=None,
            documents=None,
            add_generation_prompt=True,
            **self._tokens,
        )

    @cached_property
    def _reads_parts_alone(self) -> bool:
        """Whether the template renders text as a part of a list, but not as the whole content."""
        return not self._writes(in_parts=False) and self._writes(in_parts=True)

    @cached_property
    def reads_parts(self) -> bool:
        """Whether the template renders the text of a part, and not the list of parts itself."""
        chat = [{"role": "user", "content": [{"type": "text", "text": _WORD}]}]
        try:
            written = self._written(chat, in_parts=True)
        except _FAILURES:
            return False
        return _WORD in written and repr(_WORD) not in written

    def _writes(self, *, in_parts: bool) -> bool:
        chat = [{"role": role, "content": _WORD} for role in ("user", "assistant", "user")]
        try:
            return _WORD in self._written(chat, in_parts=in_parts)
        except _FAILURES:  # errors are reported for the actual messages
            return False


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


def _plain(message: Message, *, in_parts: bool) -> dict[str, Any]:
    """Return a message in the form that transformers passes to a template, with its text as a part if requested."""
    given = {key: value for key, value in message.items() if value is not None}
    if in_parts and isinstance(given.get("content"), str):
        given["content"] = [{"type": "text", "text": given["content"]}]
    reasoning = next((given[key] for key in _REASONING if key in given), None)
    if reasoning is not None:  # gpt-oss reads `thinking`
        given = {"thinking": reasoning, **given, "reasoning_content": reasoning}
    return given


def _content(token: object) -> str | None:
    """Return the text of a special token, which may be an object, or absent."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


#: Errors that computation in a template may raise.
_FAILURES = (
    *(jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, MemoryError),
    *(RuntimeError, SyntaxError, TypeError, ValueError),
)


def _guarded(act: Callable[[], _T]) -> _T:
    try:
        return act()
    except _FAILURES as error:
        said = shortened(str(error) or type(error).__name__)
        raise GenerationError(
            f"The chat template fails: {said!r}. Expected messages that the model's template "
            "takes. Change them, or give the whole prompt as plain text."
        ) from error


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.datetime.now().astimezone().strftime(pattern)


def _to_json(value: Any, **options: Any) -> str:
    """Return JSON without the HTML escapes of Jinja's filter."""
    return json.dumps(value, **{"ensure_ascii": False, **options})
