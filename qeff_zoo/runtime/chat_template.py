# SPDX-License-Identifier: Apache-2.0
"""A package's chat template: messages in, the prompt's text out, as transformers renders it.

Templates come with checkpoints and are code; they run in a sandbox that can change nothing.
"""

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.nodes
import jinja2.parser
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.tokenizer import read_json

Message = Mapping[str, Any]


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks what a model said, for training; here it shows."""

    tags = frozenset({"generation"})

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Return the block's content."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """One template with the special tokens it may name.

    Args:
        source: Jinja.
        tokens: Special tokens by name: bos_token, eos_token, …
    """

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, jinja2.ext.loopcontrols],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _now
        self._template = _guarded(lambda: environment.from_string(source))
        self._tokens = tokens

    @classmethod
    def find(cls, folder: Path) -> "ChatTemplate | None":
        """Open a folder's chat template, if it has one.

        Args:
            folder: Holds chat_template.jinja, or tokenizer_config.json with a `chat_template`.
        """
        config = read_json(folder / "tokenizer_config.json")
        file = folder / "chat_template.jinja"
        source = file.read_text(encoding="utf-8") if file.is_file() else config.get("chat_template")
        if isinstance(source, list):  # several, by name
            source = {entry["name"]: entry["template"] for entry in source}.get("default")
        if not source:
            return None
        known = {**read_json(folder / "special_tokens_map.json"), **config}
        return cls(source, {name: _content(token) for name, token in known.items() if _names_token(name, token)})

    def render(self, messages: Sequence[Message]) -> str:
        """Write messages as a prompt that asks for the assistant's answer.

        Args:
            messages: Each with `role` and `content`.

        Raises:
            GenerationError: The template refuses them.
        """
        return _guarded(
            lambda: self._template.render(
                messages=list(messages),
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._tokens,
            )
        )
