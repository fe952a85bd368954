# SPDX-License-Identifier: Apache-2.0
"""Answers of a given form: every one has it, however it is drawn and whoever asks."""

import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
import numpy as np
import openai
import pytest
import tokenizers
from checkout import ROOT
from fixtures_serving import MODEL, QUESTION
from pydantic import Field, TypeAdapter
from tokenizers.models import WordLevel

from qeff_zoo import cli
from qeff_zoo.errors import GenerationError
from qeff_zoo.package import Package
from qeff_zoo.runtime import Grammar, Sampling, TextGenerationSession
from qeff_zoo.runtime.decoding.sampling import Drawn, Sampler
from qeff_zoo.runtime.text.grammar import Guides
from qeff_zoo.runtime.text.tokenizer import Tokenizer

PROMPTS = ["class socket.", "def open(", "x"]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"enum": ["socket", "collections", "naïve"]},
        "count": {"type": "integer", "minimum": 3, "maximum": 40},
        "flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["name", "count", "flags"],
    "additionalProperties": False,
}


def _is_json(text: str) -> None:
    jsonschema.validate(json.loads(text), SCHEMA)


def _matches(pattern: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        assert re.fullmatch(pattern, text), text

    return check


FORMS: dict[str, tuple[Callable[[], Grammar], Callable[[str], None]]] = {
    "schema": (lambda: Grammar.json(SCHEMA), _is_json),
    "regex": (lambda: Grammar.regex(r"\d{4}-\d\d(-é)?"), _matches(r"\d{4}-\d\d(-é)?")),
    "choice": (lambda: Grammar.choice(["yes", 'no "1"', "é"]), _matches('yes|no "1"|é')),
    "lark": (
        lambda: Grammar.lark('start: "(" start ")" | word\nword: /[a-z]{1,3}/'),
        lambda text: _matches(r"\(*[a-z]{1,3}\)*")(text) or _balanced(text),
    ),
    "gbnf": (
        lambda: Grammar.context_free(
            'root ::= (word " = " [0-9]+ "\\n"){1,2}  # lines\nword ::= [a-z] [^=]{0,3}'
        ),
        _matches(r"([a-z][^=]{0,3} = [0-9]+\n){1,2}"),
    ),
}


def _balanced(text: str) -> None:
    assert text.count("(") == text.count(")")


@pytest.mark.parametrize("temperature", [0.0, 1.5], ids=["greedy", "drawn"])
@pytest.mark.parametrize("form", FORMS)
def test_answers_have_their_form(
    form: str, temperature: float, alone: TextGenerationSession
) -> None:
    grammar, check = FORMS[form]
    sampling = Sampling(temperature=temperature, seed=1, top_k=40, repetition_penalty=1.2)
    found = alone.generate(PROMPTS, grammar=grammar(), sampling=sampling, generation_len=110)
    ended = [one for one in found if one.finish_reason != "length"]
    for one in ended:
        check(one.text)
    assert len(ended) >= 2  # of the model's own choice, blanks or brackets may fill the context


#: Schemas with keywords that llguidance lacks; those of classes are pydantic's, with its names of the types.
LETTERS = {"enum": ["a", "b", "c"]}
SCHEMAS: dict[str, dict[str, Any]] = {
    **{
        name: {"type": "string", "format": name, "maxLength": 9}
        for name in ("password", "byte", "binary", "regex", "json-pointer", "x-own")
    },
    "int64": {"type": "integer", "minimum": -(1 << 63), "maximum": (1 << 63) - 1},
    "format int64": {"type": "integer", "format": "int64", "exclusiveMaximum": 1 << 63},
    "uint64": {"type": ["integer", "null"], "minimum": 0, "maximum": (1 << 64) - 1},
    "beyond float64": {"type": "integer", "minimum": (1 << 60) + 1, "maximum": (1 << 60) + 2999},
    "double": {"type": "number", "minimum": -1.7e308, "maximum": 1.7e308, "format": "double"},
    "Decimal": TypeAdapter(Decimal).json_schema(mode="validation"),
    "text of a Decimal": {
        "anyOf": [{"type": "number"}, TypeAdapter(Decimal).json_schema(mode="serialization")]
    },
    "bytes": TypeAdapter(Annotated[bytes, Field(max_length=9)]).json_schema(),
    "set[Literal]": TypeAdapter(set[Literal["a", "b", "c"]]).json_schema(),
    "set[bool]": TypeAdapter(Annotated[set[bool], Field(min_length=2)]).json_schema(),
    "one of a set": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "maxItems": 1},
    "any items": {"type": "array", "items": LETTERS, "uniqueItems": False, "maxItems": 3},
    "set of a definition": {
        "$defs": {"letter": LETTERS},
        "type": "object",
        "properties": {
            "a": {"type": "array", "items": {"$ref": "#/$defs/letter"}, "uniqueItems": True, "minItems": 2}
        },
        "required": ["a"],
        "additionalProperties": False,
    },
    "dict[Literal]": TypeAdapter(dict[Literal["a", "b"], bool]).json_schema(),
    "dict by a pattern": {
        "type": "object",
        "propertyNames": {"pattern": "^[ab]$"},
        "additionalProperties": {"type": "boolean"},
        "maxProperties": 2,
    },
    "dict[Enum]": {
        "$defs": {"letter": LETTERS},
        "type": "object",
        "propertyNames": {"$ref": "#/$defs/letter"},
        "additionalProperties": {"type": "boolean"},
    },
    **{
        f"dict by {name}": {
            "type": "object",
            "propertyNames": keys,
            "additionalProperties": {"type": "boolean"},
            "minProperties": 1,
            "maxProperties": 2,
        }
        for name, keys in {
            "a uuid": {"format": "uuid"},
            "a date": {"format": "date"},
            "a length": {"minLength": 1, "maxLength": 2},
            "a text": {"type": "string"},
        }.items()
    },
    "no number": {"not": {"type": ["number", "array", "object", "string"]}},
    "one of two": {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"type": "boolean"}},
        "not": {"required": ["a", "b"]},
        "additionalProperties": False,
    },
    "other values": {"enum": [1, True, "a"], "not": {"enum": [1, "a"]}},
    "a condition": {
        "type": "object",
        "properties": {"kind": LETTERS},
        "required": ["kind"],
        "if": {"properties": {"kind": {"const": "a"}}},
        "then": {"properties": {"x": {"type": "boolean"}}, "required": ["x"]},
        "else": {"properties": {"y": {"enum": [1, 2]}}, "required": ["y"]},
        "maxProperties": 2,
    },
    "dependent schemas": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"type": ["boolean", "null"]}},
        "dependencies": {"a": {"properties": {"b": {"type": "null"}}, "required": ["b"]}},
        "additionalProperties": False,
    },
    "dependents": {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"type": "boolean"}},
        "dependentRequired": {"a": ["b"]},
        "unevaluatedProperties": False,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEMAS)
