# SPDX-License-Identifier: Apache-2.0
"""Closed schemas: an object has the keys of its properties alone, of however many schemas it is composed."""

import json
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.text.closed_schemas import closed
from qeff_zoo.runtime.text.grammar import Grammar

A = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
B = {"properties": {"b": {"type": "string"}}, "required": ["b"]}
INNER = {"type": "object", "properties": {"inner": A}}
DEFINED = {"$defs": {"a": A, "inner": INNER}}
REF = {"$ref": "#/$defs/a"}
MORE = {"more": 1}
FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "own keys": (A, {"a": 1}),
    "a reference": ({**DEFINED, **REF}, {"a": 1}),
    "a reference beside keys": ({**DEFINED, **REF, "properties": {"z": {}}}, {"a": 1, "z": 2}),
    "all of": ({"allOf": [A, B]}, {"a": 1, "b": "x"}),
    "all of a reference": ({**DEFINED, "allOf": [REF]}, {"a": 1}),
    "all of references": ({**DEFINED, "allOf": [REF, B]}, {"a": 1, "b": "x"}),
    "alternatives": ({**DEFINED, "anyOf": [REF, B]}, {"b": "x"}),
    "alternatives beside keys": ({**DEFINED, **B, "anyOf": [REF, {"properties": {"c": {}}}]}, {"a": 1, "b": "x"}),
    "a condition": (
        {**A, "if": {"properties": {"a": {"const": 1}}}, "then": B, "else": {"properties": {"c": {}}}},
        {"a": 1, "b": "x"},
    ),
    "patterns": ({"allOf": [{"patternProperties": {"^x": {}}}, B]}, {"b": "x", "x1": 2}),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_an_object_has_the_keys_of_all_its_schemas(name: str) -> None:
    schema, valid = FORMS[name]
    found = closed(schema)
    jsonschema.validate(valid, schema)
    jsonschema.validate(valid, found)
    jsonschema.validate({**valid, **MORE}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**valid, **MORE}, found)
    if "if" not in schema:  # on a property without listed values
        assert not LLMatcher.validate_grammar(Grammar.json(schema).closed().source)


@pytest.mark.parametrize("nested", [{**DEFINED, "allOf": [{"$ref": "#/$defs/inner"}, B]}, INNER])
def test_values_of_a_composed_object_are_closed_too(nested: dict[str, Any]) -> None:
    found, outer = closed(nested), {"b": "x"} if "allOf" in nested else {}
    jsonschema.validate({**outer, "inner": {"a": 1}}, found)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**outer, "inner": {"a": 1, **MORE}}, found)


@pytest.mark.parametrize(
    "schema",
    [
        {**A, "additionalProperties": True},
        {"allOf": [{**A, "additionalProperties": {"type": "integer"}}, B]},
        {"allOf": [A, B], "unevaluatedProperties": {"type": "integer"}},
        {"type": "object"},
        {"type": "array", "items": {"type": "object"}},
    ],
    ids=json.dumps,
)
def test_an_object_that_allows_further_keys_has_them(schema: dict[str, Any]) -> None:
    assert closed(schema) == schema


def test_an_object_composed_of_itself_is_refused() -> None:
    with pytest.raises(GenerationError, match="and none to themselves"):
        closed({"allOf": [{"$ref": "#", **B}, A]})


def test_keys_of_a_closed_object_have_no_excluded_characters() -> None:
    grammar = Grammar.json({"type": "object", "patternProperties": {'^[^"]+$': {}}}).closed()
    matcher = LLMatcher(LLTokenizer("byte"), grammar.source, log_level=0)
    texts = [json.dumps({key: 1}).encode() for key in ("a", 'a"', '"')]
    assert [matcher.validate_tokens([*text]) == len(text) for text in texts] == [True, False, False]
