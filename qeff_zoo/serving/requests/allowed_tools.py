# SPDX-License-Identifier: Apache-2.0
"""OpenAI's choice of some of the tools of a request: `allowed_tools`, with the mode `auto` or `required`."""

from collections.abc import Mapping
from typing import Any

from qeff_zoo.serving.errors import ApiError, brief

_KIND = "allowed_tools"


def with_allowed_tools(values: Any) -> Any:
    """Return a body that offers the allowed tools alone, with their mode as its choice; any other body as it is.

    Args:
        values: Body of a chat, or of a response.

    Raises:
        ApiError: An allowed tool is not among the tools, or the mode is unknown.
    """
    chosen = values.get("tool_choice") if isinstance(values, Mapping) else None
    if not isinstance(chosen, Mapping) or chosen.get("type") != _KIND:
        return values
    given = chosen.get(_KIND, chosen)
    given = given if isinstance(given, Mapping) else {}
    mode, allowed, tools = given.get("mode"), given.get("tools"), values.get("tools")
    if mode in ("auto", "required") and isinstance(allowed, list) and isinstance(tools, list):
        wanted = [_key(tool) for tool in allowed]
        missing = [tool for tool in allowed if _key(tool) not in map(_key, tools)]
        if not missing:
            kept = [tool for tool in tools if _key(tool) in wanted]
            return {**values, "tools": kept, "tool_choice": mode}
    raise ApiError(
        400,
        f"Parameter 'tool_choice' is {brief(dict(chosen))}; expected the mode 'auto' or 'required', and some of "
        "'tools'. Change it.",
        param="tool_choice",
        code="invalid_value",
    )


def _key(tool: Any) -> tuple[str, ...]:
    """Return what identifies a tool: its kind and its name, or the label of an MCP server."""
    if not isinstance(tool, Mapping):
        return ()
    kind = str(tool.get("type", ""))
    inner = tool.get(kind)
    named = inner if isinstance(inner, Mapping) else tool
    return kind, str(named.get("name", named.get("server_label", "")))