def test_answers_are_valid_by_schemas_of_other_keywords(
    name: str, alone: TextGenerationSession
) -> None:
    grammar, sampling = Grammar.json(SCHEMAS[name]), Sampling(temperature=1.5, seed=1, top_k=100)
    found = alone.generate(PROMPTS[:2], grammar=grammar, sampling=sampling, generation_len=60)
    ended = [one for one in found if one.finish_reason != "length"]
    for one in ended:
        jsonschema.validate(json.loads(one.text), SCHEMAS[name])
    assert ended


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        (SCHEMAS["set[Literal]"], ["[]", '["b", "a"]'], ['["a", "a"]', '["d"]']),
        (SCHEMAS["int64"], ["0", "-9", "4611686018427387904"], ["9223372036854775808", "1.5"]),
        (SCHEMAS["uint64"], ["0", "null"], ["-1", "18446744073709551616"]),
        (SCHEMAS["beyond float64"], [str((1 << 60) + 1000)], [str(1 << 60), str((1 << 60) + 3000)]),
        (SCHEMAS["password"], ['"any"'], ["1"]),
        (SCHEMAS["dict by a pattern"], ['{"b": true}'], ['{"c": true}']),
        (SCHEMAS["dict[Enum]"], ['{"b": true}'], ['{"d": true}']),
        (SCHEMAS["dict by a length"], ['{"b": true}'], ['{"abc": true}', '{"": true}']),
        (SCHEMAS["no number"], ["true", "null"], ["1", '"a"', "1.0"]),
        (SCHEMAS["one of two"], ['{"b": true}', "{}"], ['{"a": true, "b": true}']),
        (SCHEMAS["other values"], ["true"], ["1", '"a"']),
        (
            {
                "anyOf": [
                    {"type": "string", "pattern": "(?=a)"},
                    {"type": "array", "items": {"$ref": "#/anyOf/2"}},
                    {"type": "null"},
                ]
            },
            ["null", "[null]"],
            ['"a"', "[[]]"],
        ),
        (
            SCHEMAS["a condition"],
            ['{"kind": "a", "x": true}', '{"kind": "b", "y": 2}'],
            ['{"kind": "a", "y": 2}', '{"kind": "b", "x": true}'],
        ),
    ],
)
def test_a_schema_of_other_keywords_is_narrowed(
    schema: dict[str, Any], valid: list[str], invalid: list[str], alone: TextGenerationSession
) -> None:
    tokenizer = alone.tokenizer
    assert tokenizer is not None

    def accepts(text: str) -> bool:
        guide, is_complete = alone.guides.guide(Grammar.json(schema)), False
        for token in tokenizer.encode(text, special_tokens=False):
            if not guide.allows(token):
                return False
            is_complete = guide.take(token)
        return is_complete or any(guide.allows(end) for end in alone.eos_token_ids)

    assert [accepts(text) for text in (*valid, *invalid)] == [True] * len(valid) + [False] * len(
        invalid
    )


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {"uniqueItems": True}},
        {"type": "string", "pattern": "^a+(?!b)"},
        {"type": "object", "dependentRequired": {"a": 1}},
        {"type": "object", "propertyNames": {"enum": 1}},
        {"not": {"pattern": "a+b"}},
        {"type": "string", "not": {"type": "string"}},
    ],
    ids=str,
)
def test_a_schema_that_cannot_be_narrowed_is_refused(
    schema: dict[str, Any], alone: TextGenerationSession
) -> None:
    with pytest.raises(GenerationError, match="Cannot hold an answer"):
        alone.guides.check(Grammar.json(schema))


