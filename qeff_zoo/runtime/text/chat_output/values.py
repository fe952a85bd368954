# SPDX-License-Identifier: Apache-2.0
"""Values of arguments, as JSON: from plain text, from Python's literals, and from objects with unquoted keys."""

import ast
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NoReturn

from qeff_zoo.errors import GenerationError
from qeff_zoo.terminal.sanitize import shortened

_TYPES: Mapping[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}
_WORDS = {"true": True, "false": False, "null": None}  # of JSON, among Python's literals
#: Strings of Python, in which models also write line breaks as they are.
_QUOTED = re.compile(r"""'(?:\\.|[^'\\]++)*+'?|"(?:\\.|[^"\\]++)*+"?""", re.DOTALL)
_FAILURES = (MemoryError, RecursionError, SyntaxError, TypeError, ValueError)
_DEEPEST = 8  # references of a schema
#: Keywords of JSON Schema with schemas by name, in a list, or alone.
_NAMED = ("properties", "$defs", "definitions")
_LISTED = ("anyOf", "oneOf", "allOf")
_PARTS = ("items", "additionalProperties", "not")
_FORMS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(_NAMED, dict),
    **dict.fromkeys((*_LISTED, "enum", "required"), list),
    "type": (str, list),
}


def types_of(schema: Any, root: Any = None) -> frozenset[str]:
    """Return the JSON types that a schema allows; empty if it restricts none.

    Args:
        schema: JSON Schema of a value, of a form that `check_schema` accepts.
        root: Schema that its references are in.
    """
    root = schema if root is None else root
    waiting, visited, types = [schema], set[int](), set[str]()
    while waiting:
        one = resolved(waiting.pop(), root)
        if id(one) in visited:  # each is visited once, however many references lead to it
            continue
        visited.add(id(one))
        alternatives = [*(one.get("anyOf") or ()), *(one.get("oneOf") or ())]
        values = one.get("enum", [one["const"]] if "const" in one else None)
        if named := one.get("type"):
            types.update([named] if isinstance(named, str) else named)
        elif values is not None:
            types.update(_TYPES.get(type(value), "") for value in values)
        elif alternatives:
            waiting += alternatives
        else:
            return frozenset()
    return frozenset(types)


def check_schema(schema: Any) -> None:
    """Check the forms of the keywords that this package reads, in a JSON Schema and in all of its parts.

    Args:
        schema: JSON Schema, of a depth that Python's recursion allows.

    Raises:
        GenerationError: A keyword has a value of another form.
    """
    if not isinstance(schema, Mapping):
        return
    for keyword, value in schema.items():
        if value is None or keyword not in (*_FORMS, *_PARTS):
            continue
        names = value if keyword in ("required", "type") and isinstance(value, list) else ()
        is_right = isinstance(value, _FORMS.get(keyword, object))
        if not is_right or not all(isinstance(name, str) for name in names):
            raise GenerationError(
                f"Keyword {keyword!r} of a JSON Schema is {shortened(repr(value))}; expected the form that JSON Schema "
                "gives it. Correct the schema."
            )
        parts = value if keyword in _LISTED else [value] if keyword in _PARTS else ()
        for part in value.values() if keyword in _NAMED else parts:
            check_schema(part)


def resolved(schema: Any, root: Any) -> Mapping[str, Any]:
    """Return a schema without a reference; empty for what is no schema."""
    for _ in range(_DEEPEST):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not (isinstance(reference, str) and re.match("#(/|$)", reference)):
            break
        schema = root
        for name in filter(None, reference[1:].split("/")):
            schema = schema.get(name) if isinstance(schema, Mapping) else None
    return schema if isinstance(schema, Mapping) else {}


def from_text(text: str, types: frozenset[str]) -> str:
    """Return the JSON of a value that is plain text.

    Args:
        text: JSON or Python's literal of a value, or the text of a string.
        types: JSON types that the value may have; empty for any.
    """
    stripped = text.strip()
    allowed = types | {"integer"} if "number" in types else types
    for read in (_read, _literal):
        with suppress(*_FAILURES):
            value = read(stripped)
            if not types or _TYPES.get(type(value)) in allowed:
                return stripped if read is _read else _written(value)
    return json.dumps(text, ensure_ascii=False)


def from_keywords(text: str) -> str | None:
    """Return the JSON object of Python's keyword arguments; None if they are no literals."""
    try:
        text = _QUOTED.sub(lambda found: found[0].replace("\n", r"\n"), text)
        call = ast.parse(f"f({text})", mode="eval").body
        if (
            not isinstance(call, ast.Call)
            or call.args
            or any(keyword.arg is None for keyword in call.keywords)
        ):
            return None
        values = {str(keyword.arg): _evaluated(keyword.value) for keyword in call.keywords}
        return _written(values)
    except _FAILURES:
        return None


def from_unquoted(text: str, quote: str) -> str | None:
    """Return the JSON of an object with unquoted keys, as Gemma's; None if it is malformed.

    Args:
        text: The object.
        quote: Text around its strings.
    """
    written = []
    for number, piece in enumerate(text.split(quote)):
        is_string = number % 2 == 1
        written.append(json.dumps(piece, ensure_ascii=False) if is_string else _quoted_keys(piece))
    try:
        return _written(_read("".join(written)))
    except _FAILURES:
        return None


def _read(text: str) -> Any:
    """Read JSON, without the words NaN and Infinity, which are none of JSON."""
    return json.loads(text, parse_constant=_refuse)


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON.")


def _written(value: Any) -> str:
    """Write a value as JSON; TypeError or ValueError if it has none, such as a set, an ellipsis or an infinity."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _quoted_keys(text: str) -> str:
    return re.sub(r"([{,]\s*)([^\s{}\[\],:\"]+)(\s*:)", r'\1"\2"\3', text)


def _literal(text: str) -> Any:
    return _evaluated(ast.parse(text, mode="eval").body)


def _evaluated(node: ast.expr) -> Any:
    """Evaluate a literal of Python, which may contain words of JSON."""

    class _Words(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.AST:
            return ast.Constant(_WORDS[name.id]) if name.id in _WORDS else name

    return ast.literal_eval(_Words().visit(node))
