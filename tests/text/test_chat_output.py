# SPDX-License-Identifier: Apache-2.0
"""Parsed outputs of chat models, against the renderings of templates in every cut."""

import json
import re
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import jsonschema
import numpy as np
import pytest
from chat_templates import MARKED, TEMPLATES, THINKING
from checkout import TINY_LLAMA
from hypothesis import given, settings
from hypothesis import strategies as st

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.text.chat_output import (
    CALL_FORMATS,
    REASONING_FORMATS,
    ChatFormat,
    Output,
    OutputParser,
    values,
)
from qeff_zoo.runtime.text.chat_output.call_grammar import output_grammar
from qeff_zoo.runtime.text.chat_output.detection import call_format_of, reasoning_format_of
from qeff_zoo.runtime.text.chat_output.marks import Marks
from qeff_zoo.runtime.text.grammar import Grammar, Guides
from qeff_zoo.runtime.text.template_source import TemplateSource
from qeff_zoo.runtime.text.thinking_budget import BudgetGuide, ThinkingBudget
from qeff_zoo.runtime.text.tokenizer import TextStream, Tokenizer

SCHEMAS: dict[str, Any] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 8},
            "days": {"type": "integer", "minimum": 0, "maximum": 9},
            "unit": {"type": "string", "enum": ["C", "F"]},
            "fine": {"type": "boolean"},
            "more": {"$ref": "#/$defs/More"},
        },
        "required": ["city", "more"],
        "additionalProperties": False,
        "$defs": {
            "More": {
                "type": "object",
                "properties": {
                    "places": {"type": "array", "items": {"type": "integer"}, "maxItems": 2}
                },
                "required": ["places"],
                "additionalProperties": False,
            }
        },
    },
    "now": {"type": "object", "properties": {}, "additionalProperties": False},
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
#: Texts of arguments: JSON's and Python's quotes and escapes, and marks that are not the format's.
WORDS = (
    st.lists(
        st.sampled_from([*"ab \"'{}[]()\\,:=;/<>\n", "é", "😀", "</b>", "name"]),
        min_size=1,
        max_size=8,
    )
    .map("".join)
    .filter(lambda text: text == text.strip() and text)
)
ARGUMENTS = st.fixed_dictionaries(
    {"city": WORDS},
    optional={
        "days": st.integers(-3, 12),
        "fine": st.booleans(),
        "more": st.fixed_dictionaries({"places": st.lists(st.integers(0, 9), max_size=2)}),
    },
)


def parsed(pieces: Sequence[str], parser: OutputParser) -> Output:
    events = [event for piece in pieces for event in parser.push(piece)]
    return Output.of([*events, *parser.finish()])


def cut(text: str, places: Sequence[int]) -> list[str]:
    ends = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(ends)]


@cache
def source_of(name: str) -> TemplateSource:
    return TemplateSource(TEMPLATES[name], {})


def rendered(name: str, answer: dict[str, Any]) -> str:
    """Render an answer as the model would have generated it, its EOS token included."""
    source = source_of(name)
    user = {"role": "user", "content": "Hi"}
    before = source.render([user], tools=TOOLS)
    whole = source.render(
        [user, {"role": "assistant", **answer}], tools=TOOLS, add_generation_prompt=False
    )
    assert whole.startswith(before)
    return whole[len(before) :]


def plain(output: Output) -> tuple[Any, ...]:
    calls = [(call.name, call.arguments) for call in output.calls]
    return output.text, output.reasoning, calls


def test_there_is_a_template_of_every_format() -> None:
    same = {"phi4_mini_json"}  # granite's with an end
    assert {*TEMPLATES} == {*CALL_FORMATS} - same