def test_an_answer_without_a_form_runs_beside_one_with(alone: TextGenerationSession) -> None:
    plain, form = alone.request(PROMPTS[0], generation_len=12), Grammar.choice(["yes", "no"])
    (wanted,) = alone.generate([plain])
    held = alone.request(PROMPTS[0], generation_len=12, grammar=form)
    found = alone.generate([held, plain, held])
    assert found[1].token_ids == wanted.token_ids
    assert {found[0].text, found[2].text} <= {"yes", "no"}
    assert found[0].finish_reason in ("stop", "eos")


class Only:
    """Lets some tokens come."""

    def __init__(self, tokens: list[int], vocab: int) -> None:
        self._allowed = np.isin(np.arange(vocab), tokens)
        self.masks = 0

    def allowed(self) -> np.ndarray:
        self.masks += 1
        return self._allowed

    def allows(self, token: int) -> bool:
        return bool(self._allowed[token])

    def take(self, token: int) -> bool:
        return not self._allowed[token]


@pytest.mark.parametrize(
    "choices",
    [{}, {"top_k": 10}, {"top_p": 0.99}, {"min_p": 0.001}, {"presence_penalty": 1.0}],
    ids=str,
)
def test_what_is_drawn_is_the_share_among_what_is_allowed(choices: dict[str, Any]) -> None:
    logits = np.linspace(-2, 3, 40, dtype=np.float32)
    allowed = [1, 20, 30]
    guide: Any = Only(allowed, len(logits))
    sampling = Sampling(temperature=1.0, seed=0, **choices)
    sampler = Sampler(sampling, [], guide)
    counts = np.zeros(len(logits))
    for _ in range(4000):
        counts[sampler.draw(logits).token] += 1
    shares = np.exp(logits[allowed])
    assert not np.delete(counts, allowed).any()
    assert counts[allowed] / 4000 == pytest.approx(shares / shares.sum(), abs=0.03)
    # Nor does a draft count that is not allowed.
    drafted = Drawn(39, np.arange(len(logits)), np.full(len(logits), 1 / len(logits)))
    assert {sampler.next_of(logits, drafted) for _ in range(100)} <= {*allowed}
    # However a random number rounds, it is of an allowed token.
    sampler._random = type("", (), {"random": lambda _: 1 - 2**-53})()  # type: ignore[assignment]
    assert sampler.next(logits) == 30


