# SPDX-License-Identifier: Apache-2.0
"""Keywords of JSON Schema that llguidance lacks: a grammar has no value that jsonschema rejects."""

import json
import random
from collections.abc import Iterator
from functools import cache
from itertools import islice, permutations
from math import factorial
from typing import Any

import jsonschema
import llguidance
import pytest

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime import Grammar
from qeff_zoo.runtime.text.pattern_negation import pattern_without

TEXT, INTEGER = {"type": "string"}, {"type": "integer"}
AB: dict[str, Any] = {"type": "object", "properties": {"a": TEXT, "b": TEXT}}
KINDS = {
    "type": "object",
    "properties": {"kind": {"enum": ["a", "b"]}, "x": INTEGER, "y": INTEGER},
    "required": ["kind"],
}


WORDS = {"type": "object", "properties": {"kind": TEXT}}


def when(kind: str, name: str, *required: str) -> dict[str, Any]:
    condition: dict[str, Any] = {"properties": {"kind": {"const": kind}}}
    if required:
        condition["required"] = [*required]
    return {"if": condition, "then": {"required": [name]}}


#: Schemas, with values that a grammar has to accept.
ROWS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "not of a text": ({**TEXT, "not": {"const": "admin"}}, ["", "admi", "administrator", "x\n"]),
    "not of texts": ({**TEXT, "not": {"enum": ["admin", "root", "a.b"]}}, ["roots", "aab"]),
    "not of a number": ({**INTEGER, "not": {"const": 0}}, [1, -1]),
    "not of numbers": ({"type": "number", "not": {"enum": [1, 2.5]}}, [1.5, 2, 3, 0]),
    "not of other values": ({"not": {"enum": [True, None, [1], "a"]}}, [False, 0, "b", {}]),
    "not of a size": ({"not": {"maxLength": 1}}, ["ab"]),
    "not of a bound": ({**INTEGER, "not": {"minimum": 3, "maximum": 5}}, [2, 6]),
    "not of a key": ({**AB, "not": {"required": ["a"]}}, [{"b": "x"}, {}]),
    "not of keys": ({**AB, "not": {"required": ["a", "b"]}}, [{"a": "x"}, {"b": "x"}, {}]),
    "not of either key": ({**AB, "not": {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}}, [{}, {"c": 1}]),
    "not of an object": ({"not": AB | {"required": ["a"]}}, [1, {}, {"a": 1}]),
    "not twice": ({"not": {"not": TEXT}}, ["x"]),
    "a forbidden key": ({"type": "object", "properties": {"a": {"not": {}}}}, [{"b": 1}]),
    "either key": ({**AB, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, [{"a": "x"}, {"b": "x"}]),
    "one of three keys": (
        {**AB, "oneOf": [{"required": [key]} for key in "abc"]}, [{"a": "x"}, {"b": "x"}, {"c": 1}],
    ),
    "one of two objects": (
        {"oneOf": [{"type": "object", "properties": {key: TEXT}, "required": [key]} for key in "ab"]},
        [{"a": "x"}, {"b": "x"}, {"a": "x", "b": 1}],
    ),
    "one of ranges": ({"oneOf": [{**INTEGER, "maximum": 5}, {**INTEGER, "minimum": 3}]}, [2, 6]),
    "one of a text and its value": ({"oneOf": [TEXT, {"const": "a"}]}, ["b", "aa"]),
    "one of all": ({"oneOf": [True, {"const": 1}]}, ["b", 2]),
    "a condition of an open value": (
        {
            "type": "object", "properties": {"country": TEXT, "zip": TEXT}, "required": ["country"],
            "if": {"properties": {"country": {"const": "US"}}, "required": ["country"]},
            "then": {"properties": {"zip": {"pattern": "^[0-9]{5}$"}}},
            "else": {"properties": {"zip": {"pattern": "^[A-Z]{3}$"}}},
        },
        [{"country": "US", "zip": "12345"}, {"country": "CA", "zip": "ABC"}, {"country": "CA"}],
    ),
    "conditions": (
        {**KINDS, "allOf": [when("a", "x"), when("b", "y")]}, [{"kind": "a", "x": 1}, {"kind": "b", "y": 1}],
    ),
    "a condition of keys": ({**AB, "if": {"required": ["a"]}, "then": {"required": ["b"]}}, [{}, {"b": "x"}]),
    "a condition of a bound": (
        {
            "type": "object", "properties": {"n": INTEGER, "y": TEXT}, "required": ["n"],
            "if": {"properties": {"n": {"minimum": 10}}}, "then": {"required": ["y"]},
        },
        [{"n": 3}, {"n": 12, "y": "x"}],
    ),
    "a condition of a type": ({"if": TEXT, "then": {"maxLength": 1}, "else": INTEGER}, ["a", 3]),
    "a condition without negation": (
        {**AB, "if": {"properties": {"a": {"pattern": "^x"}}}, "then": {"required": ["b"]}}, [{"a": "x", "b": ""}],
    ),
    "half a condition": ({**TEXT, "then": {"maxLength": 0}, "minContains": 2}, ["a"]),
    "what keys require": (
        {**AB, "dependentRequired": {"a": ["b"]}, "dependentSchemas": {"c": {"required": ["b"]}, "d": False}},
        [{}, {"b": "x"}, {"a": "x", "b": "x"}],
    ),
    "what many keys require": (
        {"type": "object", "dependentRequired": {key: ["k"] for key in "abcxy"}}, [{"k": 1}],
    ),
    "closed with others": (
        {"allOf": [AB, {"properties": {"c": INTEGER}}], "unevaluatedProperties": False}, [{"a": "x", "c": 1}],
    ),
    "closed with a reference": (
        {"$defs": {"ab": AB}, "$ref": "#/$defs/ab", "properties": {"c": INTEGER}, "unevaluatedProperties": False},
        [{"c": 1, "a": "x"}],
    ),
    "closed with alternatives": (
        {
            "type": "object", "properties": {"k": TEXT}, "unevaluatedProperties": False,
            "anyOf": [{"properties": {key: TEXT}, "required": [key]} for key in "ab"],
        },
        [{"k": "x", "a": "x"}, {"b": "x"}],
    ),
    "closed with a condition": (
        {
            **KINDS, "unevaluatedProperties": False, "if": {"properties": {"kind": {"const": "a"}}},
            "then": {"properties": {"c": INTEGER}, "required": ["c"]},
        },
        [{"kind": "a", "c": 1}, {"kind": "b"}],
    ),
    "closed beside what keys require": (
        {**AB, "dependentSchemas": {"a": {"properties": {"c": INTEGER}}}, "unevaluatedProperties": False}, [{"b": "x"}],
    ),
    "closed by a schema": ({"allOf": [AB], "unevaluatedProperties": INTEGER}, [{"a": "x", "c": 1}]),
    "closed lists": ({"allOf": [{"prefixItems": [INTEGER]}], "type": "array", "unevaluatedItems": False}, [[1], []]),
    "closed lists of a condition": (
        {
            "prefixItems": [{"const": 1}], "if": {"prefixItems": [True, {"const": "a"}]},
            "then": {"prefixItems": [True, True, INTEGER]}, "else": {"prefixItems": [True, True, True, INTEGER]},
            "unevaluatedItems": False,
        },
        [[1]],
    ),
    "contained": ({"type": "array", "contains": {"const": 1}, "minContains": 2}, [[1, 1], [1, 1, "a"]]),
    "contained once": (
        {"type": "array", "items": {"enum": ["a", "b"]}, "contains": {"const": "a"}, "maxContains": 1},
        [["a"], ["a", "b"]],
    ),
    "not contained": ({"type": "array", "contains": TEXT, "minContains": 0, "maxContains": 0}, [[], [1]]),
    "contained after others": ({"type": "array", "prefixItems": [TEXT], "contains": INTEGER}, [["a", 1]]),
    "names of one": ({"type": "object", "propertyNames": {"const": "a"}}, [{}, {"a": 1}]),
    "names beside keys": (
        {"type": "object", "properties": {"foo": INTEGER}, "propertyNames": {"pattern": "^[a-z]+$"}},
        [{"foo": 1, "x": 1}],
    ),
    "no names": ({"type": "object", "propertyNames": False}, [{}]),
    "any names": ({"type": "object", "propertyNames": True}, [{"a": 1}]),
    "a number of keys": ({**AB, "minProperties": 1}, [{"a": "x"}, {"a": "x", "b": ""}]),
    "look-ahead": ({**TEXT, "pattern": r"^(?=.*[A-Z])(?=[^)\)]*\d).{3,}$"}, ["ab1C", "A1b"]),
    "excluded characters": ({**TEXT, "pattern": r'^[^"]*[^\\][a\[^]$'}, ["ba", "\\n[", "\u00e9^"]),
    "names of excluded characters": ({"type": "object", "propertyNames": {"pattern": '^[^"]+$'}}, [{"b": 1}]),
    "negative look-ahead": (
        {**TEXT, "pattern": r"^(?!\s*$)(?!.*\.\.)(?!-)(?!(ab|aab)$).+$"}, ["aa", "a.b", "a-.", "é"],
    ),
    "negative look-ahead of a class": ({**TEXT, "pattern": r"^(?!.*[\s/])(?!\/|x).*$"}, ["", "a.b"]),
    "an address as zod writes it": (
        {**TEXT, "format": "email", "pattern": (
            r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
        )},
        ["ann.b@example.org"],
    ),
    "a time as zod writes it": ({**TEXT, "format": "time", "pattern": r"^\d\d:\d\d(:\d\d)?$"}, ["12:30", "12:30:01"]),
    "not of a pattern": ({**TEXT, "not": {"pattern": "^a"}}, ["", "b", "ba"]),
    "not of a character": ({"type": ["string", "null"], "not": {"pattern": "[ab]"}}, ["", "x"]),
    "one of patterns": ({"oneOf": [{**TEXT, "pattern": f"^{one}"} for one in ("a", "x", "US")]}, ["ab", "x", "US"]),
    "one of lists": ({"oneOf": [{"type": "array", "items": one} for one in (TEXT, INTEGER)]}, [["a"], [1], ["a", "a"]]),
    "excluded characters of keys": (
        {"type": "object", "patternProperties": {'^[^"\\\\]+$': INTEGER}, "additionalProperties": False},
        [{"b": 1, "c": 0}],
    ),
    "excluded characters of keys beside others": (
        {"type": "object", "patternProperties": {'^[^"]+$': INTEGER}, "additionalProperties": TEXT},
        [{"b": 1}, {'"': "a"}],
    ),
    "excluded characters of open objects": ({"type": "object", "patternProperties": {'^[^"]+$': INTEGER}}, [{"b": 1}]),
    "many conditions": (
        {**WORDS, "allOf": [when(str(number), "a", *["kind"] * (number % 2)) for number in range(40)]},
        [{"kind": "1", "a": 0}, {"kind": "x"}, {"a": 1}],
    ),
    "conditions beside another": (
        {
            **WORDS,
            "allOf": [when("a", "x"), {"required": ["c"]}, {**when("b", "y", "kind"), "else": {"required": ["k"]}}],
        },
        [{"kind": "a", "x": 1, "c": 1, "k": 1}, {"c": 1, "x": 1, "k": 1}],
    ),
    "conditions of listed values": (
        {**KINDS, "allOf": [when("a", "x", "kind"), when("b", "y", "kind")], "unevaluatedProperties": False},
        [{"kind": "a", "x": 1}, {"kind": "b", "y": 1, "x": 2}],
    ),
    "sizes with a point": ({"type": "array", "items": INTEGER, "maxItems": 2.0}, [[1, 2]]),
    "nulls": ({"type": "object", "properties": {"a": {**TEXT, "enum": None}}, "required": None}, [{"a": "x"}]),
    "another dialect": ({"$schema": "https://spec.openapis.org/oas/3.1/dialect/base", **INTEGER}, [1]),
}  # fmt: skip
#: Schemas that jsonschema can check: it accepts neither null as the value of a keyword nor another dialect.
VALID = {
    name: schema for name, (schema, _) in ROWS.items() if name not in ("nulls", "another dialect")
}
SIMPLE: tuple[Any, ...] = (
    None, True, False, *range(-1, 8), 10, 11, 0.5, 1.0, 1.5, 2.5, "", "a", "b", "aa", "ab", "x", "x\n", "admin", "admi",
    "root", "a.b", "aab", '"', '"a', "\\", "\\a", "a\\", "ABC", "12345", "US",
    "Ab1", "ab1", [], [1], [1, 2], [1, 1], [1, "a"], ["a"], ["a", "a"],
    ["a", "b"], ["b", "a", "a"], ["a", 1], [1, "a", 2], [1, "a", 2, 3], [1, 2, 3], [1, True, None, 3], {},
)  # fmt: skip


