# SPDX-License-Identifier: Apache-2.0
"""JSON Schemas for llguidance: annotations that it does not know are removed, and keywords replaced by narrower ones.

Whatever the narrower schema accepts, the given one accepts as well. Keywords without such a form stay, and llguidance
rejects them by name.
"""

import json
import math
import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import permutations
from types import MappingProxyType
from typing import Any

from qeff_zoo.runtime.text.distinct_items import identity
from qeff_zoo.runtime.text.schema_alternatives import also, with_alternatives
from qeff_zoo.runtime.text.schema_negation import Negation, Schema
from qeff_zoo.runtime.text.schema_patterns import with_classes, with_look_ahead
from qeff_zoo.runtime.text.schema_references import resolved
from qeff_zoo.runtime.text.schema_unevaluated import without_unevaluated

#: Keywords whose values are schemas: one, a list, or several by name.
_SINGLE = ("items", "additionalProperties", "additionalItems")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
#: Largest numbers that llguidance computes ranges of.
_BOUNDS = {"integer": float(1 << 62), "number": 1e18}
_MAX_FLOAT = 1e308
_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_ANNOTATIONS = frozenset(
    ("type", "title", "description", "default", "examples", "deprecated", "$comment")
)
#: Patterns of formats; the days of a date are those of every month.
_FORMATS = MappingProxyType(
    {
        "date": r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])$",
        "uuid": "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
    }
)
_LOOK_AROUND = re.compile(r"\(\?<?[=!]")
#: Keywords whose value may be null; another keyword that is null counts as absent.
_NULLABLE = {"const", "default", "example"}
_SIZES = (
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "minContains",
    "maxContains",
)
#: Maximum number of arrays of different items that are listed one by one.
_MAX_ARRAYS = 2000
_MAX_CONTAINED = 100  # items of `minContains`
#: Maximum number of properties with dependents, each of which doubles the alternatives of the object.
_MAX_DEPENDENTS = 4
#: Keywords beside which the items of an array are listed.
_OF_LISTED = {
    "type", "items", "uniqueItems", "minItems", "maxItems", "title", "description", "default", "examples", "$comment",
}  # fmt: skip


def narrowed(schema: Any) -> Any:
    """Return a schema in the keywords of llguidance, as far as they can express it.

    Args:
        schema: A JSON Schema.
    """
    return _narrowed(schema, Negation(schema))


def _narrowed(schema: Any, negation: Negation) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    root = negation.root
    changed = {key: value for key, value in schema.items() if value is not None or key in _NULLABLE}
    _excluded(changed, root)
    with_alternatives(changed, negation)
    without_unevaluated(changed, root)
    _containing(changed, negation)
    for rewrite in (_dialect, _sizes, _dependents, with_look_ahead, _counted):
        rewrite(changed)
    for key in _SINGLE:
        if isinstance(changed.get(key), Mapping):
            changed[key] = _narrowed(changed[key], negation)
    for key in _LISTS:
        if isinstance(changed.get(key), list):
            changed[key] = [_narrowed(one, negation) for one in changed[key]]
    for key in _NAMED:
        if isinstance(changed.get(key), Mapping):
            changed[key] = {
                name: _narrowed(value, negation) for name, value in changed[key].items()
            }
    for rewrite in (_format, _bounds, _alternatives, with_classes):
        rewrite(changed)
    _names(changed, root)
    return _different(changed, root)


def without_distinct(schema: Any) -> Any:
    """Return a schema whose arrays may have equal items, in all parts that `narrowed` reads."""
    if not isinstance(schema, Mapping):
        return schema
    changed = {
        key: entry for key, entry in schema.items() if key != "uniqueItems" or entry is not True
    }
    for key in (*_SINGLE, *_LISTS, *_NAMED):
        value = changed.get(key)
        if isinstance(value, list):
            changed[key] = [*map(without_distinct, value)]
        elif isinstance(value, Mapping) and key in _NAMED:
            changed[key] = {name: without_distinct(entry) for name, entry in value.items()}
        elif isinstance(value, Mapping):
            changed[key] = without_distinct(value)
    return changed