def test_no_mask_is_computed_where_the_best_token_is_allowed() -> None:
    """It takes as long as all else of a small model's token; and the token is that of the masked logits."""
    logits = np.linspace(-2, 3, 40, dtype=np.float32)
    for allowed, choices, best, masks in (
        ([1, 39], {}, 39, 0),
        ([1, 20], {}, 20, 1),
        ([1, 38, 39], {"logit_bias": {39: -5.0}}, 38, 0),
        ([1, 38, 39], {"bad_words": ((39,),)}, 38, 0),
        ([20, 39], {"bad_words": ((39,),)}, 20, 1),
    ):
        guide: Any = Only(allowed, len(logits))
        assert Sampler(Sampling(**choices), [], guide).next(logits) == best
        assert guide.masks == masks


@pytest.mark.parametrize("form", ["schema", "choice", "lark"])
def test_a_token_that_the_mask_lacks_is_allowed_only_if_the_form_holds_with_it(
    form: str, alone: TextGenerationSession
) -> None:
    """Masks lack some splits of the same text into tokens, which a model may prefer."""
    (make, check), random = FORMS[form], np.random.default_rng(0)
    guide, tokens = alone.guides.guide(make()), list[int]()
    for _ in range(60):
        mask = guide.allowed()
        allowed = np.array([guide.allows(token) for token in range(len(mask))])
        assert not (mask & ~allowed).any()
        more = np.flatnonzero(allowed & ~mask)
        tokens.append(int(random.choice(more if len(more) else np.flatnonzero(mask))))
        if tokens[-1] in alone.eos_token_ids or guide.take(tokens[-1]):
            assert alone.tokenizer is not None
            check(alone.tokenizer.decode(tokens))
            break


@pytest.mark.parametrize(
    ("form", "message"),
    {
        "half an expression": (lambda: Grammar.regex("(("), "unclosed group"),
        "a rule that is missing": (lambda: Grammar.lark("start: foo"), "foo"),
        "a keyword that is not held to": (
            lambda: Grammar.json({"type": "array", "contains": {"format": "date"}, "maxContains": 1}), "contains",
        ),
        "a schema elsewhere": (lambda: Grammar.json({"$ref": "http://127.0.0.1/x"}), "127.0.0.1"),
        "nothing": (lambda: Grammar.json({"type": "string", "enum": []}), "enum|[Uu]nsatisf"),
        "GBNF without its end": (lambda: Grammar.gbnf('root ::= "a" ('), "as GBNF"),
        "GBNF without a root": (lambda: Grammar.context_free('a ::= "a"'), "No 'root' rule"),
        "GBNF without a bottom": (lambda: Grammar.gbnf("root ::= " + "(" * 9999), "recursion"),
        "no schema": (lambda: Grammar.json("[1]"), "Expected a JSON object"),
        "no choices": (lambda: Grammar.choice([]), "at least one text"),
        "an empty choice": (lambda: Grammar.choice(["a", ""]), "none of them empty"),
    }.values(),
)  # fmt: skip
def test_a_form_that_cannot_be_held_to_is_refused(
    form: Callable[[], Grammar], message: str, alone: TextGenerationSession
) -> None:
    with pytest.raises(GenerationError, match=message):
        alone.request("x", grammar=form())


def test_a_form_has_an_end(alone: TextGenerationSession) -> None:
    with pytest.raises(GenerationError, match="cannot go on beyond its end"):
        alone.request("x", grammar=Grammar.choice(["a"]), ignore_eos=True)


def test_a_package_without_a_tokenizer_holds_to_none(
    alone: TextGenerationSession, tmp_path: Path
) -> None:
    # One that says nothing of how tokens become text.
    tokenizers.Tokenizer(WordLevel({"a": 0}, "a")).save(str(tmp_path / "tokenizer.json"))
    for tokenizer, output in ((None, "no tokenizer.json"), (Tokenizer(tmp_path), "pieces of text")):
        with pytest.raises(GenerationError, match=output):
            Guides(tokenizer, alone.decoder.vocab_size, [1]).check(Grammar.choice(["a"]))


@pytest.mark.parametrize("pattern", ["(a{1000}){1000}", "(a|b)*a(a|b){30}", r"(\w{1,99}){1,99}"])
def test_a_hostile_form_takes_no_minute(pattern: str, alone: TextGenerationSession) -> None:
    begun = time.process_time()
    with suppress(GenerationError):  # too much for it; the others are answered
        alone.generate(["x"], grammar=Grammar.regex(pattern), generation_len=20)
    assert time.process_time() - begun < 20