def check_calls(
    name: str, arguments: Sequence[dict[str, Any]], text_before: str, cuts: Sequence[Sequence[int]]
) -> None:
    """Check that the parser returns the calls that the template renders, whatever the pieces of the text."""
    known = CALL_FORMATS[name]
    text_before = "" if known.bare or name == "openai" else text_before  # those have calls or text
    functions = [{"name": "get_weather", "arguments": argument} for argument in arguments]
    functions.append({"name": "now", "arguments": {}})
    calls = [
        {"id": f"abcdefgh{at}", "type": "function", "function": function}
        for at, function in enumerate(functions)
    ]
    text = rendered(name, {"content": text_before, "tool_calls": calls})
    whole = parsed([text], OutputParser(known, schemas=SCHEMAS))
    assert [(call.name, json.loads(call.arguments)) for call in whole.calls] == [
        (function["name"], function["arguments"]) for function in functions
    ]
    assert whole.text.replace("<|end_of_turn|>", "").strip() == text_before
    for pieces in (*(cut(text, places) for places in cuts), text):
        assert plain(parsed(pieces, OutputParser(known, schemas=SCHEMAS))) == plain(whole)


@pytest.mark.parametrize("name", TEMPLATES)
def test_calls_are_those_that_the_template_renders(name: str) -> None:
    hard = {"city": "a\"'{<\\n\n</b>é}]", "fine": True, "more": {"places": [1, 2]}}
    check_calls(name, [hard, {"city": "12"}], "Let me see.", [[at] for at in range(0, 400, 3)])


@settings(max_examples=60)
@given(
    name=st.sampled_from([*TEMPLATES]),
    arguments=st.lists(ARGUMENTS, min_size=1, max_size=2),
    text_before=st.sampled_from(["", "Let me see."]),
    places=st.lists(st.integers(0, 999), max_size=12),
)
def test_no_cut_changes_a_call(
    name: str, arguments: list[dict[str, Any]], text_before: str, places: list[int]
) -> None:
    check_calls(name, arguments, text_before, [places])


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_format_is_found_by_the_template(name: str) -> None:
    assert call_format_of(source_of(name)) == name


@pytest.mark.parametrize(
    ("template", "calls", "reasoning"),
    [
        ("{{ messages[0].content }}", None, None),
        ("{{ messages[0].content }}{{ tools }}", None, None),
        (
            "{{ messages[0].content }}{{ tools }}Reply with <|tool_call|> and a list.",
            "granite",
            None,
        ),
        ("{{ messages[0].content }}{# <|tool_list_start|> #}", "lfm2", None),
        (
            "{% for m in messages %}{{ m.tool_calls | default(0) | tojson }}{% endfor %}<tool_call>",
            None,
            None,
        ),
        (
            "{{ messages[0].content }}{{ messages[-1].content.split('</think>')[-1] }}",
            None,
            "think",
        ),
        ("[THINK]{{ messages[-1].reasoning_content }}[/THINK]", None, "mistral"),
        (THINKING, "hermes", "think"),
    ],
    ids=["neither", "no calls", "granite", "lfm2", "unknown", "end alone", "mistral", "both"],
)
def test_a_format_is_found_by_what_a_template_contains(
    template: str, calls: str | None, reasoning: str | None
) -> None:
    source = TemplateSource(template, {})
    assert (call_format_of(source), reasoning_format_of(source)) == (calls, reasoning)


