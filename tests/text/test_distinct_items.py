# SPDX-License-Identifier: Apache-2.0
"""Arrays of different items: random outputs under a grammar are valid by jsonschema, and sets have any items."""

import datetime
import enum
import json
import uuid
from typing import Annotated, Any

import jsonschema
import pytest
from drawn_outputs import drawn
from pydantic import BaseModel, Field, TypeAdapter
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from qeff_zoo.errors import GenerationError, NoTokenError
from qeff_zoo.runtime import Grammar, Sampling, TextGenerationSession
from qeff_zoo.runtime.text.chat_output import REASONING_FORMATS
from qeff_zoo.runtime.text.chat_output.call_grammar import output_grammar
from qeff_zoo.runtime.text.chat_output.marks import Marks
from qeff_zoo.runtime.text.distinct_items import Schemas, identity
from qeff_zoo.runtime.text.schema_references import resolved


class Colour(enum.Enum):
    RED = "red"
    RUBY = "ruby"
    BLUE = "blue"


class Node(BaseModel):
    names: Annotated[set[str], Field(max_length=3)]
    parts: Annotated[list["Node"], Field(max_length=2)] = []


class Point(BaseModel):
    x: Annotated[int, Field(ge=0, le=1)]
    y: bool = False


def small(least: int, most: int) -> Any:
    return Annotated[int, Field(ge=least, le=most)]


TYPES: dict[str, Any] = {
    "integers": set[int],
    "texts": set[str],
    "numbers": set[float],
    "short texts": set[Annotated[str, Field(max_length=1)]],
    "dates": set[datetime.date],
    "uuids": Annotated[set[uuid.UUID], Field(min_length=1, max_length=2)],
    "anything": set[Any],
    "either": set[int | bool | Annotated[str, Field(max_length=2)] | None],
    "many values": set[Annotated[int, Field(json_schema_extra={"enum": [*range(40)]})]],
    "all of a range": Annotated[set[small(8, 12)], Field(min_length=5)],
    "half of a range": Annotated[set[small(0, 12)], Field(min_length=7)],
    "tuples": Annotated[set[tuple[small(0, 1), bool]], Field(min_length=3)],
    "objects": {"type": "array", "items": Point.model_json_schema(), "uniqueItems": True, "minItems": 2},
    "sets in a list": Annotated[list[set[small(0, 20)]], Field(min_length=2, max_length=3)],
    "sets in a set": Annotated[set[frozenset[small(0, 1)]], Field(min_length=3)],
    "sets by key": dict[str, set[small(0, 11)]],
    "recursive": Node,
    "of an alternative": Annotated[set[small(0, 12)], Field(min_length=2)] | None,
    "of one key": {
        "type": "object",
        "properties": {
            "equal": {"type": "array", "items": {"const": 1}, "minItems": 3, "maxItems": 3},
            "different": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "minItems": 3},
        },
        "required": ["equal", "different"],
        "additionalProperties": {"type": "array", "items": {"const": 1}, "minItems": 2},
    },
    "by position": {
        "type": "array",
        "prefixItems": [{"enum": [1, 2, 3]}] * 3,
        "items": False,
        "minItems": 3,
        "uniqueItems": True,
    },
}  # fmt: skip


def schema_of(name: str) -> dict[str, Any]:
    given = TYPES[name]
    return given if isinstance(given, dict) else TypeAdapter(given).json_schema()


@pytest.mark.parametrize("name", TYPES)
def test_drawn_outputs_are_valid(name: str, alone: TextGenerationSession) -> None:
    schema = schema_of(name)
    grammar = Grammar.json(schema)
    drawings = [drawn(alone, grammar, seed) for seed in range(5)]
    found = [json.loads(text) for text in drawings if text is not None]
    for value in found:
        jsonschema.validate(value, schema)
    assert found


def test_a_set_has_any_items_in_any_order(alone: TextGenerationSession) -> None:
    tokenizer = alone.tokenizer
    assert tokenizer is not None

    def accepts(name: str, text: str) -> bool:
        guide, is_complete = alone.guides.guide(Grammar.json(schema_of(name))), False
        for token in tokenizer.encode(text, special_tokens=False):
            if not guide.allows(token):
                return False
            is_complete = guide.take(token)
        return is_complete or any(guide.allows(end) for end in alone.eos_token_ids)

    for name, valid, invalid in (
        ("integers", ["[]", "[3, 1, 2]", "[12, 1, 0]"], ["[1, 1]", "[0, 10, 0]"]),
        ("texts", ['["b", "a"]', '["a", "aa"]'], ['["a", "a"]', '["a\\\\", "a\\\\"]']),
        ("numbers", ["[1, 1.5]"], ["[1, 1.0]"]),
        ("anything", ["[1, true, [1], {}]"], ["[[1], [1.0]]", '[{"a": 1}, {"a": 1}]']),
        ("of one key", ['{"equal": [1, 1, 1], "different": [1, 2, 3]}'], []),
    ):
        assert [accepts(name, one) for one in (*valid, *invalid)] == [True] * len(valid) + [
            False
        ] * len(invalid)


