# SPDX-License-Identifier: Apache-2.0
"""JSON Schemas whose objects have the keys of their properties alone.

JSON Schema allows keys that a schema does not name, and a small model writes them without end.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.text.schema_patterns import with_classes
from qeff_zoo.runtime.text.schema_references import resolved

Schema = Mapping[str, Any]

_KEYS = ("properties", "patternProperties")
_NAMED = (*_KEYS, "$defs", "definitions")
_VALUES = ("items", "additionalProperties")
#: Keywords with further schemas of the same object: lists of them, and single ones.
_LISTS, _SINGLE = ("allOf", "anyOf", "oneOf"), ("then", "else")
_OPENING = ("additionalProperties", "unevaluatedProperties")
#: Maximum number of references of composed objects, each replaced by its definition.
_MOST = 100


def closed(schema: Any) -> Any:
    """Return a schema whose objects with properties have no further keys, unless it allows them itself.

    An object that is composed of several schemas (`allOf`, alternatives, conditions) has the keys of all of them.

    Args:
        schema: JSON Schema, of a depth that Python's recursion allows.

    Raises:
        GenerationError: Composed objects have too many references.
    """
    return _Closing(schema).closed(schema)


class _Closing:
    """Closing of the parts of a schema.

    Args:
        root: Schema with the definitions.
    """

    def __init__(self, root: Any) -> None:
        self._root, self._count = root, 0

    def closed(self, schema: Any) -> Any:
        """Return a schema whose objects are closed."""
        if not isinstance(schema, Mapping):
            return schema
        parts = [*self._parts(schema)]
        is_composed = any(name in schema for name in (*_KEYS, "allOf", *_SINGLE))
        if not is_composed or not any(name in part for part in parts for name in _KEYS):
            return self._mapped(schema, self.closed)
        opened = self._opened(schema, without_reference=len(parts) > 1)
        if any(name in part for part in parts for name in _OPENING):
            return opened
        for name in _KEYS:
            keys = {key: True for part in parts for key in part.get(name) or ()}
            if keys:
                opened[name] = {**keys, **opened.get(name, {})}
        opened["additionalProperties"] = False
        with_classes(opened)
        return opened

    def _opened(self, schema: Any, *, without_reference: bool = True) -> Any:
        """Return a schema of an object that has keys of other schemas too: only the values of its keys are closed."""
        if not isinstance(schema, Mapping):
            return schema
        opened = self._mapped(schema, self._opened)
        definition = resolved(schema.get("$ref"), self._root)
        if definition is not None and without_reference:
            self._count += 1
            if self._count > _MOST:
                raise GenerationError(
                    f"Cannot close the objects of a JSON Schema: composed objects have more than {_MOST:,} references; "
                    "expected fewer, and none to themselves. Change it, or leave the option out."
                )
            del opened["$ref"]
            opened["allOf"] = [*opened.get("allOf", ()), self._opened(definition)]
        return opened

    def _mapped(self, schema: Schema, same: Callable[[Any], Any]) -> dict[str, Any]:
        """Return a schema with closed values, and with the result of `same` for each schema of the same object."""
        mapped = dict(schema)
        for name, value in schema.items():
            if name in _NAMED and isinstance(value, Mapping):
                mapped[name] = {key: self.closed(entry) for key, entry in value.items()}
            elif name in _LISTS and isinstance(value, list):
                mapped[name] = [same(item) for item in value]
            elif name == "prefixItems" and isinstance(value, list):
                mapped[name] = [self.closed(item) for item in value]
            elif name in _VALUES:
                mapped[name] = self.closed(value)
            elif name in _SINGLE:
                mapped[name] = same(value)
        return mapped

    def _parts(self, schema: Schema) -> Iterator[Schema]:
        """Yield a schema, and all others of the same object."""
        visited = set[int]()
        rest: list[Any] = [schema]
        while rest:
            part = rest.pop()
            if not isinstance(part, Mapping) or id(part) in visited:
                continue
            visited.add(id(part))
            yield part
            rest += [one for name in _LISTS for one in part.get(name) or ()]
            rest += [part.get(name) for name in _SINGLE]
            rest.append(resolved(part.get("$ref"), self._root))
