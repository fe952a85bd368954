# SPDX-License-Identifier: Apache-2.0
"""Keywords of JSON Schema that choose among schemas, as `anyOf`: `not`, `if`, and `oneOf` whose schemas overlap.

Source: https://json-schema.org/draft/2020-12/json-schema-core#section-10.2
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from qeff_zoo.runtime.text.schema_negation import TYPES, Negation, Schema
from qeff_zoo.runtime.text.schema_references import resolved

#: Maximum number of alternatives of a `oneOf`, each of which excludes all others.
_MOST = 16
_DEEPEST = 8  # references


def also(schema: Schema, others: list[Any]) -> None:
    """Add schemas that hold beside the keywords of a schema."""
    if others:
        known = schema.get("allOf", [])
        schema["allOf"] = [*(known if isinstance(known, list) else [known]), *others]


def with_alternatives(schema: Schema, negation: Negation) -> None:
    """Replace `not`, `if` and `oneOf` where the negation of their schemas can be expressed.

    Args:
        schema: JSON Schema, which is changed.
        negation: Negation of the parts of the whole schema.
    """
    for rewrite in (_switched, _without, _conditional, _exclusive):
        rewrite(schema, negation)


def _either(schema: Schema, alternatives: list[Any]) -> None:
    """Add alternatives to a schema, as its own keyword if it has none yet."""
    if not alternatives:
        also(schema, [False])
    elif "anyOf" in schema:
        also(schema, [{"anyOf": alternatives}])
    else:
        schema["anyOf"] = alternatives


def _without(schema: Schema, negation: Negation) -> None:
    alternatives = negation.of(schema["not"]) if "not" in schema else None
    if alternatives is not None:
        del schema["not"]
        also(schema, [{"anyOf": alternatives} if alternatives else False])


def _conditional(schema: Schema, negation: Negation) -> None:
    """Replace `if` by its outcomes; if its negation has no keywords, `then` holds in the other outcome too."""
    if not {"if", "then", "else"} & schema.keys():
        return
    condition = schema.pop("if", None)
    then, otherwise = schema.pop("then", True), schema.pop("else", True)
    if condition is None or (then is True and otherwise is True):
        return
    unmet = negation.of(condition)
    alternatives: list[Any] = [{"allOf": [condition, then]}]
    if unmet is None:  # which of them evaluates a key is unknown, see `schema_unevaluated`
        alternatives.append({"anyOf": [{"allOf": [then, otherwise]}]})
    elif unmet:
        alternatives.append({"allOf": [{"anyOf": unmet}, otherwise]})
    _either(schema, alternatives)


@dataclass(frozen=True)
class _Case:
    """Condition of one property.

    Args:
        key: Name of the property.
        values: Texts of which it is one.
        when_absent: Whether the condition is met without the property.
        then: Schema of the object if the condition is met.
        otherwise: Schema of it if not.
    """

    key: str
    values: frozenset[str]
    when_absent: bool
    then: Any
    otherwise: Any


def _case(schema: Any) -> _Case | None:
    """Return the condition of a schema that is no more than one about the texts of a property."""
    if not isinstance(schema, Mapping) or schema.keys() - {"if", "then", "else"}:
        return None
    condition = schema.get("if")
    if not isinstance(condition, Mapping) or condition.keys() - {"properties", "required", "type"}:
        return None
    properties, required = condition.get("properties"), condition.get("required", [])
    if not isinstance(properties, Mapping) or len(properties) != 1:
        return None
    ((key, wanted),) = properties.items()
    known = isinstance(wanted, Mapping) and not wanted.keys() - {"const", "enum", "type"}
    values = _texts(wanted) if known and wanted.get("type", "string") == "string" else None
    if values is None or required not in ([], [key]) or condition.get("type", "object") != "object":
        return None
    then, otherwise = schema.get("then", True), schema.get("else", True)
    return _Case(key, frozenset(values), not required, then, otherwise)


def _switched(schema: Schema, negation: Negation) -> None:
    """Replace conditions about one property of an object: an alternative for each of its values, instead of products.

    The conditions keep their paths, which references may name.
    """
    several = schema.get("allOf")
    if schema.get("type") != "object" or not isinstance(several, list):
        return
    by_key: dict[str, dict[int, _Case]] = {}
    for at, one in enumerate(several):
        if case := _case(one):
            by_key.setdefault(case.key, {})[at] = case
    for key, cases in by_key.items():
        values = [value for alternative in cases.values() for value in sorted(alternative.values)]
        has_room = len(cases) > 1 and negation.has_room(len(cases) ** 2)
        if not has_room or len({*values}) < len(values):
            continue
        alternatives = [
            _outcome({"properties": {key: _listed(value.values)}, "required": [key]}, cases, {at})
            for at, value in cases.items()
        ]
        known = schema.get("properties")
        own = _texts(known.get(key)) if isinstance(known, Mapping) else None
        if own is None or own - {*values}:
            wanted = {"properties": {key: {"not": _listed(values)}}, "required": [key]}
            alternatives.append(_outcome(wanted, cases, set()))
        if key not in _required(schema):
            met = {at for at, value in cases.items() if value.when_absent}
            alternatives.append(_outcome({"properties": {key: False}}, cases, met))
        rest = schema["allOf"]
        schema["allOf"] = [True if at in cases else one for at, one in enumerate(rest)]
        _either(schema, alternatives)


def _listed(values: Iterable[str]) -> Schema:
    """Return the schema of some values, as JSON."""
    return {"enum": [json.loads(value) for value in sorted(values)]}


def _outcome(wanted: Schema, cases: Mapping[int, _Case], met: set[int]) -> Schema:
    """Return a schema of objects by which some conditions are met, and the others are not."""
    parts = [case.then if at in met else case.otherwise for at, case in cases.items()]
    return {"allOf": [wanted, *[part for part in parts if part is not True]]}


def _exclusive(schema: Schema, negation: Negation) -> None:
    """Replace `oneOf` by alternatives that exclude each other, unless types or listed texts make them do so."""
    options = schema.get("oneOf")
    if not isinstance(options, list) or not 1 < len(options) <= _MOST:
        return
    if all(_are_apart(*pair, negation.root) for pair in combinations(options, 2)):
        return
    if not negation.has_room(len(options) ** 2):
        return
    negations = [negation.of(one) for one in options]
    alternatives = []
    for at, option in enumerate(options):
        others = [one for other, one in enumerate(negations) if other != at]
        if all(others):
            alternatives.append({"allOf": [option, *({"anyOf": other} for other in others)]})
    if alternatives or None not in negations:
        del schema["oneOf"]
        _either(schema, alternatives)


def _are_apart(one: Any, other: Any, root: Any) -> bool:
    """Whether no value has two schemas, by their types, their values, or those of a property."""
    one, other = _definition(one, root), _definition(other, root)
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return False
    if not _types(one) & _types(other):
        return True
    first, second = _texts(one), _texts(other)
    if first is not None and second is not None and not first & second:
        return True
    shared = _required(one) & _required(other)
    if _types(one) != {"object"} or _types(other) != {"object"}:
        return False
    of_one, of_other = one.get("properties"), other.get("properties")
    if not isinstance(of_one, Mapping) or not isinstance(of_other, Mapping):
        return False
    names = shared & of_one.keys() & of_other.keys()
    known = [(_texts(of_one[name]), _texts(of_other[name])) for name in names]
    return any(a is not None and b is not None and not a & b for a, b in known)


def _definition(schema: Any, root: Any) -> Any:
    for _ in range(_DEEPEST):
        if not isinstance(schema, Mapping) or "$ref" not in schema:
            break
        schema = resolved(schema["$ref"], root)
    return schema


def _types(schema: Mapping[str, Any]) -> set[str]:
    given = schema.get("type", [*TYPES])
    several = given if isinstance(given, list) else [given]
    types = {item for item in several if isinstance(item, str)}
    return types | ({"integer"} if "number" in types else set())


def _texts(schema: Any) -> set[str] | None:
    """Return the values of a schema that are listed, if all of them are texts, which are equal if written alike."""
    if not isinstance(schema, Mapping):
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        return None
    return {json.dumps(value) for value in values}


def _required(schema: Mapping[str, Any]) -> set[str]:
    names = schema.get("required")
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()
