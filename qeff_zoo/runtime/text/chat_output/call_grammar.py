# SPDX-License-Identifier: Apache-2.0
"""Grammars of tool calls, made of the same rows as the parser: an output that ends by itself has a valid call."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.text.chat_output.formats import (
    ANALYSIS,
    CallFormat,
    ReasoningFormat,
    Thoughts,
    holes,
)
from qeff_zoo.runtime.text.chat_output.marks import Marks
from qeff_zoo.runtime.text.chat_output.values import resolved, types_of
from qeff_zoo.runtime.text.distinct_places import Places, mark
from qeff_zoo.runtime.text.grammar import BLANKS, Grammar
from qeff_zoo.runtime.text.json_schemas import narrowed, without_distinct

ANYTHING, _BLANKS = "/(?s:.*)/", r"/\s{0,4}/"
_DEFINITIONS = ("$defs", "definitions")
#: Text of gpt-oss before its answer.
_FINAL = "<|channel|>final<|message|>"
_MOST_RULES = 20_000
_MOST_CHARACTERS = 1 << 24
_DEEPEST = 8  # nested values with unquoted keys
_KEYWORD = "{key}="  # before a value in Python


def output_grammar(
    calls: CallFormat | None,
    reasoning: ReasoningFormat | None,
    marks: Marks,
    *,
    schemas: Mapping[str, Any] | None = None,
    thoughts: Thoughts = "possible",
    several: bool = True,
    otherwise: Grammar | None = None,
    prompt: str = "",
) -> Grammar:
    """Return the grammar of reasoning, and then calls or a structured answer.

    Args:
        calls: Format of the calls.
        reasoning: Format of the reasoning; None without one.
        marks: Tokens of both formats.
        schemas: JSON Schemas of the arguments by function; the functions that may be called; None for no calls.
        thoughts: Whether the output begins with reasoning.
        several: Whether there may be more than one call.
        otherwise: Grammar of an answer without calls; None if there must be a call.
        prompt: End of the prompt, which may begin the first call or the answer.
    """
    if calls and calls.bare and schemas and otherwise and otherwise.places:
        # A set may begin before it is known whether the output is a call, so each has a guide of its own.
        make = partial(output_grammar, calls, reasoning, marks, thoughts=thoughts, prompt=prompt)
        return replace(make(schemas=schemas, several=several), other=make(otherwise=otherwise))
    begun = calls.begun(prompt) if calls else ""
    has_channels = calls is not None and calls.channels
    rules = CallRules(calls or CallFormat(call=""), marks)
    alternatives = []
    if calls and schemas:
        several = several and not calls.channels
        rules.add("call", " | ".join(rules.call(*one) for one in schemas.items()))
        first = "call"
        if begun:
            first = rules.new(" | ".join(rules.call(*one, begun) for one in schemas.items()))
        more = f"({rules.text(calls.join)} call)*" if several else ""
        alternatives.append(f"{rules.text(calls.begin)} {first} {more} {rules.text(calls.end)}")
    if otherwise:
        answer = calls.answer.removeprefix(begun) if calls else ""
        mark = rules.exactly(_FINAL if has_channels else answer)
        alternatives.append(f"{mark} @other")
    reasoning = ANALYSIS if has_channels else reasoning
    begins = rules.thoughts(reasoning, thoughts)
    rules.add("start", f"{begins} ({' | '.join(alternatives)})")
    grammar = replace(_joined(rules.source, otherwise), marks=marks.ids)
    return replace(grammar, places=rules.places(reasoning, thoughts, begun, otherwise))


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


class CallRules:
    """Lark rules of a format.

    Args:
        calls: Format of the calls.
        marks: Tokens of the format, which no text of a grammar matches.
    """

    def __init__(self, calls: CallFormat, marks: Marks) -> None:
        self._format, self._rules, self._size = calls, list[str](), 0
        self._marks = marks
        #: JSON Schemas with arrays whose items differ, as JSON: of functions, or of their arguments.
        self._distinct: dict[tuple[str, str], str] = {}
        #: Functions whose calls the grammar has, and which of their arguments are texts.
        self._texts: dict[str, frozenset[str]] = {}
        self._keys: set[str] = set()

    @property
    def source(self) -> str:
        """All rules."""
        return "\n".join(self._rules)

    def add(self, name: str, body: str) -> None:
        """Add a rule."""
        self._rules.append(f"{name}: {body}")

    def new(self, body: str, attributes: str = "", *, terminal: bool = False) -> str:
        """Add a rule, or a terminal; return its name."""
        self._size += len(body)
        if len(self._rules) > _MOST_RULES or self._size > _MOST_CHARACTERS:
            raise GenerationError(
                f"The schemas of the functions take more than {_MOST_RULES:,} rules, or {_MOST_CHARACTERS:,} "
                "characters with the definitions that each rule repeats; expected fewer. Make them simpler."
            )
        name = f"{'TEXT' if terminal else 'rule'}_{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {body}")
        return name

    def text(self, text: str) -> str:
        """Return the symbols of a text: tokens of marks, and texts whose line breaks are optional."""
        symbols = []
        for piece in self._marks.pieces(text):
            if isinstance(piece, int):
                symbols.append(f"<[{piece}]>")
                continue
            for part in filter(None, re.split(r"(\n\s*)", piece)):
                is_optional = part.isspace() and "\n" in part
                symbols.append(self.blank(part) if is_optional else json.dumps(part))
        return " ".join(symbols)

    def blank(self, text: str) -> str:
        """Return the symbols of a line break with blanks, which outputs may lack."""
        return f"{json.dumps(text)}?"

    def exactly(self, text: str) -> str:
        """Return the symbols of a text: tokens of marks, and the text between them."""
        pieces = self._marks.pieces(text)
        return " ".join(
            f"<[{piece}]>" if isinstance(piece, int) else json.dumps(piece) for piece in pieces
        )

    def until(self, end: str) -> str:
        """Return the symbols of any text up to an end, and of the end."""
        first, *rest = self._marks.pieces(end) or [""]
        if not rest and isinstance(first, str):
            return self.new(ANYTHING, f"[suffix={json.dumps(first)}]")
        # The end is a token, perhaps after some text, and none of other tokens of the same text.
        before = f"{ANYTHING} {json.dumps(first)}" if isinstance(first, str) else ANYTHING
        no_end = f"~({ANYTHING} {json.dumps(end)} {ANYTHING})"
        after = end[len(first) :] if isinstance(first, str) else end
        return f"{self.new(f'({before}) & {no_end}', terminal=True)} {self.text(after)}"

    def thoughts(self, reasoning: ReasoningFormat | None, thoughts: Thoughts) -> str:
        """Return the symbols of reasoning."""
        if reasoning is None or thoughts == "ended":
            return ""
        rest = f"{self.until(reasoning.end.strip())} {self.new(_BLANKS)}"
        begin = self.text(reasoning.begin.strip())
        return rest if thoughts == "begun" else f"({begin} {rest})?"

    def call(self, name: str, schema: Any, begun: str = "") -> str:
        """Return the name of the rule of a function's call.

        Args:
            name: Name of the function.
            schema: JSON Schema of its arguments.
            begun: Beginning of the call that the prompt ends with.
        """
        rows = [self._format.call]
        rows += self._format.also if self._format.channels else ()
        return self.new(" | ".join(self.row(row.removeprefix(begun), name, schema) for row in rows))

    def row(self, row: str, name: str, schema: Any) -> str:
        """Return the symbols of a function's call by a row of the format, or by the end of one."""
        self._note(name, schema)
        symbols = []
        for text, hole in holes(row):
            symbols.append(self.text(text))
            if hole == "name":
                symbols.append(json.dumps(name))
            elif hole == "id":
                symbols.append("/[A-Za-z0-9]{9}/")
            elif hole == "index":
                symbols.append("/[0-9]{1,4}/")
            elif hole == "call":
                symbols.append(self._json(_object(self._format.keys, name, schema), schema))
            elif hole == "args":
                symbols.append(self._arguments(schema))
        return " ".join(symbols)

    def _json(self, schema: Any, root: Any) -> str:
        """Return a rule of JSON, with the definitions of the schema that it is a part of."""
        whole = without_distinct(_alone(schema, root))
        return self.new(
            f"%json {json.dumps({'x-guidance': {'whitespace_pattern': BLANKS}, **whole})}"
        )

    def _note(self, name: str, schema: Any) -> None:
        """Note which arguments of a function are texts, and which have arrays of different items."""
        if name in self._texts:
            return
        by_key = bool(self._format.argument) or self._format.values == "python"
        parts: Mapping[str, Any] = {"": {} if schema is None else schema}
        if by_key:
            parts = resolved(schema, schema).get("properties") or {}
        self._keys |= parts.keys()
        kinds = {key: types_of(part, schema) for key, part in parts.items()}
        texts = (key for key, kind in kinds.items() if not kind or kind == {"string"})
        self._texts[name] = frozenset(texts if self._format.argument else ())
        if self._format.values == "unquoted":
            return
        for key, one in parts.items():
            whole = _alone(one, schema)
            if without_distinct(whole) != whole:
                self._distinct[name, key] = json.dumps(whole)

    def places(
        self,
        reasoning: ReasoningFormat | None,
        thoughts: Thoughts,
        begun: str = "",
        form: Grammar | None = None,
    ) -> Places | None:
        """Return the positions in calls of arrays with different items; None without any.

        Args:
            reasoning: Format of the reasoning.
            thoughts: Whether the output begins with it.
            begun: Beginning of a call or an answer with which the prompt ends.
            form: Grammar of an answer; None without one.
        """
        schema = form.places.form if form and form.places else ""
        if not schema and not self._distinct:
            return None
        calls, names = self._format, [*self._texts]
        ends = reasoning and thoughts != "ended"
        rows = [calls.call, *calls.also] if names else []
        written = _FINAL if calls.channels else calls.answer
        key, end = "", ""
        if calls.argument:
            key, _, end = calls.argument.partition("{value}")
        elif calls.values == "python":
            key = _KEYWORD
        arrays = Places(
            openings=() if calls.bare else tuple(map(self._bytes, calls.openings if names else ())),
            calls=tuple(self._before(row, names) for row in rows),
            argument=self._before(key, names) if key else b"",
            end=self._bytes(end.strip()),
            texts=frozenset((name, key) for name, keys in self._texts.items() for key in keys),
            schemas=tuple((*place, value) for place, value in self._distinct.items()),
            answer=self._expression(written) if form else b"",
            form=schema,
            thinks=bool(ends) and thoughts == "begun",
            begun=self._bytes(begun),
        )
        if reasoning and ends:
            marks = (self._bytes(reasoning.begin.strip()), self._bytes(reasoning.end.strip()))
            arrays = replace(arrays, thoughts=marks)
        return arrays

    def _bytes(self, text: str) -> bytes:
        pieces = self._marks.pieces(text)
        return b"".join(
            piece.encode() if isinstance(piece, str) else mark(piece) for piece in pieces
        )

    def _expression(self, text: str) -> bytes:
        """Return the expression of a text with any blanks."""
        return rb"\s*".join(map(re.escape, re.split(rb"\s+", self._bytes(text))))

    def _before(self, row: str, names: Iterable[str]) -> bytes:
        """Return the expression of a row up to its arguments, or to a value."""
        *before, name_key, arguments = self._format.keys
        fields = [
            *(rf'"{re.escape(one)}"\s*:\s*"[0-9]{{1,4}}"' for one in before),
            rf'"{re.escape(name_key)}"\s*:\s*"(?P<name>{_one_of(names)})"',
            rf'"{re.escape(arguments)}"\s*:',
        ]
        written = {
            "call": r"\{\s*" + r"\s*,\s*".join(fields),
            "name": f"(?P<name>{_one_of(names)})",
            "key": f"(?P<key>{_one_of(self._keys)})",
            "string": "(?:true|false)",
            "type": r"\w+",
            "id": "[A-Za-z0-9]{9}",
            "index": "[0-9]{1,4}",
        }
        expression = rb"(?:\(|,)\s*" if row == _KEYWORD else b""
        for text, hole in holes(row):
            expression += self._expression(text)
            if hole in ("args", "value", ""):
                break
            expression += written[hole].encode()
            if hole == "call":
                break
        return expression

    def _arguments(self, schema: Any) -> str:
        if self._format.argument:
            return self._fields(schema, schema, self._tagged, "")
        if self._format.values == "python":
            return self._fields(schema, schema, self._keyword, ", ")
        if self._format.values == "unquoted":
            return f'"{{" {self._fields(schema, schema, self._unquoted_field, ",")} "}}"'
        return self._json({"type": "object"} if schema is None else schema, schema)

    def _fields(
        self, schema: Any, root: Any, field: Callable[[str, Any, Any], str], separator: str
    ) -> str:
        """Return the symbols of an object's fields in the order of its schema.

        Args:
            schema: JSON Schema of the object.
            root: JSON Schema of the arguments, with the definitions.
            field: Function that returns the symbols of a field by its name, its schema, and `root`.
            separator: Text between fields.
        """
        known = resolved(schema, root)
        properties: Mapping[str, Any] = known.get("properties") or {}
        required = {*(known.get("required") or ())} & properties.keys()
        between = json.dumps(separator) if separator else ""
        alternatives, rest = list[str](), ""  # of the first field, and what may follow it
        for name, one in reversed([*properties.items()]):
            symbols = self.new(field(name, one, root))
            alternatives = [*([] if name in required else alternatives), f"{symbols} {rest}"]
            following = f"{between} {symbols}"
            optional = following if name in required else f"({following})?"
            rest = self.new(f"{optional} {rest}")
        if not alternatives:
            return ""
        return f"({' | '.join(alternatives)}){'' if required else '?'}"

    def _tagged(self, name: str, schema: Any, root: Any) -> str:
        """Return the symbols of an argument with marks around it."""
        parts = holes(self._format.argument)
        end = parts[-1][0]
        types = types_of(schema, root)
        is_string = types == {"string"} or not types
        written = {
            "key": name,
            "string": "true" if is_string else "false",
            "type": "string" if is_string else min(types),
        }
        symbols = []
        for text, hole in parts[:-1]:
            symbols += [self.text(text), json.dumps(written[hole]) if hole in written else ""]
        known = resolved(schema, root)
        values = _constants(known)
        strings = [value for value in values if isinstance(value, str)] if is_string else []
        closed = self.text(end.rstrip())
        if strings:
            symbols.append(f"({' | '.join(json.dumps(string) for string in strings)}) {closed}")
        elif is_string:
            symbols.append(self.until(end.strip()))
        else:
            symbols.append(f"{self._json(schema, root)} {closed}")
        return f"{' '.join(symbols)} {self.text(end[len(end.rstrip()) :])}"

    def _keyword(self, name: str, schema: Any, root: Any) -> str:
        is_boolean = types_of(schema, root) == {"boolean"}
        value = '("True" | "False")' if is_boolean else self._json(schema, root)
        return f'{json.dumps(name)} "=" {value}'

    def _unquoted_field(self, name: str, schema: Any, root: Any, depth: int = 0) -> str:
        """Return the symbols of a field whose key is unquoted."""
        return f'{json.dumps(name)} ":" {self._unquoted(schema, root, depth)}'

    def _unquoted(self, schema: Any, root: Any, depth: int) -> str:
        """Return the symbols of a value whose keys are unquoted."""
        types, known = types_of(schema, root), resolved(schema, root)
        quote = self.text(self._format.quote)
        if strings := _constants(known):
            texts = (
                f"{quote} {json.dumps(string)} {quote}"
                if isinstance(string, str)
                else json.dumps(json.dumps(string))
                for string in strings
            )
            return f"({' | '.join(texts)})"
        if types & {"object"} and depth < _DEEPEST:
            fields = self._fields(known, root, partial(self._unquoted_field, depth=depth + 1), ",")
            return f'"{{" {fields} "}}"'
        if types & {"array"} and depth < _DEEPEST:
            item = self.new(self._unquoted(known.get("items") or {}, root, depth + 1))
            return f'"[" ({item} ("," {item})*)? "]"'
        if types and not types & {"string", "object", "array"}:
            return self._json(schema, root)
        return f"{quote} {self.until(self._format.quote)}"


def _one_of(texts: Iterable[str]) -> str:
    """Return the expression of one of several texts."""
    return "|".join(map(re.escape, sorted(texts, key=len, reverse=True)))


def _alone(schema: Any, root: Any) -> Any:
    """Return a part of a schema in the keywords of llguidance, with the definitions of the whole."""
    known = root if isinstance(root, Mapping) else {}
    shared = {key: known[key] for key in _DEFINITIONS if key in known}
    return narrowed({**shared, **schema})


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


def _constants(schema: Mapping[str, Any]) -> Sequence[Any]:
    """Return the values that a schema lists; empty if it lists none."""
    values: Sequence[Any] = schema.get("enum") or ()
    return values or ([schema["const"]] if "const" in schema else [])
