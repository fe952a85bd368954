# SPDX-License-Identifier: Apache-2.0
"""`unevaluatedProperties` and `unevaluatedItems` as `additionalProperties` and `items`, beside other schemas too.

Keys and items count as evaluated if a schema that surely holds names them: the schema itself, those of `allOf` and
`$ref`, and in each alternative of its `anyOf` that alternative's.

Source: https://json-schema.org/draft/2020-12/json-schema-core#section-11
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from qeff_zoo.runtime.text.schema_alternatives import also
from qeff_zoo.runtime.text.schema_negation import Schema
from qeff_zoo.runtime.text.schema_references import resolved

_BESIDE = {"allOf", "anyOf", "oneOf", "$ref"}
_MOST = 200  # schemas of one object


def without_unevaluated(schema: Schema, root: Any) -> None:
    """Replace both keywords.

    Args:
        schema: JSON Schema, which is changed.
        root: Schema with the definitions.
    """
    for key, closing, close in (
        ("unevaluatedProperties", "additionalProperties", _closed_object),
        ("unevaluatedItems", "items", _closed_array),
    ):
        if key not in schema:
            continue
        rest = schema.pop(key)
        if closing in schema:
            continue  # all are evaluated
        if not _BESIDE & schema.keys():
            schema[closing] = rest
            continue
        _close(schema, rest, root, close)


def _close(
    schema: Schema, rest: Any, root: Any, close: Callable[[list[Mapping[str, Any]], Any], Any]
) -> None:
    name = next((one for one in ("anyOf", "oneOf") if isinstance(schema.get(one), list)), None)
    own = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf")}
    sure = [*_parts(own, root)]
    if name is None:
        also(schema, [close(sure, rest)])
        return
    schema[name] = [
        {"allOf": [option, close([*sure, *_parts(option, root)], rest)]} for option in schema[name]
    ]


def _parts(schema: Any, root: Any) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and all others that hold where it does."""
    visited, waiting = set[int](), [schema]
    while waiting and len(visited) < _MOST:
        part = waiting.pop()
        if not isinstance(part, Mapping) or id(part) in visited:
            continue
        visited.add(id(part))
        yield part
        others = part.get("allOf")
        waiting += others if isinstance(others, list) else []
        waiting.append(resolved(part.get("$ref"), root))


def _closed_object(parts: list[Mapping[str, Any]], rest: Any) -> Any:
    """Return a schema by which the keys that no part names have a schema."""
    if any({"additionalProperties", "unevaluatedProperties"} & part.keys() for part in parts):
        return True
    closed: Schema = {"additionalProperties": rest}
    for name in ("properties", "patternProperties"):
        named = [one for part in parts if isinstance(one := part.get(name), Mapping)]
        keys = {key: True for entry in named for key in entry}
        if keys:
            closed[name] = keys
    return closed


def _closed_array(parts: list[Mapping[str, Any]], rest: Any) -> Any:
    """Return a schema by which the items after those of all parts have a schema."""
    if any({"items", "unevaluatedItems"} & part.keys() for part in parts):
        return True
    firsts = [one for part in parts if isinstance(one := part.get("prefixItems"), list)]
    longest = max(map(len, firsts), default=0)
    return {"prefixItems": [True] * longest, "items": rest} if longest else {"items": rest}