#: An output, its format, and its text, reasoning and calls.
OUTPUTS: dict[str, tuple[str, str | None, str | None, tuple[Any, ...]]] = {
    "text": (" a <b ", "hermes", "think", (" a <b ", "", [])),
    "reasoning": ("<think>\nhm\n</think>\n\nYes. ", None, "think", ("Yes. ", "hm", [])),
    "begun": ("hm</think>Yes", None, "think (begun)", ("Yes", "hm", [])),
    "without end": ("<think>hm <", None, "think", ("", "hm <", [])),
    "twice": ("<think>a</think>b<think>c</think>d", None, "think", ("bd", "ac", [])),
    "response": ("<think>a</think><response>b</response>", None, "think", ("b", "a", [])),
    "with a call": (
        '<think>a</think>b\n<tool_call>{"name": "f", "arguments": {}}</tool_call>\nc', "hermes", "think",
        ("bc", "a", [("f", "{}")]),
    ),
    "arguments first": (
        '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', "hermes", None, ("", "", [("f", '{"a": 1}')]),
    ),
    "arguments as text": (
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "hermes", None,
        ("", "", [("f", '{"a": 1}')]),
    ),
    "no arguments": ('<tool_call>{"name": "f"}</tool_call>', "hermes", None, ("", "", [("f", "{}")])),
    "null": ('<tool_call>{"name": "f", "arguments": null}', "hermes", None, ("", "", [("f", "{}")])),
    "no call": ("<tool_call>\nnone</tool_call>", "hermes", None, ("<tool_call>\nnone</tool_call>", "", [])),
    "no name": ('<tool_call>{"a": 1}</tool_call>', "hermes", None, ('<tool_call>{"a": 1}</tool_call>', "", [])),
    "half a name": ('<tool_call>{"name": "f', "hermes", None, ("", "", [])),
    "half the arguments": (
        '<tool_call>{"name": "f", "arguments": {"a": "b', "hermes", None, ("", "", [("f", '{"a": "b')]),
    ),
    "half a value": (
        "<tool_call><function=f><parameter=a>b", "qwen3_coder", None, ("", "", [("f", '{"a": ')]),
    ),
    "types by the schema": (
        "<tool_call><function=get_weather><parameter=city>\n12\n</parameter><parameter=days>\n12\n</parameter>"
        "<parameter=x>\nTrue\n</parameter></function></tool_call>",
        "qwen3_coder", None, ("", "", [("get_weather", '{"city": "12", "days": 12, "x": true}')]),
    ),
    "JSON that is no call": ('{"a": 1} is JSON', "llama3_json", None, ('{"a": 1} is JSON', "", [])),
    "JSON later": ('See {"name": "f"}', "llama3_json", None, ('See {"name": "f"}', "", [])),
    "python tag": ('<|python_tag|>{"name": "f", "parameters": {}}', "llama3_json", None, ("", "", [("f", "{}")])),
    "a list that is no call": ("[1, f(2)]", "pythonic", None, ("[1, f(2)]", "", [])),
    "a link": ("[f(a=b)](c)", "pythonic", None, ("[f(a=b)](c)", "", [])),
    "words of JSON": ("[f(a=true, b=[None])]", "pythonic", None, ("", "", [("f", '{"a": true, "b": [null]}')])),
    "call id": (
        "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{}", "mistral", "mistral", ("", "", [("f", "{}")]),
    ),
    "no mark before arguments": ("[TOOL_CALLS]f{}", "mistral", None, ("", "", [("f", "{}")])),
    "channels": (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>Wait.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>",
        "openai", None, ("Wait.", "hm", [("f", "{}")]),
    ),
    "no channel": ("Just text.", "openai", None, ("Just text.", "", [])),
}  # fmt: skip


@pytest.mark.parametrize("case", OUTPUTS)
def test_outputs_that_models_generate(case: str) -> None:
    text, calls, reasoning, expected = OUTPUTS[case]
    name, _, begun = (reasoning or "").partition(" ")

    def parser() -> OutputParser:
        known = REASONING_FORMATS.get(name)
        return OutputParser(
            CALL_FORMATS.get(calls or ""), known, is_open=bool(begun), schemas=SCHEMAS
        )

    whole = parsed([text], parser())
    assert plain(whole) == expected
    for at in range(len(text)):
        assert plain(parsed([text[:at], text[at:]], parser())) == expected
    assert plain(parsed(text, parser())) == expected


@pytest.mark.parametrize("text", ["...", "{1, 2}", "{(1, 2): 3}", "b'a'", "NaN", "[-Infinity]"])
def test_values_that_are_no_json_are_texts(text: str) -> None:
    for types in (frozenset[str](), frozenset({"number", "array", "object"})):
        assert json.loads(values.from_text(text, types), parse_constant=pytest.fail) == text
    assert values.from_keywords(f"a={text}") is None
    assert values.from_unquoted(f"{{a:{text}}}", '"') is None


