# SPDX-License-Identifier: Apache-2.0
"""JSON Schemas whose objects have the keys of their properties alone.

JSON Schema allows further keys where it says nothing, and a small model writes them without end.
"""

from collections.abc import Mapping
from typing import Any

_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_LISTED = ("anyOf", "oneOf", "prefixItems")
_PARTS = ("items", "additionalProperties")
#: Keywords whose objects have the keys of other schemas too.
_COMPOSED = ("allOf", "$ref", "unevaluatedProperties", "if", "dependentSchemas")


def closed(schema: Any) -> Any:
    """Return a schema whose objects with properties have no further keys, unless it allows them itself.

    Objects that are composed of several schemas stay as they are: each of these has keys that the others lack.

    Args:
        schema: JSON Schema, of a depth that Python's recursion allows.
    """
    if not isinstance(schema, Mapping):
        return schema
    found = dict(schema)
    for name, value in schema.items():
        if name in _NAMED and isinstance(value, Mapping):
            found[name] = {key: closed(one) for key, one in value.items()}
        elif name in _LISTED and isinstance(value, list):
            found[name] = [closed(one) for one in value]
        elif name in _PARTS:
            found[name] = closed(value)
    has_keys = "properties" in schema or "patternProperties" in schema
    if has_keys and "additionalProperties" not in schema and not {*_COMPOSED} & schema.keys():
        alternatives = [one for name in _LISTED[:2] for one in schema.get(name) or ()]
        if not any(isinstance(one, Mapping) and "properties" in one for one in alternatives):
            found["additionalProperties"] = False
    return found