def _dialect(schema: Schema) -> None:
    """Remove the name of another dialect than JSON Schema's own, such as that of OpenAPI."""
    name = schema.get("$schema")
    if isinstance(name, str) and not re.match(r"https?://json-schema\.org/", name):
        del schema["$schema"]


def _sizes(schema: Schema) -> None:
    """Write sizes such as 2.0 as integers."""
    for key in _SIZES:
        if isinstance(size := schema.get(key), float) and size.is_integer():
            schema[key] = int(size)


def _containing(schema: Schema, negation: Negation) -> None:
    """Replace `contains`: the first items after `prefixItems` have its schema, and with `maxContains` no others."""
    _sizes(schema)
    if "contains" not in schema:
        schema.pop("minContains", None)
        schema.pop("maxContains", None)
        return
    least, most = schema.get("minContains", 1), schema.get("maxContains")
    wanted, first = schema["contains"], schema.get("prefixItems", [])
    others = negation.of(wanted) if most is not None else []
    size, rest = schema.get("minItems", 0), schema.get("items", True)
    has_sizes = all(type(one) is int for one in (least, size, 0 if most is None else most))
    if others is None or not has_sizes or not 0 <= least <= _MAX_CONTAINED:
        return
    if not isinstance(first, list) or not isinstance(rest, bool | Mapping):
        return
    if not negation.has_room(least):
        return
    for key in ("contains", "minContains", "maxContains"):
        schema.pop(key, None)
    if most is not None:
        other = {"anyOf": others} if others else False
        first = [{"allOf": [one, other]} for one in first]
        schema["items"] = {"allOf": [rest, other]}
    schema["prefixItems"] = [*first, *[{"allOf": [rest, wanted]}] * least]
    schema["minItems"] = max(size, len(first) + least if least else 0)
    if most is not None and most < least:
        also(schema, [False])


def _counted(schema: Schema) -> None:
    """Close an object with properties and a number of them, which llguidance counts in closed objects alone."""
    names = schema.get("properties")
    if {"minProperties", "maxProperties"} & schema.keys() and isinstance(names, Mapping) and names:
        required = schema.get("required")
        if not isinstance(required, list) or not all(name in required for name in names):
            schema.setdefault("additionalProperties", False)


def _format(schema: Schema) -> None:
    """Remove an unknown format, which is an annotation by the specification, and that of times beside a pattern.

    zod's pattern of a time has no zone, and llguidance's format requires one.
    """
    name = schema.get("format")
    is_local = name == "time" and "pattern" in schema
    if isinstance(name, str) and (is_local or not _is_format(name)):
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
    for kind in [bound for bound in _BOUNDS if bound in kinds]:
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
    """Close alternatives whose pattern llguidance cannot read, such as that of a decimal number's text.

    They keep their paths, which references may name.
    """
    if isinstance(options := schema.get("anyOf"), list) and not all(map(_looks_around, options)):
        schema["anyOf"] = [False if _looks_around(option) else option for option in options]


def _looks_around(schema: Any) -> bool:
    pattern = schema.get("pattern") if isinstance(schema, Mapping) else None
    return isinstance(pattern, str) and _LOOK_AROUND.search(pattern) is not None


def _names(schema: Schema, root: Any) -> None:
    """Replace `propertyNames`."""
    if "propertyNames" not in schema:
        return
    names = _definition(schema["propertyNames"], root)
    names = {**names} if isinstance(names, Mapping) else names
    if isinstance(names, dict):
        with_classes(names)
    known, pattern = _values(names, root), _pattern(names)
    if {"properties", "patternProperties"} & schema.keys():
        target: Schema = {}
    else:
        target = schema
    values = target.get("additionalProperties", True)
    if names is False:
        target["properties"] = {}
    elif known is not None:
        target["properties"] = {name: values for name in known if isinstance(name, str)}
    elif pattern is not None:
        target["patternProperties"] = {pattern: values}
    elif names is not True:
        return
    del schema["propertyNames"]
    if names is not True:
        target["additionalProperties"] = False
    if target is not schema:
        also(schema, [target])


