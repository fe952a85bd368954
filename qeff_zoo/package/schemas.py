# SPDX-License-Identifier: Apache-2.0
"""JSON Schemas that lie beside the code, and quick readers of them.

In: the path of a schema. Out: a validator, which reads many thousand values in a second.
"""

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonschema.protocols import Validator


@cache
def validator(path: Path) -> "Validator":
    """Return the validator of a schema; for it 1.0 is no integer.

    Args:
        path: Path of the schema.
    """
    from jsonschema import Draft202012Validator, validators

    kinds = Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda _, value: type(value) is int
    )
    strict = validators.extend(Draft202012Validator, type_checker=kinds)  # type: ignore[no-untyped-call]
    schema = json.loads(path.read_text(encoding="utf-8"))
    made: Validator = strict(_inlined(schema, schema["$defs"]))
    return made


def _inlined(part: Any, defined: dict[str, Any]) -> Any:
    """Put definitions where the schema refers to them: to look each up takes a third of the time."""
    if isinstance(part, list):
        return [_inlined(item, defined) for item in part]
    if not isinstance(part, dict):
        return part
    name = part.get("$ref", "").removeprefix("#/$defs/")
    own = {key: item for key, item in part.items() if key not in ("$ref", "$defs")}
    return {key: _inlined(item, defined) for key, item in {**defined.get(name, {}), **own}.items()}