@pytest.mark.parametrize("name", ["qwen3_coder", "gemma4"])
def test_values_of_texts_hold_wherever_a_schema_has_them(name: str) -> None:
    for one, words in (
        ({"$ref": "#/$defs/City"}, ("Rome", "Oslo")),
        ({"type": "string", "enum": ["Rome", "Oslo"]}, ("Rome", "Oslo")),
        ({"const": "Rome"}, ("Rome",)),
    ):
        schema = {
            "type": "object",
            "properties": {"city": one},
            "$defs": {"City": {"type": "string", "enum": ["Rome", "Oslo"]}},
        }
        grammar = output_grammar(CALL_FORMATS[name], None, Marks({}), schemas={"f": schema})
        assert all(f'"{word}"' in grammar.source for word in words), one


def test_identifiers() -> None:
    """Mistral's templates require nine letters and digits; Kimi's read names and numbers."""
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    found = {call.id for call in parsed([text * 9], OutputParser(CALL_FORMATS["hermes"])).calls}
    assert len(found) == 9
    assert all(len(one) == 9 and one.isalnum() for one in found)
    kimi = "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>{}<|tool_call_end|>"
    assert parsed([kimi], OutputParser(CALL_FORMATS["kimi_k2"])).calls[0].id == "functions.f:3"
    mistral = "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{}"
    assert parsed([mistral], OutputParser(CALL_FORMATS["mistral"])).calls[0].id == "abcdefghi"
    assert len(parsed([text * 3], OutputParser(CALL_FORMATS["hermes"], most=1)).calls) == 1


# --- grammars ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(TINY_LLAMA)


@pytest.fixture(scope="module")
def guides(tokenizer: Tokenizer) -> Guides:
    return Guides(tokenizer, tokenizer.vocab_size, [1])


def walked(guides: Guides, grammar: Any, tokenizer: Tokenizer, end: str, seed: int) -> str:
    """Return a random text of a grammar; free text in it soon has its end."""
    draw, guide, tokens = np.random.default_rng(seed), guides.guide(grammar), list[int]()
    closing, left = tokenizer.encode(end, special_tokens=False), list[int]()
    for _ in range(600):
        allowed = np.flatnonzero(guide.allowed())
        if len(allowed) > tokenizer.vocab_size // 2 and not left and draw.random() < 0.5:
            left = [*closing]
        token = left.pop(0) if left else int(draw.choice(allowed))
        token = 1 if 1 in allowed else token if token in allowed else int(draw.choice(allowed))
        if token == 1 or guide.take(token):
            return tokenizer.spelled([*tokens, *([token] if token != 1 else [])])
        tokens.append(token)
    return ""


@pytest.mark.parametrize("name", CALL_FORMATS)
def test_a_required_call_is_valid_in_the_format_of_the_family(
    name: str, guides: Guides, tokenizer: Tokenizer
) -> None:
    known, found = CALL_FORMATS[name], 0
    end = known.quote or known.argument.partition("{value}")[2].strip() or '"'
    for schemas, count in ((SCHEMAS, 2), ({"get_weather": SCHEMAS["get_weather"]}, 4)):
        grammar = output_grammar(
            known, None, Marks(tokenizer.special), schemas=schemas, several=False
        )
        for seed in range(count):
            text = walked(guides, grammar, tokenizer, end, seed)
            if text:
                output = parsed([text], OutputParser(known, schemas=SCHEMAS))
                (call,) = output.calls
                assert not output.text.strip()
                arguments = json.loads(call.arguments)
                if known.argument or known.quote:  # whose strings have no limit
                    arguments = {**arguments, **({"city": "a"} if "city" in arguments else {})}
                jsonschema.validate(arguments, schemas[call.name])
                found += len(schemas) == 1
    assert found