def _pattern(names: Any) -> str | None:
    """Return the pattern of a schema of texts; None without a keyword, or with several."""
    if not isinstance(names, Mapping):
        return None
    least, most = names.get("minLength", 0), names.get("maxLength", "")
    lengths = {"minLength", "maxLength"} & names.keys()
    match [*(names.keys() - _ANNOTATIONS - {*lengths})]:
        case ["pattern"] if not lengths and isinstance(names["pattern"], str):
            return names["pattern"]
        case ["format"] if not lengths and isinstance(names["format"], str):
            return _FORMATS.get(names["format"])
        case [] if not lengths and names.get("type") == "string":
            return ""
        case [] if lengths and isinstance(least, int) and isinstance(most, int | str):
            return f"^.{{{least},{most}}}$"
    return None


def _dependents(schema: Schema) -> None:
    """Replace what properties require: they are absent, or other properties are there, or a schema of the object holds.

    Of many properties, what they require is always required.
    """
    for name in ("dependentRequired", "dependentSchemas", "dependencies"):
        dependents = schema.get(name)
        if not isinstance(dependents, Mapping):
            continue
        wanted = [*map(_dependent, dependents.values())]
        if None in wanted:
            continue
        del schema[name]
        if len(wanted) > _MAX_DEPENDENTS:
            also(schema, wanted)
            continue
        for key, one in zip(dependents, wanted, strict=True):
            also(schema, [{"anyOf": [{"properties": {key: False}}, one]}])


def _dependent(given: Any) -> Any:
    """Return the schema of an object by which a list of names is there; None for what is neither list nor schema."""
    if isinstance(given, list) and all(isinstance(one, str) for one in given):
        return {"required": given}
    return given if isinstance(given, bool | Mapping) else None


def _excluded(schema: Schema, root: Any) -> None:
    """Leave the values of `not` out of a list of values."""
    if not isinstance(schema.get("not"), Mapping):
        return
    others = {key: value for key, value in schema.items() if key != "not"}
    values, wrong = _values(others, root), _values(schema["not"], root)
    if values is not None and wrong is not None:
        del schema["not"]
        schema.pop("const", None)
        schema["enum"] = [value for value in values if not _is_in(value, wrong)]


def _is_in(value: Any, values: list[Any]) -> bool:
    """Return whether values have a value, as JSON compares them: true is not 1."""
    return any(
        item == value and isinstance(item, bool) == isinstance(value, bool) for item in values
    )


def _different(schema: Schema, root: Any) -> Schema:
    """Replace `uniqueItems`: no keyword if it is false, or if there is one item; all arrays of a few known values.

    An array of more known values has at most as many items, so that llguidance rejects a larger `minItems`.
    """
    unique = schema.get("uniqueItems")
    most, least = schema.get("maxItems", _MAX_ARRAYS), schema.get("minItems", 0)
    if not (isinstance(unique, bool) and isinstance(most, int) and isinstance(least, int)):
        return schema
    if not unique or most <= 1:
        return {key: value for key, value in schema.items() if key != "uniqueItems"}
    values = _values(schema.get("items"), root)
    if values is None or schema.keys() - _OF_LISTED:
        return schema
    most = min(most, len(values))
    sizes = range(least, most + 1)
    if not sizes or sum(math.perm(len(values), size) for size in sizes) > _MAX_ARRAYS:
        return {**schema, "maxItems": most}
    return {"enum": [[*one] for size in sizes for one in permutations(values, size)]}


def _values(schema: Any, root: Any) -> list[Any] | None:
    """Return all different values of a schema; None if they are not listed there."""
    schema = _definition(schema, root)
    if not isinstance(schema, Mapping):
        return None
    if schema.keys() - {"enum", "const", *_ANNOTATIONS}:
        return None
    if "const" in schema:
        return [schema["const"]]
    if isinstance(given := schema.get("enum"), list):
        return _without_repetition(given)
    by_type: dict[str, list[Any]] = {"boolean": [False, True], "null": [None]}
    return by_type.get(str(schema.get("type")))


def _without_repetition(values: list[Any]) -> list[Any]:
    known: dict[str, Any] = {}
    for value in values:
        known.setdefault(identity(json.dumps(value).encode()), value)
    return [*known.values()]


def _definition(schema: Any, root: Any) -> Any:
    """Return the definition of a schema that is a reference alone; other schemas as they are."""
    if not isinstance(schema, Mapping) or [*schema] != ["$ref"]:
        return schema
    return resolved(schema["$ref"], root)
