# SPDX-License-Identifier: Apache-2.0
"""Checks JSON values against the part of JSON Schema (2020-12) that our own schemas use.

In: a value and a schema. Out: every problem, each with its place. The `jsonschema` package says the
same (a test compares them) but takes sixty milliseconds to import, and packages open in a few.
"""

import re
from collections.abc import Iterator, Mapping
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


def problems(value: Any, schema: Mapping[str, Any]) -> list[str]:
    """List where a value breaks a schema.

    Args:
        value: What `json.loads` returned.
        schema: A schema whose every keyword is one of those below.

    Raises:
        ValueError: The schema uses a keyword that is not checked here.
    """
    return list(_Check(schema).run(value, schema, "$"))


class _Check:
    """Walks value and schema together; one method a keyword."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root

    def run(self, value: Any, schema: Mapping[str, Any], where: str) -> Iterator[str]:
        for keyword, expected in schema.items():
            if keyword in _ANNOTATIONS:
                continue
            check = getattr(self, "on_" + keyword.lstrip("$"), None)
            if check is None:
                raise ValueError(
                    f"Schema keyword {keyword!r} is not checked; expected one that {__name__} "
                    "knows. Add a method for it there."
                )
            yield from check(value, expected, where, schema)

    def on_ref(self, value: Any, ref: str, where: str, _: Any) -> Iterator[str]:
        yield from self.run(value, self.root["$defs"][ref.removeprefix("#/$defs/")], where)

    def on_type(self, value: Any, names: str | list[str], where: str, _: Any) -> Iterator[str]:
        wanted = [names] if isinstance(names, str) else names
        if not any(_is(value, name) for name in wanted):
            yield f"{where} is {_short(value)}, expected {' or '.join(wanted)}"

    def on_const(self, value: Any, constant: Any, where: str, _: Any) -> Iterator[str]:
        if not _same(value, constant):
            yield f"{where} is {_short(value)}, expected {constant!r}"

    def on_enum(self, value: Any, choices: list[Any], where: str, _: Any) -> Iterator[str]:
        if not any(_same(value, choice) for choice in choices):
            yield f"{where} is {_short(value)}, expected one of {choices}"

    def on_pattern(self, value: Any, pattern: str, where: str, _: Any) -> Iterator[str]:
        if isinstance(value, str) and not _compiled(pattern).search(value):
            yield f"{where} is {_short(value)}, expected a match of {pattern}"

    def on_minimum(self, value: Any, least: float, where: str, _: Any) -> Iterator[str]:
        if _is(value, "number") and value < least:
            yield f"{where} is {_short(value)}, expected at least {least}"

    def on_minLength(self, value: Any, least: int, where: str, _: Any) -> Iterator[str]:  # noqa: N802
        if isinstance(value, str) and len(value) < least:
            yield f"{where} is {_short(value)}, expected at least {least} characters"

    def on_maxLength(self, value: Any, most: int, where: str, _: Any) -> Iterator[str]:  # noqa: N802
        if isinstance(value, str) and len(value) > most:
            yield f"{where} is {_short(value)}, expected at most {most} characters"

    def on_minItems(self, value: Any, least: int, where: str, _: Any) -> Iterator[str]:  # noqa: N802
        if isinstance(value, list) and len(value) < least:
            yield f"{where} has {len(value)} items, expected at least {least}"

    def on_minProperties(self, value: Any, least: int, where: str, _: Any) -> Iterator[str]:  # noqa: N802
        if isinstance(value, dict) and len(value) < least:
            yield f"{where} has {len(value)} members, expected at least {least}"

    def on_required(self, value: Any, names: list[str], where: str, _: Any) -> Iterator[str]:
        if isinstance(value, dict):
            yield from (f"{where}.{name} is missing" for name in names if name not in value)

    def on_properties(
        self, value: Any, members: Mapping[str, Any], where: str, _: Any
    ) -> Iterator[str]:
        if isinstance(value, dict):
            for name, schema in members.items():
                if name in value:
                    yield from self.run(value[name], schema, f"{where}.{name}")

    def on_additionalProperties(  # noqa: N802
        self, value: Any, other: Any, where: str, schema: Mapping[str, Any]
    ) -> Iterator[str]:
        if not isinstance(value, dict):
            return
        for name in value.keys() - schema.get("properties", {}).keys():
            if other is False:
                yield f"{where}.{name} is not a field of this schema"
            else:
                yield from self.run(value[name], other, f"{where}.{name}")

    def on_items(self, value: Any, item: Mapping[str, Any], where: str, _: Any) -> Iterator[str]:
        if isinstance(value, list):
            for index, element in enumerate(value):
                yield from self.run(element, item, f"{where}[{index}]")


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
