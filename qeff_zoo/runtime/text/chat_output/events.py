# SPDX-License-Identifier: Apache-2.0
"""Events of a chat model's output: text, reasoning, and tool calls with their arguments, piece by piece."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Text:
    """Piece of the answer's text."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """Piece of the reasoning before an answer."""

    text: str


@dataclass(frozen=True)
class Call:
    """Beginning of a tool call.

    Args:
        index: Number of the call in the output.
        id: Identifier of the call.
        name: Name of the function.
    """

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class Arguments:
    """Piece of the arguments of a call, which are JSON text.

    Args:
        index: Number of the call in the output.
        text: Piece of the text.
    """

    index: int
    text: str


Event: TypeAlias = Text | Reasoning | Call | Arguments


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """Whole tool call.

    Args:
        id: Identifier of the call.
        name: Name of the function.
        arguments: JSON text; incomplete if generation ended within it.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, kw_only=True)
class Output:
    """Whole output of a chat model.

    Args:
        text: Text of the answer.
        reasoning: Reasoning before the answer.
        calls: Tool calls.
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()

    @classmethod
    def of(cls, events: Iterable[Event]) -> "Output":
        """Return the output that events add up to."""
        texts: dict[type, list[str]] = {Text: [], Reasoning: []}
        begun: dict[int, Call] = {}
        arguments: dict[int, list[str]] = {}
        for event in events:
            if isinstance(event, Call):
                begun[event.index] = event
            elif isinstance(event, Arguments):
                arguments.setdefault(event.index, []).append(event.text)
            else:
                texts[type(event)].append(event.text)
        return cls(
            text="".join(texts[Text]),
            reasoning="".join(texts[Reasoning]),
            calls=tuple(
                ToolCall(id=call.id, name=call.name, arguments="".join(arguments.get(index, ())))
                for index, call in begun.items()
            ),
        )
