# SPDX-License-Identifier: Apache-2.0
"""Python values -> Python source, laid out as ruff's formatter does at 100 columns."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WIDTH = 100
_INDENT = 4


@dataclass(frozen=True)
class Code:
    """Source that stands for itself.

    Args:
        text: One expression.
    """

    text: str


@dataclass(frozen=True)
class Call:
    """A call.

    Args:
        name: Name of the callee.
        arguments: Arguments by keyword; those whose keyword is empty are positional.
    """

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Spread:
    """A dictionary that begins with all of another.

    Args:
        base: The other.
        own: Items after it.
    """

    base: Code
    own: Mapping[str, Any]


def layout(value: Any, *, indent: int = 0, before: int = 0, after: int = 0) -> str:
    """Write a value on one line if it fits, else one item per line.

    Args:
        value: Nested value of JSON's types, tuples, `Code`, `Call` and `Spread`.
        indent: Columns that the lines after the first are indented by.
        before: Columns taken on the first line.
        after: Columns taken on the last line.
    """
    opening, items, closing = _parts(value)
    flat = opening + ", ".join(label + layout(item) for label, item in items) + closing
    if isinstance(value, tuple) and len(items) == 1:
        flat = f"{flat[:-1]},)"
    fits = indent + before + len(flat) + after <= WIDTH and "\n" not in flat
    if fits or not items:
        return flat
    inner = " " * (indent + _INDENT)
    lines = [
        inner + label + layout(item, indent=indent + _INDENT, before=len(label), after=1) + ","
        for label, item in items
    ]
    return "\n".join([opening, *lines, " " * indent + closing])


def _parts(value: Any) -> tuple[str, list[tuple[str, Any]], str]:
    """Take a value apart: opening, labelled items, closing."""
    if isinstance(value, Code):
        return value.text, [], ""
    if isinstance(value, Call):
        named = [(f"{key}=" if key else "", item) for key, item in value.arguments.items()]
        return f"{value.name}(", named, ")"
    if isinstance(value, Spread):
        own = [(f"{_scalar(key)}: ", item) for key, item in value.own.items()]
        return "{", [("**", value.base), *own], "}"
    if isinstance(value, Mapping):
        return "{", [(f"{_scalar(key)}: ", item) for key, item in value.items()], "}"
    if isinstance(value, tuple | list):
        opening, closing = "()" if isinstance(value, tuple) else "[]"
        return opening, [("", item) for item in value], closing
    return _scalar(value), [], ""


def _scalar(value: Any) -> str:
    """Write a number, a string, a truth value or None; strings in double quotes where ruff prefers them."""
    if isinstance(value, str) and '"' not in value:
        return json.dumps(value, ensure_ascii=not value.isprintable())
    return repr(value)
