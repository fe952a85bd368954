# SPDX-License-Identifier: Apache-2.0
"""Format of a model's chats: how tools, calls and reasoning are written, by its template or by name."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from qeff_zoo.errors import ServingError
from qeff_zoo.runtime.text.chat_output.detection import call_format_of, reasoning_format_of
from qeff_zoo.runtime.text.chat_output.formats import (
    ANALYSIS,
    CALL_FORMATS,
    REASONING_FORMATS,
    CallFormat,
    ReasoningFormat,
    Thoughts,
)
from qeff_zoo.runtime.text.chat_output.marks import Marks
from qeff_zoo.runtime.text.chat_output.parsing import OutputParser
from qeff_zoo.runtime.text.template_source import TemplateSource
from qeff_zoo.runtime.text.thinking_budget import ThinkingBudget
from qeff_zoo.runtime.text.tokenizer import Tokenizer

#: Name of no format.
NONE = "none"
_END = 64  # tokens of a prompt's end, which may begin the reasoning with as many bytes


@dataclass(frozen=True, kw_only=True)
class ChatFormat:
    """Format of the outputs of a chat template.

    Args:
        calls: Format of tool calls; None if it is unknown.
        reasoning: Format of reasoning; None without one.
        takes_tools: Whether the template renders definitions of functions.
    """

    calls: CallFormat | None = None
    reasoning: ReasoningFormat | None = None
    takes_tools: bool = False

    @classmethod
    def of(
        cls,
        source: TemplateSource,
        tool_parser: str | None = None,
        reasoning_parser: str | None = None,
    ) -> "ChatFormat":
        """Return the format of a template.

        Args:
            source: The template.
            tool_parser: Name of the format of tool calls, "none", or None for the one that the template renders.
            reasoning_parser: Name of the format of reasoning, "none", or None for the one of the template.
        """
        calls = tool_parser or call_format_of(source)
        reasoning = reasoning_parser or reasoning_format_of(source)
        return cls(
            calls=CALL_FORMATS.get(calls or NONE),
            reasoning=_reasoning_named(reasoning or NONE),
            takes_tools=source.takes_tools,
        )

    def parser(
        self,
        prompt: str,
        *,
        schemas: Mapping[str, Any] | None = None,
        most: int | None = None,
        structured: bool = False,
    ) -> OutputParser | None:
        """Return the parser of an output; None if it is plain text.

        Args:
            prompt: End of the prompt, which may begin the reasoning.
            schemas: JSON Schemas of the arguments by function; None for a request without tools.
            most: Maximum number of calls.
            structured: Whether a grammar constrains the answer.
        """
        calls = self.calls if schemas is not None or self.marks_answers else None
        if calls is None and self.reasoning is None:
            return None
        return OutputParser(
            calls,
            self.reasoning,
            is_open=self.is_open(prompt),
            schemas=schemas,
            most=most,
            begun=calls.begun(prompt) if calls else "",
            structured=structured,
        )

    @property
    def _has_channels(self) -> bool:
        return self.calls is not None and self.calls.channels

    @property
    def has_parts(self) -> bool:
        """Whether an output has parts besides its text and calls: reasoning, or channels."""
        return self.reasoning is not None or self._has_channels

    @property
    def marks_answers(self) -> bool:
        """Whether an answer has a mark, as calls do."""
        return self.calls is not None and (self.calls.channels or bool(self.calls.answer))

    def is_open(self, prompt: str) -> bool:
        """Return whether a prompt ends within reasoning."""
        return bool(self.reasoning and prompt.rstrip().endswith(self.reasoning.begin.strip()))

    def thoughts(self, prompt: str) -> Thoughts:
        """Return whether an output begins with reasoning: the prompt has begun it, or the model may, or it has ended.

        Args:
            prompt: End of the prompt.
        """
        if self.is_open(prompt):
            return "begun"
        ended = self.reasoning and prompt.rstrip().endswith(self.reasoning.end.strip())
        return "ended" if ended else "possible"

    def budget(
        self, prompt: str, tokens: int | None, tokenizer: Tokenizer
    ) -> ThinkingBudget | None:
        """Return a budget of the reasoning; None without a limit, or without reasoning.

        Args:
            prompt: End of the prompt.
            tokens: Maximum number of tokens.
            tokenizer: Tokenizer of the model.
        """
        reasoning = ANALYSIS if self._has_channels else self.reasoning
        if tokens is None or reasoning is None:
            return None
        begin, end = reasoning.begin.strip(), reasoning.end.strip()
        return ThinkingBudget(
            tokens=tokens,
            begin=begin,
            end=end,
            begun=self.is_open(prompt),
            end_ids=self.marks(tokenizer).encode(end, tokenizer),
        )

    def marks(self, tokenizer: Tokenizer) -> Marks:
        """Return the tokens that the format consists of, and that no text of an output has."""
        return Marks.of(tokenizer, self._texts)

    def shown(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Return the added tokens that the text of an output contains for a parser."""
        return self.marks(tokenizer).ids

    @cached_property
    def _texts(self) -> list[str]:
        """All texts of the format."""
        known = [self.calls, self.reasoning, ANALYSIS if self._has_channels else None]
        return [text for name in known if name for text in name.texts]


def prompt_end(tokenizer: Tokenizer, prompt: Sequence[int]) -> str:
    """Return the end of a prompt for `ChatFormat`: the text of its last tokens, with special tokens."""
    return tokenizer.spelled(prompt[-_END:])


def check_parsers(tool_parser: str | None, reasoning_parser: str | None) -> None:
    """Check names of formats.

    Raises:
        ServingError: If a name is unknown.
    """
    reasoning = [name for known in REASONING_FORMATS.values() for name in known.names]
    for option, name, known in (
        ("--tool-parser", tool_parser, [*CALL_FORMATS]),
        ("--reasoning-parser", reasoning_parser, [*REASONING_FORMATS, *reasoning]),
    ):
        if name is not None and name != NONE and name not in known:
            raise ServingError(
                f"{option} is {name!r}, which is unknown; expected {_listed(known)}, or {NONE!r}. Leave it out for the "
                "format of the chat template."
            )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names)))


def _reasoning_named(name: str) -> ReasoningFormat | None:
    """Return a format of reasoning by its name, or by the name of vLLM's parser."""
    matching = (format for key, format in REASONING_FORMATS.items() if name in (key, *format.names))
    return next(matching, None)
