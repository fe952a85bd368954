# SPDX-License-Identifier: Apache-2.0
"""Tools of the Responses API as functions of a chat, and the items of their calls.

A chat template knows functions alone. A custom tool is offered as a function of one text, and a function of a namespace
under a name that begins with the namespace's, as in vLLM; a call of either is an item of its own form again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from qeff_zoo.serving.answers.custom_tools import INPUT, function_of
from qeff_zoo.serving.answers.objects import Object
from qeff_zoo.serving.errors import ApiError, brief
from qeff_zoo.serving.requests.leniency import callable_tools
from qeff_zoo.serving.requests.schemas import MAX_TOOLS, Definition


class ResponseFunction(Definition):
    """Function that a model may call."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def as_function(self) -> Object:
        """Return the function for a chat."""
        return self.model_dump(exclude={"type"})


class CustomTool(Definition):
    """Tool that a model calls with a free text, perhaps of a grammar, which the description then shows."""

    type: Literal["custom"]
    name: str
    description: str | None = None
    format: dict[str, Any] | None = None

    def as_function(self) -> Object:
        """Return the function for a chat."""
        return function_of(self.name, self.description, self.format)


_Single: TypeAlias = Annotated[ResponseFunction | CustomTool, Field(discriminator="type")]


def _callable(*kinds: str) -> BeforeValidator:
    return BeforeValidator(lambda tools: callable_tools(tools, kinds))


class Namespace(Definition):
    """Tools of one name, such as those of an MCP server."""

    type: Literal["namespace"]
    name: str
    description: str | None = None
    tools: Annotated[list[_Single], Field(max_length=MAX_TOOLS), _callable("function", "custom")]


ResponseTools: TypeAlias = Annotated[
    list[Annotated[ResponseFunction | CustomTool | Namespace, Field(discriminator="type")]],
    Field(max_length=MAX_TOOLS),
    _callable("function", "custom", "namespace"),
]


class ChosenTool(BaseModel):
    """Choice of a tool that must be called."""

    model_config = ConfigDict(strict=True, extra="forbid")

    type: Literal["function", "custom"]
    name: str
    namespace: str | None = None


@dataclass(frozen=True)
class Origin:
    """Where a function of a chat comes from.

    Args:
        tool: The tool.
        namespace: Name of its namespace; None for none.
    """

    tool: ResponseFunction | CustomTool
    namespace: str | None = None

    @property
    def name(self) -> str:
        """Name of the function in a chat."""
        return function_name(self.tool.name, self.namespace)

    def item(self, call_id: str) -> Object:
        """Return the item of a call, without an identifier of its own."""
        kind = "custom_tool_call" if self.tool.type == "custom" else "function_call"
        content = {INPUT: ""} if self.tool.type == "custom" else {"arguments": ""}
        beside = {} if self.namespace is None else {"namespace": self.namespace}
        return {"type": kind, "call_id": call_id, "name": self.tool.name, **beside, **content}


def function_name(name: str, namespace: str | None) -> str:
    """Return the name of a function in a chat, as in vLLM."""
    return name if namespace is None else f"{namespace}__{name}"


def origins_of(tools: Sequence[ResponseFunction | CustomTool | Namespace]) -> dict[str, Origin]:
    """Return the functions of a chat by their names there.

    Raises:
        ApiError: Two tools have the same name in a chat.
    """
    found: dict[str, Origin] = {}
    for origin in _each(tools):
        other = found.setdefault(origin.name, origin)
        if (other.namespace, other.tool.type) != (origin.namespace, origin.tool.type):
            raise ApiError(
                400,
                f"Two of 'tools' are named {brief(origin.name)} for the model; expected one, as a namespace and a "
                "name are joined by '__'. Rename one.",
                param="tools",
                code="invalid_value",
            )
    return found


def _each(tools: Sequence[ResponseFunction | CustomTool | Namespace]) -> Iterator[Origin]:
    for tool in tools:
        if isinstance(tool, Namespace):
            yield from (Origin(one, tool.name) for one in tool.tools)
        else:
            yield Origin(tool)
