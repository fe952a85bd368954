# SPDX-License-Identifier: Apache-2.0
"""Checks JSON values against the part of JSON Schema (2020-12) that our own schemas use.

In: a value and a schema. Out: every problem, each with its place. The `jsonschema` package says the
same (a test compares them) but takes sixty milliseconds to import, and packages open in a few.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_ANNOTATIONS = {"$schema", "$id", "$defs", "title", "description"}

#: A place in a value: the place around it and the name or index there. As text only when needed.
_Place = tuple[Any, str | int] | None
_Check = Callable[[Any, Any, _Place, Mapping[str, Any]], None]


def problems(value: Any, schema: Mapping[str, Any]) -> list[str]:
    """List where a value breaks a schema.

    Args:
        value: What `json.loads` returned.
        schema: A schema whose every keyword is one of those below.

    Raises:
        ValueError: The schema uses a keyword that is not checked here.
    """
    walk = _Walk(schema)
    walk.run(value, schema, None)
    return walk.problems


class _Walk:
    """Goes through value and schema together; one method a keyword."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self.problems: list[str] = []
        self.checks: dict[int, list[tuple[_Check, Any]]] = {}

    def run(self, value: Any, schema: Mapping[str, Any], place: _Place) -> None:
        checks = self.checks.get(id(schema))
        if checks is None:
            checks = [
                (self.check(keyword), expected)
                for keyword, expected in schema.items()
                if keyword not in _ANNOTATIONS
            ]
            self.checks[id(schema)] = checks
        for check, expected in checks:
            check(value, expected, place, schema)

    def check(self, keyword: str) -> _Check:
        found: _Check | None = getattr(self, "on_" + keyword.lstrip("$"), None)
        if found is None:
            raise ValueError(
                f"Schema keyword {keyword!r} is not checked; expected one that {__name__} knows. "
                "Add a method for it there."
            )
        return found

    def refuse(self, place: _Place, text: str) -> None:
        self.problems.append(f"{_path(place)} {text}")

    def on_ref(self, value: Any, ref: str, place: _Place, _: Any) -> None:
        self.run(value, self.root["$defs"][ref.removeprefix("#/$defs/")], place)

    def on_type(self, value: Any, names: str | list[str], place: _Place, _: Any) -> None:
        wanted = [names] if isinstance(names, str) else names
        if not any(_is(value, name) for name in wanted):
            self.refuse(place, f"is {_short(value)}, expected {' or '.join(wanted)}")

    def on_const(self, value: Any, constant: Any, place: _Place, _: Any) -> None:
        if not _same(value, constant):
            self.refuse(place, f"is {_short(value)}, expected {constant!r}")

    def on_enum(self, value: Any, choices: list[Any], place: _Place, _: Any) -> None:
        if not any(_same(value, choice) for choice in choices):
            self.refuse(place, f"is {_short(value)}, expected one of {choices}")

    def on_pattern(self, value: Any, pattern: str, place: _Place, _: Any) -> None:
        if isinstance(value, str) and not _compiled(pattern).search(value):
            self.refuse(place, f"is {_short(value)}, expected a match of {pattern}")

    def on_minimum(self, value: Any, least: float, place: _Place, _: Any) -> None:
        if _is(value, "number") and value < least:
            self.refuse(place, f"is {_short(value)}, expected at least {least}")

    def on_minLength(self, value: Any, least: int, place: _Place, _: Any) -> None:  # noqa: N802
        if isinstance(value, str) and len(value) < least:
            self.refuse(place, f"is {_short(value)}, expected at least {least} characters")

    def on_maxLength(self, value: Any, most: int, place: _Place, _: Any) -> None:  # noqa: N802
        if isinstance(value, str) and len(value) > most:
            self.refuse(place, f"is {_short(value)}, expected at most {most} characters")

    def on_minItems(self, value: Any, least: int, place: _Place, _: Any) -> None:  # noqa: N802
        if isinstance(value, list) and len(value) < least:
            self.refuse(place, f"has {len(value)} items, expected at least {least}")

    def on_minProperties(self, value: Any, least: int, place: _Place, _: Any) -> None:  # noqa: N802
        if isinstance(value, dict) and len(value) < least:
            self.refuse(place, f"has {len(value)} members, expected at least {least}")

    def on_required(self, value: Any, names: list[str], place: _Place, _: Any) -> None:
        if isinstance(value, dict):
            for name in names:
                if name not in value:
                    self.refuse((place, name), "is missing")

    def on_properties(self, value: Any, members: Mapping[str, Any], place: _Place, _: Any) -> None:
        if isinstance(value, dict):
            for name, item in value.items():
                if name in members:
                    self.run(item, members[name], (place, name))

    def on_additionalProperties(  # noqa: N802
        self, value: Any, other: Any, place: _Place, schema: Mapping[str, Any]
    ) -> None:
        if not isinstance(value, dict):
            return
        members = schema.get("properties", {})
        for name, item in value.items():
            if name in members:
                continue
            if other is False:
                self.refuse((place, name), "is not a field of this schema")
            else:
                self.run(item, other, (place, name))

    def on_items(self, value: Any, schema: Mapping[str, Any], place: _Place, _: Any) -> None:
        if isinstance(value, list):
            for index, item in enumerate(value):
                self.run(item, schema, (place, index))


def _path(place: _Place) -> str:
    if place is None:
        return "$"
    outer, step = place
    return _path(outer) + (f"[{step}]" if isinstance(step, int) else f".{step}")


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[name])


def _same(a: Any, b: Any) -> bool:
    """Compare as JSON does: `false` is not 0."""
    return a == b and isinstance(a, bool) == isinstance(b, bool)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    # In JSON Schema `$` is the end of the text; in Python it also matches before a last newline.
    return re.compile(pattern.removesuffix("$") + r"\Z" if pattern.endswith("$") else pattern)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
