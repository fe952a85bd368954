# SPDX-License-Identifier: Apache-2.0
"""Formats of tool calls and of reasoning, by model family: one row of formats.json each.

A row is the text that a family's chat template renders, with holes in braces. The parser reads outputs by it, and the
grammar that guarantees calls is derived from it. Whitespace in a row may have any length in an output.

    {call}      a JSON object with the name and the arguments
    {name}      the name of the function
    {args}      the arguments: a JSON object, keyword arguments of Python, or each argument by the row's `argument`
    {key}       the name of an argument
    {type}      its JSON type
    {string}    whether it is a string: true or false
    {value}     its value: text of a string, JSON of anything else
    {id}        an identifier of the call
    {index}     the number of the call
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

#: Language of values in arguments: JSON, Python's literals, or JSON with unquoted keys and another quote.
Values: TypeAlias = Literal["json", "python", "unquoted"]
#: Whether an output begins with reasoning: the prompt has begun it, or the model may begin it, or it has ended.
Thoughts: TypeAlias = Literal["begun", "possible", "ended"]


@dataclass(frozen=True, kw_only=True)
class CallFormat:
    """Format of tool calls.

    Args:
        call: Text of a call.
        also: Further texts of a call that models generate.
        begin: Text before the first call.
        join: Text between calls.
        end: Text after the last call, which may be absent.
        argument: Text of an argument, for arguments that are not one object.
        keys: Names of the fields of `{call}`: name and arguments, and any other field before them.
        values: Language of the values.
        quote: Text around strings in values with unquoted keys.
        id: Identifier of a call for clients, with `{name}` and `{index}`; a random one if empty.
        bare: Whether calls have no mark and begin the output.
        signs: Texts of templates that render definitions of functions, but no calls.
        answer: Text before an answer, which begins as a call does; the prompt may end with this beginning.
        channels: Whether messages have channels and recipients, as those of gpt-oss.
        drops: Texts that are no part of the answer.
    """

    call: str
    also: tuple[str, ...] = ()
    begin: str = ""
    join: str = ""
    end: str = ""
    argument: str = ""
    keys: tuple[str, ...] = ("name", "arguments")
    values: Values = "json"
    quote: str = ""
    id: str = ""
    bare: bool = False
    signs: tuple[str, ...] = ()
    answer: str = ""
    channels: bool = False
    drops: tuple[str, ...] = ()

    @property
    def openings(self) -> list[str]:
        """Texts up to the first line break or hole, which mark the beginning of calls."""
        rows = [self.begin] if self.begin else [self.call, *self.also]
        return list(dict.fromkeys(holes(row)[0][0].split("\n")[0] or "{" for row in rows))

    def begun(self, prompt: str) -> str:
        """Return the beginning of a call or an answer with which a prompt ends; empty if there is none."""
        opening = self.openings[0] if self.answer else ""
        return opening if prompt.endswith(opening) else ""

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts of the row."""
        return (
            *(self.begin, self.call, *self.also, self.join, self.end, self.argument, self.quote),
            *self.drops,
        )


@dataclass(frozen=True, kw_only=True)
class ReasoningFormat:
    """Format of reasoning.

    Args:
        begin: Text before the reasoning.
        end: Text after it.
        names: Names of the parsers of vLLM that read this format.
        drops: Texts that are no part of the answer.
    """

    begin: str
    end: str
    names: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts of the row."""
        return (self.begin, self.end, *self.drops)


def holes(row: str) -> list[tuple[str, str]]:
    """Return the parts of a row: each text with the hole after it; the hole of the last is empty."""
    parts, before = [], ""
    for text, hole, *_ in Formatter().parse(row):
        before += text
        if hole is not None:
            parts.append((before, hole))
            before = ""
    return [*parts, (before, "")]


#: Reasoning of a model whose messages have channels.
ANALYSIS = ReasoningFormat(begin="<|channel|>analysis<|message|>", end="<|end|><|start|>assistant")


def _row(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
    }


_TABLE = json.loads(Path(__file__).with_name("formats.json").read_text(encoding="utf-8"))
#: Formats of tool calls, by the name of vLLM's parser where it has one; the first that reads a rendering is used.
CALL_FORMATS: Mapping[str, CallFormat] = MappingProxyType(
    {name: CallFormat(**_row(values)) for name, values in _TABLE["calls"].items()}
)
#: Formats of reasoning by name.
REASONING_FORMATS: Mapping[str, ReasoningFormat] = MappingProxyType(
    {name: ReasoningFormat(**_row(values)) for name, values in _TABLE["reasoning"].items()}
)