@cache
def bytes_tokenizer() -> Any:
    return llguidance.LLTokenizer("byte")


def matcher_of(schema: dict[str, Any]) -> Any:
    matcher = llguidance.LLMatcher(bytes_tokenizer(), Grammar.json(schema).source, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return matcher


def accepts(matcher: Any, value: Any) -> bool:
    """Whether a grammar has a value, with the keys of an object in any order (of more than four, in some)."""
    orders: Iterator[Any] = iter([value])
    if isinstance(value, dict):
        orders = map(dict, islice(permutations(value.items()), factorial(4)))
    for order in orders:
        text = json.dumps(order, ensure_ascii=False).encode()
        copied = matcher.deep_copy()
        if copied.validate_tokens([*text]) == len(text):
            copied.consume_tokens([*text])
            if copied.is_accepting():
                return True
    return False


def objects() -> Iterator[dict[str, Any]]:
    draw = random.Random(0)
    keys = ["a", "b", "c", "d", "k", "x", "y", "n", "kind", "country", "zip", "foo", "F1"]
    values = [0, 1, 3, 12, "a", "b", "x", "US", "CA", "12345", "ABC", True, None]
    yield from ({'"': 1}, {'a"': 1}, {"\\": 1})
    for _ in range(150):
        yield {key: draw.choice(values) for key in draw.sample(keys, draw.randint(0, 4))}


@pytest.mark.parametrize("name", ROWS)
def test_a_schema_has_its_values(name: str) -> None:
    schema, valid = ROWS[name]
    matcher = matcher_of(schema)
    assert [value for value in valid if not accepts(matcher, value)] == []


@pytest.mark.parametrize("name", VALID)
def test_a_schema_has_no_invalid_value(name: str) -> None:
    matcher, validator = matcher_of(VALID[name]), jsonschema.Draft202012Validator(VALID[name])
    validator.check_schema(VALID[name])
    rejected = [value for value in (*SIMPLE, *objects()) if not validator.is_valid(value)]
    assert rejected
    assert [value for value in rejected if accepts(matcher, value)] == []


def test_a_pattern_excludes_texts() -> None:
    texts = ["", "a", "ab", "b]", "^", "-", "\\", "é", "\U0001f600", "a\nb"]
    for excluded in (texts[:1], texts[1:3], texts[2:], texts):
        matcher = matcher_of({"type": "string", "pattern": pattern_without(excluded)})
        others = [*texts, "abc", "aa", "]", "\U0001f601"]
        found = [other for other in others if accepts(matcher, other)]
        assert found == [other for other in others if other not in excluded]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "contains": TEXT, "minContains": 10**9},
        {"type": "array", "contains": TEXT, "minContains": "x"},
        {"not": {"pattern": "^a*b"}},
        {"not": {"pattern": "^a|b"}},
        {"oneOf": [{"pattern": "a"}, {"pattern": "b"}] * 40},
        {
            "not": {"type": [[]]},
            "required": 1,
            "properties": 1,
            "unevaluatedProperties": False,
            "allOf": 1,
        },
    ],
    ids=str,
)
def test_keywords_that_no_grammar_can_express_are_an_error(schema: dict[str, Any]) -> None:
    source = Grammar.json(schema).source  # with the keywords: llguidance refuses them
    assert llguidance.LLMatcher(bytes_tokenizer(), source, log_level=0).is_error()


def test_a_text_that_is_no_schema_is_an_error() -> None:
    with pytest.raises(GenerationError, match="Cannot hold an answer"):
        Grammar.json("{")
