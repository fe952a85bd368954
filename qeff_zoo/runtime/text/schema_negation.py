# SPDX-License-Identifier: Apache-2.0
"""Negation of JSON Schemas, for a library without `not`: schemas that hold where another one does not.

A keyword restricts values of one type, so what violates it has that type. Formats have no negation here.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from qeff_zoo.runtime.text.pattern_negation import pattern_without, without_match
from qeff_zoo.runtime.text.schema_references import resolved

Schema = dict[str, Any]

#: Keywords that restrict nothing by themselves.
ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$defs",
     "definitions", "$schema", "$id")
)  # fmt: skip
TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
#: The opposite of a bound: its type, keyword, and the difference of its value.
_BOUNDS: Mapping[str, tuple[str, str, int]] = MappingProxyType(
    {
        "minimum": ("number", "exclusiveMaximum", 0),
        "exclusiveMinimum": ("number", "maximum", 0),
        "maximum": ("number", "exclusiveMinimum", 0),
        "exclusiveMaximum": ("number", "minimum", 0),
        "minLength": ("string", "maxLength", -1),
        "maxLength": ("string", "minLength", 1),
        "minItems": ("array", "maxItems", -1),
        "maxItems": ("array", "minItems", 1),
        "minProperties": ("object", "maxProperties", -1),
        "maxProperties": ("object", "minProperties", 1),
    }
)
#: Maximum number of parts that are negated or repeated for one schema, and of alternatives to a part.
_MOST_PARTS, _MOST_ALTERNATIVES = 5000, 40
#: Of excluded values.
_MOST_CHARACTERS, _LONGEST, _MOST_NUMBERS = 1000, 100, 20


class Negation:
    """Negation of the parts of a schema, with a bound for their number.

    Args:
        root: Schema with the definitions.
    """

    def __init__(self, root: Any) -> None:
        self.root, self._left = root, _MOST_PARTS

    def has_room(self, count: int = 1) -> bool:
        """Count parts; return whether there are not too many yet."""
        self._left -= count
        return self._left >= 0

    def of(self, schema: Any) -> list[Any] | None:
        """Return alternatives: where one of them holds, the schema does not.

        Returns:
            All alternatives that other keywords express; None without any, although the schema may be violated.
        """
        if isinstance(schema, bool):
            return [] if schema else [{}]
        if not isinstance(schema, Mapping) or not self.has_room():
            return None
        restricting = {key: value for key, value in schema.items() if key not in ANNOTATIONS}
        alternatives = [
            self._properties(restricting.pop("properties", {}), restricting.pop("required", []))
        ]
        if "prefixItems" in restricting and restricting.pop("items", True) is not True:
            alternatives.append(None)  # of the items after the first
        alternatives += [self._violations(*one) for one in restricting.items()]
        return self._union(alternatives)

    def _union(self, several: Sequence[list[Any] | None]) -> list[Any] | None:
        union = [alternative for alternatives in several for alternative in alternatives or ()]
        if len(union) > _MOST_ALTERNATIVES or (not union and None in several):
            return None
        return union

    def _violations(self, key: str, value: Any) -> list[Any] | None:
        """Return alternatives that violate one keyword; None if there are none in other keywords."""
        if key in _BOUNDS and _is_number(value):
            kind, opposite, difference = _BOUNDS[key]
            is_size = difference != 0
            if is_size and value + difference < 0:
                return []
            return [{"type": kind, opposite: value + difference}]
        match key, value:
            case "type", str():
                return _other_types([value])
            case "type", list() if all(isinstance(item, str) for item in value):
                return _other_types(value)
            case "const", _:
                return _other_values([value])
            case "enum", list():
                return _other_values(value)
            case "pattern", str() if (others := without_match(value)) is not None:
                return [{"type": "string", "pattern": others}]
            case "items", bool() | Mapping():
                wrong = self.of(value)
                first = {"type": "array", "prefixItems": [{"anyOf": wrong}], "minItems": 1}
                return [first] if wrong else wrong
            case "not", _:
                return [value]
            case "allOf", list():
                return self._union([*map(self.of, value)])
            case "anyOf", list():
                several = [*map(self.of, value)]
                if None in several:
                    return None
                return [{"allOf": [{"anyOf": item} for item in several]}] if all(several) else []
            case "$ref", str() if (definition := resolved(value, self.root)) is not None:
                return self.of(definition)
        return None

    def _properties(self, properties: Any, required: Any) -> list[Any] | None:
        """Return alternatives by which a required property is absent, or a property violates its schema."""
        if not isinstance(properties, Mapping) or not isinstance(required, list):
            return None
        if not all(isinstance(name, str) for name in required):
            return None
        by_name: dict[str, list[Any] | None] = {
            name: self.of(schema) for name, schema in properties.items()
        }
        alternatives: list[list[Any] | None] = []
        for name in dict.fromkeys([*properties, *required]):
            wrong = by_name.get(name, [])
            values: Any = {"anyOf": wrong} if wrong else False
            present = {} if name in required else {"required": [name]}
            is_possible = wrong or name in required
            one = {"type": "object", **present, "properties": {name: values}}
            alternatives.append([one] if is_possible else wrong)
        return self._union(alternatives)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _other_types(given: Sequence[str]) -> list[Any]:
    wrong = {*given}
    numbers = {"integer", "number"}  # an integer is a number, and 1.0 is an integer
    wrong |= numbers if wrong & numbers else set()
    types = [name for name in TYPES if name not in wrong]
    return [{"type": types}] if types else []


def _other_values(values: Sequence[Any]) -> list[Any]:
    """Return alternatives of all values but some: without arrays, objects or numbers if many of them are excluded."""
    texts = [value for value in values if isinstance(value, str)]
    numbers = sorted({value for value in values if _is_number(value)})
    words = [one for one in (True, False, None) if not any(one is wrong for wrong in values)]
    has_few = (
        sum(map(len, texts)) <= _MOST_CHARACTERS and max(map(len, texts), default=0) <= _LONGEST
    )
    types = [
        name
        for name, is_whole in (
            ("array", not any(isinstance(value, list) for value in values)),
            ("boolean", True in words and False in words),
            ("null", None in words),
            ("number", not numbers),
            ("object", not any(isinstance(value, dict) for value in values)),
            ("string", has_few),
        )
        if is_whole
    ]
    pattern = {"pattern": pattern_without(texts)} if texts and has_few else {}
    alternatives: list[Any] = [{"type": types, **pattern}] if types else []
    if "boolean" not in types and (one := [word for word in words if word is not None]):
        alternatives.append({"enum": one})
    if 0 < len(numbers) <= _MOST_NUMBERS:
        alternatives += _between(numbers)
    return alternatives


def _between(numbers: Sequence[float]) -> Iterator[Schema]:
    """Yield the ranges of all numbers but some, which are in ascending order."""
    for least, most in zip([None, *numbers], [*numbers, None], strict=True):
        bounds = {"exclusiveMinimum": least, "exclusiveMaximum": most}
        yield {
            "type": "number",
            **{key: bound for key, bound in bounds.items() if bound is not None},
        }