def test_a_model_writes_a_set(alone: TextGenerationSession) -> None:
    schema = schema_of("half of a range")
    for sampling in (Sampling(), Sampling(temperature=2.0, seed=3)):
        (found,) = alone.generate(
            ["x"], grammar=Grammar.json(schema), sampling=sampling, generation_len=100
        )
        assert found.finish_reason != "length"
        jsonschema.validate(json.loads(found.text), schema)


def test_a_set_without_enough_items_is_an_error(alone: TextGenerationSession) -> None:
    schema = {"type": "array", "uniqueItems": True, "minItems": 13}
    few = Grammar.json({**schema, "items": {"type": "string", "pattern": "^[a-l]$"}})
    with pytest.raises(NoTokenError, match="all different items"):
        drawn(alone, few, 0)
    listed = Grammar.json({**schema, "items": {"enum": [*range(12), 1.0, True]}})
    alone.guides.check(listed)
    refused = Grammar.json({**schema, "minItems": 14, "items": {"enum": [*range(12), 1.0, True]}})
    with pytest.raises(GenerationError, match=r"minItems \(14\) is greater than maxItems \(13\)"):
        alone.guides.check(refused)
    optional = {
        "type": "object",
        "properties": {"a": {**schema, "items": {"enum": [1, [1], [True]]}}},
    }
    alone.guides.check(Grammar.json(optional))


def test_a_set_comes_after_reasoning(alone: TextGenerationSession) -> None:
    tokenizer, form = alone.tokenizer, Grammar.json(schema_of("integers"))
    assert tokenizer is not None

    def accepts(thoughts: Any, text: str) -> bool:
        reasoning = REASONING_FORMATS["think"]
        grammar = output_grammar(None, reasoning, Marks({}), thoughts=thoughts, otherwise=form)
        guide, is_complete = alone.guides.guide(grammar), False
        for token in tokenizer.encode(text, special_tokens=False):
            if not guide.allows(token):
                return False
            assert guide.allowed()[token]
            is_complete = guide.take(token)
        return is_complete or any(guide.allows(end) for end in alone.eos_token_ids)

    cases = {
        "possible": (["<think>[1, 1]</think>[3, 1]", "[1, 2]"], ["<think>a</think>[1, 1]", "[1, 1]"]),
        "begun": (["[2, 2] < </think>\n\n[2]", "</think>[2, 12]"], ["a</think>\n[2, 2]"]),
        "ended": (["[2, 1]"], ["[2, 2]"]),
    }  # fmt: skip
    for thoughts, (valid, invalid) in cases.items():
        assert [accepts(thoughts, one) for one in valid] == [True] * len(valid)
        assert [accepts(thoughts, one) for one in invalid] == [False] * len(invalid)


def test_equality_is_that_of_json_schema() -> None:
    pairs = [(b"1", b"1.0"), (b'"a"', b'"\\u0061"'), (b'{"a":1,"b":[2]}', b'{"b":[2.0],"a":1}')]
    assert all(identity(one) == identity(other) for one, other in pairs)
    assert len({*map(identity, (b"1", b"true", b'"1"', b"[1]", b"null", b"0", b"false"))}) == 7
    assert identity(b"9" * 5000) == "9" * 5000  # more digits than Python reads


@pytest.mark.parametrize("place", ["#/allOf/1/items", "#/$defs/a~1b~0c%25%20d", "#/$defs/"])
def test_references_are_json_pointers(place: str, alone: TextGenerationSession) -> None:
    definition = {"enum": [[1], [True], [1.0], *"abcdefgh"]}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"x": {"type": "array", "items": {"$ref": place}, "uniqueItems": True, "minItems": 11}},
        "required": ["x"],
        "$defs": {"a/b~c% d": definition, "": definition},
        "allOf": [{}, {"items": definition}],
    }  # fmt: skip
    expected = Registry().with_resource("", DRAFT202012.create_resource(schema)).resolver()
    assert resolved(place, schema) == expected.lookup(place).contents == definition
    with pytest.raises(GenerationError, match=r"'x' is unsatisfiable"):
        alone.guides.check(Grammar.json(schema))


@pytest.mark.parametrize(
    "place", ["", "a", "#a", "#/allOf/01", "#/allOf/-", "#/allOf/2", "#/type/0", "#/a", f"#/allOf/{'9' * 5000}", 1]
)  # fmt: skip
def test_other_references_have_no_definition(place: object) -> None:
    assert resolved(place, {"allOf": [1, 2], "type": "object"}) is None
    assert resolved("#", {"a": 1}) == {"a": 1}


def test_a_schema_that_refers_to_itself_ends() -> None:
    schema = {"$ref": "#", "anyOf": [{"$ref": "#"}, {"$ref": "#/nothing"}], "uniqueItems": True}
    assert schema in Schemas(schema).whole
