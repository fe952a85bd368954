# SPDX-License-Identifier: Apache-2.0
"""Custom tools, which a model calls with a free text: for a chat template functions of one text."""

import json
import re
from collections.abc import Mapping
from typing import Any

#: Name of the argument of the function.
INPUT = "input"
_PARAMETERS = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
    "additionalProperties": False,
}
#: Arguments of a custom tool that end within its text, perhaps within an escape, or behind it.
_CUT = re.compile(
    rf'\s*\{{\s*"{INPUT}"\s*:\s*"'
    r"""(?P<text>(?:[^"\\]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*)(?:\\(?:u[0-9a-fA-F]{0,3})?|"\s*)?"""
)


def function_of(name: object, description: object, form: object) -> dict[str, Any]:
    """Return the function of a custom tool.

    Args:
        name: Name of the tool.
        description: Description, or None.
        form: Format; the description shows the grammar, which is not enforced. None for free text.
    """
    shown = description
    form = form.get("grammar", form) if isinstance(form, Mapping) else {}
    if isinstance(form, Mapping) and isinstance(definition := form.get("definition"), str):
        grammar = f"The input is a text of this grammar ({form.get('syntax')}):\n{definition}"
        shown = f"{description}\n\n{grammar}" if description else grammar
    return {"name": name, "description": shown, "parameters": _PARAMETERS}


def as_function_call(call: Any) -> Any:
    """Return a call in a chat's history as that of a function; any other as it is."""
    custom = call.get("custom") if isinstance(call, Mapping) else None
    if not isinstance(custom, Mapping):
        return call
    function = {"name": custom.get("name"), "arguments": {INPUT: custom.get("input", "")}}
    return {"id": call.get("id"), "type": "function", "function": function}


def text_of(arguments: str) -> str:
    """Return the text of a call of a custom tool; that of arguments which a limit cut, or else the arguments."""
    try:
        found = json.loads(arguments)
    except (RecursionError, ValueError):
        cut = _CUT.fullmatch(arguments)
        found = {INPUT: json.loads(f'"{cut["text"]}"', strict=False)} if cut else None
    text = found.get(INPUT) if isinstance(found, dict) else None
    # Half a character, which JSON may escape, has no encoding.
    return (text if isinstance(text, str) else arguments).encode(errors="replace").decode()
