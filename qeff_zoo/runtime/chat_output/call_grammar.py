# SPDX-License-Identifier: Apache-2.0
"""Grammars of tool calls, made of the same rows as the parser: an output that ends by itself has a valid call."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from qeff_zoo.runtime.chat_output.formats import HARMONY, CallFormat, ReasoningFormat, holes
from qeff_zoo.runtime.chat_output.values import types_of
from qeff_zoo.runtime.grammar import BLANKS, Grammar

_ANYTHING = "/(?s:.*)/"
_DEFINITIONS = ("$defs", "definitions")
_OF_HARMONY = ReasoningFormat(
    begin="<|channel|>analysis<|message|>", end="<|end|><|start|>assistant"
)
_DEEPEST = 8  # nested values of Gemma


def call_grammar(
    calls: CallFormat,
    schemas: Mapping[str, Any],
    special: Mapping[int, str],
    *,
    reasoning: ReasoningFormat | None = None,
    is_open: bool = False,
    several: bool = True,
    otherwise: Grammar | None = None,
) -> Grammar:
    """Return the grammar of calls, after reasoning that the model may write.

    Args:
        calls: Format of the calls.
        schemas: JSON Schemas of the arguments by function; the functions that may be called.
        special: Texts of special tokens by id.
        reasoning: Format of the reasoning.
        is_open: Whether the prompt ends within the reasoning.
        several: Whether there may be more than one call.
        otherwise: Grammar of an answer without calls; None if there must be a call.
    """
    rules = _Rules(calls, special)
    call = " | ".join(rules.call(name, schema) for name, schema in schemas.items())
    rules.add("call", call)
    join = f"({rules.text(calls.join)} call)*" if several and calls is not HARMONY else ""
    rules.add("calls", f"{rules.text(calls.begin)} call {join} {rules.text(calls.end)}")
    thinks = _OF_HARMONY if calls is HARMONY else reasoning
    rules.add(
        "start",
        f"{rules.thoughts(thinks, is_open=is_open)} {'(calls | @other)' if otherwise else 'calls'}",
    )
    return _joined(rules.source, otherwise)


def form_after_reasoning(
    form: Grammar, reasoning: ReasoningFormat, special: Mapping[int, str]
) -> Grammar:
    """Return the grammar of a structured output after reasoning that the prompt has begun."""
    rules = _Rules(HARMONY, special)
    rules.add("start", f"{rules.thoughts(reasoning, is_open=True)} @other")
    return _joined(rules.source, form)


def _joined(source: str, other: Grammar | None) -> Grammar:
    """Return a Lark grammar, in which `@other` is another grammar."""
    if other is None:
        return Grammar.lark(source)
    try:
        named: Any = json.loads(other.source)["grammars"]
    except ValueError:  # Lark is not wrapped
        named = [{"lark_grammar": other.source}]
    return Grammar(
        json.dumps({"grammars": [{"lark_grammar": source}, {**named[0], "name": "other"}]})
    )


class _Rules:
    """Lark rules of a format.

    Args:
        calls: Format of the calls.
        special: Texts of special tokens by id, which no text of a grammar matches.
    """

    def __init__(self, calls: CallFormat, special: Mapping[int, str]) -> None:
        self._format, self._rules = calls, list[str]()
        self._special = {text: token for token, text in special.items()}
        longest = sorted(self._special, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest)) or r"(?!)")

    @property
    def source(self) -> str:
        """All rules."""
        return "\n".join(self._rules)

    def add(self, name: str, body: str) -> str:
        """Add a rule; return its name."""
        self._rules.append(f"{name}: {body}")
        return name

    def _new(self, body: str, attributes: str = "") -> str:
        name = f"rule_{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {body}")
        return name

    def text(self, text: str) -> str:
        """Return the symbols of a text: special tokens, and texts whose line breaks are optional."""
        found, at = [], 0
        for match in [*self._pattern.finditer(text), None]:
            plain = text[at : match.start() if match else len(text)]
            for piece in re.split(r"(\n\s*)", plain):
                if piece:
                    found.append(
                        f"{json.dumps(piece)}{'?' if piece.isspace() and chr(10) in piece else ''}"
                    )
            if match:
                found.append(f"<[{self._special[match[0]]}]>")
                at = match.end()
        return " ".join(found)

    def _until(self, end: str) -> str:
        """Return the symbols of any text up to an end, and of the end."""
        match = self._pattern.search(end)
        plain, rest = (end[: match.start()], end[match.start() :]) if match else (end, "")
        if not plain.strip():
            return f"{self._new(_ANYTHING)} {self.text(rest)}"
        return f"{self._new(_ANYTHING, f'[suffix={json.dumps(plain.rstrip())}]')} {self.text(rest)}"

    def thoughts(self, reasoning: ReasoningFormat | None, *, is_open: bool) -> str:
        """Return the symbols of reasoning, optional unless the prompt has begun it."""
        if reasoning is None:
            return ""
        rest = self._until(reasoning.end.strip())
        blanks = self._new(r"/\s{0,4}/")
        if is_open:
            return f"{rest} {blanks}"
        return f"({self.text(reasoning.begin.strip())} {rest} {blanks})?"

    def call(self, name: str, schema: Any) -> str:
        """Return the name of the rule of a function's call."""
        rows = [self._format.call]
        rows += self._format.also if self._format is HARMONY else ()
        return self._new(" | ".join(self._row(row, name, schema) for row in rows))

    def _row(self, row: str, name: str, schema: Any) -> str:
        found = []
        for text, hole in holes(row):
            found.append(self.text(text))
            if hole == "name":
                found.append(json.dumps(name))
            elif hole == "id":
                found.append("/[A-Za-z0-9]{9}/")
            elif hole == "index":
                found.append("/[0-9]{1,4}/")
            elif hole == "call":
                found.append(self._json(_object(self._format.keys, name, schema), schema))
            elif hole == "args":
                found.append(self._arguments(schema))
        return " ".join(found)

    def _json(self, schema: Any, root: Any) -> str:
        """Return a rule of JSON, with the definitions of the schema that it is a part of."""
        known = root if isinstance(root, Mapping) else {}
        shared = {key: known[key] for key in _DEFINITIONS if key in known}
        whole = {"x-guidance": {"whitespace_pattern": BLANKS}, **shared, **schema}
        return self._new(f"%json {json.dumps(whole)}")

    def _arguments(self, schema: Any) -> str:
        if self._format.argument:
            return self._fields(schema, self._tagged, "")
        if self._format.values == "python":
            return self._fields(schema, self._keyword, ", ")
        if self._format.values == "gemma":
            return f'"{{" {self._fields(schema, self._gemma_field, ",")} "}}"'
        return self._json({"type": "object"} if schema is None else schema, schema)

    def _fields(self, schema: Any, field: Any, separator: str) -> str:
        """Return the symbols of an object's fields in the order of its schema.

        Args:
            schema: JSON Schema of the object.
            field: Function that returns the symbols of a field by its name, its schema, and the whole schema.
            separator: Text between fields.
        """
        known = schema if isinstance(schema, Mapping) else {}
        properties: Mapping[str, Any] = known.get("properties") or {}
        required = {*known.get("required", ())}
        between = json.dumps(separator) if separator else ""
        alternatives, rest = [], ""
        for name, one in reversed(properties.items()):
            symbols = self._new(field(name, one, schema))
            if name in required:
                alternatives = []
            alternatives.append(f"{symbols} {rest}")
            following = f"{between} {symbols}"
            rest = f"{following} {rest}" if name in required else f"({following})? {rest}"
        if not alternatives:
            return ""
        return f"({' | '.join(alternatives)}){'' if required & properties.keys() else '?'}"

    def _tagged(self, name: str, schema: Any, root: Any) -> str:
        types, found = types_of(schema, root), []
        parts = holes(self._format.argument)
        (_, (end, _)) = parts[-2:]
        is_string = types == {"string"} or (not types and not schema)
        for text, hole in parts[:-1]:
            found.append(self.text(text))
            if hole == "key":
                found.append(json.dumps(name))
            elif hole == "string":
                found.append('"true"' if is_string else '"false"')
            elif hole == "type":
                found.append(
                    json.dumps("string" if is_string else next(iter(sorted(types)), "object"))
                )
        closed = self._until(end.strip()) if is_string and "enum" not in (schema or {}) else ""
        if not closed:
            value = self._plain(schema, root) if is_string else self._json(schema, root)
            closed = f"{value} {self.text(end.strip())}"
        tail = '"\\n"?' if end.endswith("\n") else ""
        before = '"\\n"?' if not is_string and end.startswith("\n") else ""
        if before:
            closed = f"{value} {before} {self.text(end.strip())}"
        return " ".join([*found, closed, tail])

    def _plain(self, schema: Any, root: Any) -> str:
        del root
        return f"({' | '.join(json.dumps(str(one)) for one in schema['enum'])})"

    def _keyword(self, name: str, schema: Any, root: Any) -> str:
        is_boolean = types_of(schema, root) == {"boolean"}
        value = '("True" | "False")' if is_boolean else self._json(schema, root)
        return f'{json.dumps(name)} "=" {value}'

    def _gemma_field(self, name: str, schema: Any, root: Any, depth: int = 0) -> str:
        return f'{json.dumps(name)} ":" {self._gemma(schema, root, depth)}'

    def _gemma(self, schema: Any, root: Any, depth: int) -> str:
        """Return the symbols of a value of Gemma."""
        types, known = types_of(schema, root), schema if isinstance(schema, Mapping) else {}
        quote = self.text(self._format.quote)
        if strings := known.get("enum"):
            texts = (
                f"{quote} {json.dumps(one)} {quote}"
                if isinstance(one, str)
                else json.dumps(json.dumps(one))
                for one in strings
            )
            return f"({' | '.join(texts)})"
        if types & {"object"} and depth < _DEEPEST:
            fields = self._fields(schema, lambda *one: self._gemma_field(*one, depth + 1), ",")
            return f'"{{" {fields} "}}"'
        if types & {"array"} and depth < _DEEPEST:
            item = self._new(self._gemma(known.get("items", {}), root, depth + 1))
            return f'"[" ({item} ("," {item})*)? "]"'
        if types and not types & {"string", "object", "array"}:
            return self._json(schema, root)
        return f"{quote} {self._until(self._format.quote)}"


def _object(keys: Sequence[str], name: str, schema: Any) -> dict[str, Any]:
    """Return the JSON Schema of a call as an object."""
    *before, name_key, arguments = keys
    digits = {"type": "string", "pattern": "^[0-9]{1,4}$"}
    parameters = {"type": "object"} if schema is None else schema
    own = {key: value for key, value in parameters.items() if key not in _DEFINITIONS}
    properties = {**dict.fromkeys(before, digits), name_key: {"const": name}, arguments: own}
    return {
        "type": "object",
        "properties": properties,
        "required": list(keys),
        "additionalProperties": False,
    }