def test_a_server_holds_answers_to_their_form(client: openai.OpenAI) -> None:
    schema = {"name": "thing", "schema": SCHEMA, "strict": True}
    forms: dict[str, tuple[dict[str, Any], Callable[[str], Any]]] = {
        "schema": (
            {"response_format": {"type": "json_schema", "json_schema": schema}}, _is_json,
        ),
        "vllm's schema": ({"structured_outputs": {"json": SCHEMA}}, _is_json),
        "regex": ({"structured_outputs": {"regex": "[ab]{3}"}}, _matches("[ab]{3}")),
        "choice": ({"structured_outputs": {"choice": ["yes", "no"]}}, _matches("yes|no")),
        "grammar": ({"structured_outputs": {"grammar": 'start: "a" "b"'}}, _matches("ab")),
        "GBNF in vllm's": ({"structured_outputs": {"grammar": 'root ::= "a" "b"'}}, _matches("ab")),
        "llama.cpp's grammar": ({"grammar": 'root ::= "a"{5,5}'}, _matches("a{5}")),
        "llama.cpp's schema": ({"json_schema": {"const": "42"}, "grammar": ""}, _matches('"42"')),
        "llama.cpp's schema of an object": (
            {"response_format": {"type": "json_object", "schema": SCHEMA}}, _is_json,
        ),
        "tgi's schema": ({"response_format": {"type": "json_object", "value": SCHEMA}}, _is_json),
    }  # fmt: skip
    for requested, check in forms.values():
        chat = client.chat.completions.create(
            model=MODEL, messages=QUESTION, max_tokens=90, n=2, temperature=1, seed=1, extra_body=requested,  # type: ignore[arg-type]
        )  # fmt: skip
        ended = [choice for choice in chat.choices if choice.finish_reason == "stop"]
        for choice in ended:
            check(choice.message.content or "")
        assert ended  # blanks, which JSON allows, may fill the other
    form = {"response_format": {"type": "json_object"}}
    pieces = client.completions.create(
        model=MODEL, prompt="x", max_tokens=8, stream=True, extra_body=form
    )
    assert "".join(piece.choices[0].text for piece in pieces).startswith("{")


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "x"}}}},
            "response_format",
        ),
        ({"structured_outputs": {"regex": "(("}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"backend": "x"}}, "structured_outputs"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
        ),
        ({"grammar": "root ::= this is (not"}, "grammar"),
        ({"json_schema": {"type": "hiccup"}}, "json_schema"),
        ({"json_schema": {"type": "null"}, "grammar": 'root ::= "a"'}, "json_schema"),
        ({"response_format": {"type": "text", "schema": {}}}, "response_format"),
    ],
    ids=str,
)  # fmt: skip
def test_a_server_reports_faults_of_a_grammar(
    client: openai.OpenAI, asked: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=MODEL, prompt="x", max_tokens=4, extra_body=asked)
    assert (refused.value.param or "").startswith(param)


def test_the_command_holds_answers_to_their_form(
    trained: Package, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema, lark = tmp_path / "schema.json", tmp_path / "form.lark"
    schema.write_text(json.dumps(SCHEMA))
    lark.write_text('start: "a" "b"')
    forms: list[tuple[list[str], Callable[[str], Any]]] = [
        (["--json-schema", str(schema)], _is_json),
        (["--regex", "[ab]{3}"], _matches("[ab]{3}")),
        (["--choice", "yes", "--choice", "no"], _matches("yes|no")),
        (["--grammar", str(lark)], _matches("ab")),
    ]
    run = ["run", str(trained.path), "--prompt", "x", "--generation-len", "110", "--json"]
    for flags, check in forms:
        assert cli.main([*run, *flags]) == 0
        check(json.loads(capsys.readouterr().out)["outputs"][0]["text"])
    schema.write_text("{")
    assert cli.main([*run, "--json-schema", str(schema)]) == 1
    assert "Expected a JSON object" in capsys.readouterr().err


def test_the_example_of_the_guide(
    trained: Package,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    guide = ROOT / "docs" / "serving.md"
    (code,) = re.findall(
        "<!-- forms: .*?-->\n```python\n(.*?)```", guide.read_text(encoding="utf-8"), re.DOTALL
    )
    (tmp_path / "my-package").symlink_to(trained.path)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(guide), "exec"), {})
    assert json.loads(capsys.readouterr().out)["name"] in ("Ada", "Grace")