def accepts(guides: Guides, grammar: Grammar, tokenizer: Tokenizer, text: str) -> bool:
    """Return whether a grammar allows a text, and its end."""
    guide = guides.guide(grammar)
    for token in tokenizer.encode(text, special_tokens=False):
        if not guide.allowed()[token]:
            return False
        guide.take(token)
    return bool(guide.allowed()[1])


def test_answers_with_marks_lose_them(guides: Guides, tokenizer: Tokenizer) -> None:
    """The prompt begins the mark of the first one, with tools and without."""
    source = TemplateSource(MARKED, {})
    known = ChatFormat.of(source)
    assert known.calls is CALL_FORMATS["functionary_v3"]
    prompt = source.render([{"role": "user", "content": "Hi"}])
    call = 'get_weather\n{"city": "Rome"}'
    for text, output, count in (
        ("all\nHi >>> there", "Hi >>> there", 0),
        (f"all\nHi>>>{call}>>>{call}", "Hi", 2),
        (f"{call}>>>all\nHi", "Hi", 1),
        (call.replace("get_weather", "all_places"), "", 1),
        ("Hi there", "Hi there", 0),
        (" all\nHi", " all\nHi", 0),
    ):
        for schemas in (SCHEMAS, None):
            for places in ([], [1], [2, 5], range(0, len(text), 3)):
                parser = known.parser(prompt, schemas=schemas)
                assert parser is not None
                found = parsed(cut(text, places), parser)
                assert (found.text, len(found.calls)) == (output, count), text
    form = Grammar.regex("Hi")
    schemas = {"now": SCHEMAS["now"]}
    for end, mark in ((prompt, ""), ("", ">>>")):
        grammar = output_grammar(
            known.calls, None, Marks({}), schemas=schemas, otherwise=form, prompt=end
        )
        for text, fits in (
            (f"{mark}now\n{{}}", True),
            (f"{mark}now\n{{}}>>>now\n{{}}", True),
            (f"{mark}all\nHi", True),
            (f"{mark}Hi", False),
            (f"{mark}allHi", False),
        ):
            assert accepts(guides, grammar, tokenizer, text) == fits, (end, text)


@pytest.mark.parametrize(
    "name", ["hermes", "deepseek_v31", "qwen3_coder", "seed_oss", "glm45", "internlm"]
)
def test_broken_arguments_have_no_mark_of_a_call(name: str) -> None:
    """The mark of a call ends arguments without an end, and a string if another call or nothing follows."""
    known = CALL_FORMATS[name]
    source = TemplateSource(TEMPLATES[name], {})
    call: Any = {"name": "get_weather", "arguments": {"city": "Rome"}}
    message = {
        "role": "assistant",
        "tool_calls": [{"id": "a", "type": "function", "function": call}],
    }
    user = {"role": "user", "content": "x"}
    before = source.render([user], tools=TOOLS)
    whole = source.render([user, message], tools=TOOLS, add_generation_prompt=False)
    text = whole.removeprefix(before).removesuffix("<|end_of_turn|>\n")
    at = text.index("Rome") + len("Rome")
    broken = [text[:at] + re.sub(r"^(\"\}?|\s*</(parameter|arg_value)>)", "", text[at:])]
    if not known.argument:
        broken.append(text.replace('"}', '"'))
    for one in broken:
        cuts: list[Sequence[int]] = [[], range(1, len(one), 2), range(0, len(one), 7)]
        for places in cuts:
            found = parsed(cut(one, places), OutputParser(known, schemas=SCHEMAS))
            (first,) = found.calls
            assert re.fullmatch(r'\{"city": ?"Rome"?[\s}]*', first.arguments), first.arguments
            both = parsed(cut(f"{one}\n{text}", places), OutputParser(known, schemas=SCHEMAS))
            assert [json.loads(call.arguments) for call in both.calls[1:]] == [{"city": "Rome"}]
    marked = text.replace("Rome", f"a {known.texts[1][-12:]} b")
    found = parsed([marked], OutputParser(known, schemas=SCHEMAS))
    assert json.loads(found.calls[0].arguments) == {"city": f"a {known.texts[1][-12:]} b"}


