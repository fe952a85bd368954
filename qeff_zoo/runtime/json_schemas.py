# SPDX-License-Identifier: Apache-2.0
"""JSON Schemas for llguidance: annotations that it does not know are removed, and keywords replaced by narrower ones.

Whatever the narrower schema accepts, the given one accepts as well. Keywords without such a form stay, and llguidance
rejects them by name.
"""

import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import permutations
from typing import Any

Schema = dict[str, Any]

#: Keywords whose values are schemas: one, a list, or several by name. Those of conditions are not narrowed.
_SINGLE = ("items", "additionalProperties", "additionalItems")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
#: Largest numbers that llguidance computes ranges of.
_BOUNDS = {"integer": float(1 << 62), "number": 1e18}
_MAX_FLOAT = 1e308
_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_LOOK_AROUND = re.compile(r"\(\?<?[=!]")
#: Maximum number of arrays of different items that are listed one by one.
_MAX_ARRAYS = 2000
#: Keywords beside which the items of an array are listed.
_OF_LISTED = {
    "type", "items", "uniqueItems", "minItems", "maxItems", "title", "description", "default", "examples", "$comment",
}  # fmt: skip


def narrowed(schema: Any, root: Any = None) -> Any:
    """Return a schema in the keywords of llguidance, as far as they can express it.

    Args:
        schema: A JSON Schema, or a part of one.
        root: Schema with the definitions; None for the schema itself.
    """
    if not isinstance(schema, Mapping):
        return schema
    root = schema if root is None else root
    found = {**schema}
    for key in _SINGLE:
        if isinstance(found.get(key), Mapping):
            found[key] = narrowed(found[key], root)
    for key in _LISTS:
        if isinstance(found.get(key), list):
            found[key] = [narrowed(one, root) for one in found[key]]
    for key in _NAMED:
        if isinstance(found.get(key), Mapping):
            found[key] = {name: narrowed(one, root) for name, one in found[key].items()}
    for rewrite in (_format, _bounds, _alternatives, _names, _dependents, _closed):
        rewrite(found)
    return _different(found, root)


def _format(schema: Schema) -> None:
    """Remove an unknown format, which is an annotation by the specification."""
    name = schema.get("format")
    if isinstance(name, str) and not _is_format(name):
        del schema["format"]


@lru_cache(256)
def _is_format(name: str) -> bool:
    from llguidance import LLMatcher

    source = LLMatcher.grammar_from_json_schema({"type": "string", "format": name})
    return not LLMatcher.validate_grammar(source)


def _bounds(schema: Schema) -> None:
    """Round bounds inwards: to numbers of llguidance, which are float64, and to its largest ones."""
    given = schema.get("type", "number")
    kinds = given if isinstance(given, list) else [given]
    for kind in [one for one in _BOUNDS if one in kinds]:
        for keys, inward in ((_LOWER, math.inf), (_UPPER, -math.inf)):
            for key in keys:
                if _is_number(schema.get(key)):
                    schema[key] = _rounded(schema[key], inward, _BOUNDS[kind])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _rounded(bound: float, inward: float, most: float) -> float:
    if abs(bound) > most and (bound > 0) != (inward > 0):
        return math.copysign(most, bound)
    if abs(bound) <= 1 << 53 or abs(bound) > _MAX_FLOAT:
        return bound
    nearest = float(bound)
    outside = nearest < bound if inward > 0 else nearest > bound
    return math.nextafter(nearest, inward) if outside else nearest


def _alternatives(schema: Schema) -> None:
    """Remove alternatives whose pattern llguidance cannot read, such as that of a decimal number's text."""
    if isinstance(options := schema.get("anyOf"), list):
        schema["anyOf"] = [one for one in options if not _looks_around(one)] or options


def _looks_around(schema: Any) -> bool:
    pattern = schema.get("pattern") if isinstance(schema, Mapping) else None
    return isinstance(pattern, str) and _LOOK_AROUND.search(pattern) is not None


def _names(schema: Schema) -> None:
    """Replace `propertyNames` of an object without other properties."""
    names = schema.get("propertyNames")
    if not isinstance(names, Mapping) or {"properties", "patternProperties"} & schema.keys():
        return
    values = schema.get("additionalProperties", True)
    given = names.get("enum")
    known = [name for name in given if isinstance(name, str)] if isinstance(given, list) else []
    rest = names.keys() - {"enum", "pattern", "type", "title", "description"}
    if rest or ("enum" in names) == ("pattern" in names):
        return
    if known:
        schema["properties"] = dict.fromkeys(known, values)
    elif isinstance(names.get("pattern"), str):
        schema["patternProperties"] = {names["pattern"]: values}
    else:
        return
    del schema["propertyNames"]
    schema["additionalProperties"] = False


def _dependents(schema: Schema) -> None:
    """Require properties that others require, whether those are there or not."""
    dependents = schema.get("dependentRequired")
    required = schema.get("required", [])
    if not isinstance(dependents, Mapping):
        return
    lists = [required, *dependents.values()]
    names = [name for several in lists if isinstance(several, list) for name in several]
    if all(isinstance(one, list) for one in lists) and all(isinstance(one, str) for one in names):
        schema["required"] = [*dict.fromkeys(names)]
        del schema["dependentRequired"]


def _closed(schema: Schema) -> None:
    """Replace `unevaluatedProperties` and `unevaluatedItems` of a schema that evaluates all of them itself."""
    if {"allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas", "contains"} & schema.keys():
        return
    for key, closing in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):  # fmt: skip
        if key in schema:
            schema.setdefault(closing, schema[key])
            del schema[key]


def _different(schema: Schema, root: Any) -> Schema:
    """Replace `uniqueItems`: no keyword if it is false, or if there is one item; all arrays of a few known values."""
    unique = schema.get("uniqueItems")
    most, least = schema.get("maxItems", _MAX_ARRAYS), schema.get("minItems", 0)
    if not (isinstance(unique, bool) and isinstance(most, int) and isinstance(least, int)):
        return schema
    if not unique or most <= 1:
        return {key: value for key, value in schema.items() if key != "uniqueItems"}
    values = _values(schema.get("items"), root)
    if values is None or schema.keys() - _OF_LISTED:
        return schema
    sizes = range(least, min(most, len(values)) + 1)
    if not sizes or sum(math.perm(len(values), size) for size in sizes) > _MAX_ARRAYS:
        return schema
    return {"enum": [[*one] for size in sizes for one in permutations(values, size)]}


def _values(schema: Any, root: Any) -> list[Any] | None:
    """Return all different values of a schema; None if they are not listed there."""
    schema = _resolved(schema, root)
    if not isinstance(schema, Mapping):
        return None
    if schema.keys() - {"enum", "const", "type", "title", "description"}:
        return None
    if "const" in schema:
        return [schema["const"]]
    if isinstance(given := schema.get("enum"), list):
        return [*_without_repetition(given)]
    by_type: dict[str, list[Any]] = {"boolean": [False, True], "null": [None]}
    return by_type.get(str(schema.get("type")))


def _without_repetition(values: list[Any]) -> Iterator[Any]:
    known: list[tuple[bool, Any]] = []
    for value in values:
        key = (isinstance(value, bool), value)
        if key not in known:
            known.append(key)
            yield value


def _resolved(schema: Any, root: Any) -> Any:
    """Return a definition of a schema for a reference to it alone."""
    if not isinstance(schema, Mapping) or [*schema] != ["$ref"]:
        return schema
    found = root
    for part in str(schema["$ref"]).removeprefix("#/").split("/"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
