# SPDX-License-Identifier: Apache-2.0
"""JSON Schemas that lie beside the code, and quick readers of them.

In: the path of a schema, and a value. Out: what violates the schema. Functions
that the schema is compiled into accept a valid value in microseconds. For the others jsonschema is imported, which
takes a hundred times as long, and describes the violation.
"""

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from jsonschema import ValidationError
    from jsonschema.protocols import Validator

_Check: TypeAlias = Callable[[Any], bool]

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_KEYWORDS = {
    *("$schema", "$id", "$defs", "title", "description", "type", "enum", "const"),
    *("pattern", "minLength", "maxLength", "minimum", "maximum", "items", "minItems", "maxItems"),
    *("properties", "additionalProperties", "propertyNames", "required"),
    *("minProperties", "maxProperties"),
}


def violations(path: Path, value: Any) -> "Iterator[ValidationError]":
    """Find what violates a schema, for which 1.0 is no integer.

    Args:
        path: Path of the schema.
        value: Any JSON.
    """
    if not _compiled(path)(value):
        yield from validator(path).iter_errors(value)


@cache
def _schema(path: Path) -> Any:
    schema = json.loads(path.read_text(encoding="utf-8"))
    return _inlined(schema, schema["$defs"])


@cache
def validator(path: Path) -> "Validator":
    """Return jsonschema's validator of a schema."""
    from jsonschema import Draft202012Validator, validators

    kinds = Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda _, value: type(value) is int
    )
    strict = validators.extend(Draft202012Validator, type_checker=kinds)  # type: ignore[no-untyped-call]
    checker: Validator = strict(_schema(path))
    return checker


def _inlined(part: Any, defined: dict[str, Any]) -> Any:
    """Put definitions where the schema refers to them: to look each up takes a third of the time."""
    if isinstance(part, list):
        return [_inlined(item, defined) for item in part]
    if not isinstance(part, dict):
        return part
    name = part.get("$ref", "").removeprefix("#/$defs/")
    own = {key: item for key, item in part.items() if key not in ("$ref", "$defs")}
    return {key: _inlined(item, defined) for key, item in {**defined.get(name, {}), **own}.items()}


# --- compiling ---------------------------------------------------------------------------------


@cache
def _compiled(path: Path) -> _Check:
    return _check(_schema(path))


def _check(schema: Any) -> _Check:
    """Compile a schema into a function that accepts no value which violates it."""
    if isinstance(schema, bool):
        return lambda _: schema
    if unknown := schema.keys() - _KEYWORDS:
        raise ValueError(
            f"Cannot compile a schema with {sorted(unknown)}; expected known keywords."
        )
    if "const" in schema or "enum" in schema:
        values = {(type(value), value) for value in schema.get("enum", [schema.get("const")])}
        return lambda value: not isinstance(value, list | dict) and (type(value), value) in values
    names = schema.get("type", [*_TYPES])
    kinds = {
        kind: _OF_TYPE.get(kind, _anything)(schema)
        for name in ([names] if isinstance(names, str) else names)
        for kind in _TYPES[name]
    }

    def check(value: Any) -> bool:
        kind = kinds.get(type(value))
        return kind is not None and kind(value)

    return check


def _anything(_: dict[str, Any]) -> _Check:
    return lambda _: True


def _text(schema: dict[str, Any]) -> _Check:
    least, most = schema.get("minLength", 0), schema.get("maxLength", float("inf"))
    search = re.compile(schema.get("pattern", "")).search
    return lambda value: least <= len(value) <= most and search(value) is not None


def _number(schema: dict[str, Any]) -> _Check:
    least, most = schema.get("minimum", float("-inf")), schema.get("maximum", float("inf"))
    return lambda value: least <= value <= most


def _list(schema: dict[str, Any]) -> _Check:
    least, most = schema.get("minItems", 0), schema.get("maxItems", float("inf"))
    item = _check(schema.get("items", True))
    return lambda value: least <= len(value) <= most and all(map(item, value))


def _object(schema: dict[str, Any]) -> _Check:
    least, most = schema.get("minProperties", 0), schema.get("maxProperties", float("inf"))
    required = frozenset(schema.get("required", ()))
    named = {name: _check(each) for name, each in schema.get("properties", {}).items()}
    others = _check(schema.get("additionalProperties", True))
    name_of = _check(schema.get("propertyNames", True))

    def check(value: dict[str, Any]) -> bool:
        return (
            least <= len(value) <= most
            and required <= value.keys()
            and all(map(name_of, value))
            and all(named.get(name, others)(member) for name, member in value.items())
        )

    return check


_OF_TYPE: dict[type, Callable[[dict[str, Any]], _Check]] = {
    str: _text, int: _number, float: _number, list: _list, dict: _object,
}  # fmt: skip