def test_reasoning_may_come_before_a_required_call(guides: Guides, tokenizer: Tokenizer) -> None:
    known, thinks = CALL_FORMATS["hermes"], REASONING_FORMATS["think"]
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    schemas = {"now": SCHEMAS["now"]}
    for thoughts, accepted in (
        ("begun", {f"hm</think>\n\n{call}": True, call: False}),
        ("possible", {f"<think>hm</think>{call}": True, call: True, f"hm{call}": False}),
        ("ended", {call: True, f"<think></think>{call}": False}),
    ):
        grammar = output_grammar(known, thinks, Marks({}), schemas=schemas, thoughts=thoughts)  # type: ignore[arg-type]
        for text, fits in accepted.items():
            assert accepts(guides, grammar, tokenizer, text) == fits, (thoughts, text)


def test_a_hostile_schema_takes_no_minute(guides: Guides) -> None:
    """A thousand optional fields cost a rule each, and a schema that refers to itself has an end."""
    many = {"type": "object", "properties": {f"a{at}": {"type": "boolean"} for at in range(1000)}}
    source = output_grammar(CALL_FORMATS["lfm2"], None, Marks({}), schemas={"f": many}).source
    assert len(source) < 500_000
    guides.check(Grammar(source))
    own = {f"a{at}": {"$ref": "#"} for at in range(9)}
    with pytest.raises(GenerationError, match="more than 20,000 rules"):
        output_grammar(
            CALL_FORMATS["gemma4"],
            None,
            Marks({}),
            schemas={"f": {"type": "object", "properties": own}},
        )


def test_special_tokens_of_a_grammar_are_tokens(guides: Guides, tokenizer: Tokenizer) -> None:
    """The mark of this format is a special token here, which no text of a grammar could spell."""
    known = CALL_FORMATS["gigachat3"]
    grammar = output_grammar(
        known, None, Marks({3: "<|function_call|>"}), schemas={"now": SCHEMAS["now"]}, several=False
    )
    guide = guides.guide(grammar)
    assert np.flatnonzero(guide.allowed()).tolist() == [3]


@pytest.mark.parametrize("begun", [True, False])
def test_a_budget_ends_the_reasoning_alone(tokenizer: Tokenizer, begun: bool) -> None:
    budget = ThinkingBudget(tokens=4, begin="<think>", end="</think>", begun=begun)

    def written(text: str) -> str:
        guide = BudgetGuide(budget, None, tokenizer, tokenizer.vocab_size)
        tokens, wanted = list[int](), tokenizer.encode(text, special_tokens=False)
        while wanted:
            allowed = np.flatnonzero(guide.allowed())
            token = wanted.pop(0) if len(allowed) > 1 else int(allowed[0])
            assert not guide.take(token)
            tokens.append(token)
        return tokenizer.spelled(tokens)

    before = "" if begun else "<think>"
    assert written(f"{before}a</think>ok ok ok ok ok ok") == f"{before}a</think>ok ok ok ok ok ok"
    assert written(f"{before} a a a a a a a a").startswith(f"{before} a a a a</think> a")
    if not begun:
        assert (
            written("ok ok ok ok ok <think> ok ok ok ok ok")
            == "ok ok ok ok ok <think> ok ok ok ok ok"
        )


def test_special_tokens_of_a_format_are_text(tokenizer: Tokenizer) -> None:
    tokens = [
        *tokenizer.encode("a", special_tokens=False),
        3,
        4,
        *tokenizer.encode("b", special_tokens=False),
    ]
    for shown, text in (((), "ab"), ({3}, "a<|end_of_turn|>b")):
        stream = TextStream(tokenizer, shown)
        assert "".join([*map(stream.push, tokens), stream.finish()]) == text
        assert tokenizer.decode(tokens, shown) == text
