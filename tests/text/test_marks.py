# SPDX-License-Identifier: Apache-2.0
"""Marks of formats as tokens: special ones, ordinary added ones, and none, in calls, structured answers and budgets."""

import json
import re
import time
from collections.abc import Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import numpy as np
import pytest
import tokenizers
from chat_templates import TEMPLATES
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from qeff_zoo.runtime.text.chat_output import CALL_FORMATS, REASONING_FORMATS, ChatFormat, Output
from qeff_zoo.runtime.text.chat_output.call_grammar import output_grammar
from qeff_zoo.runtime.text.chat_output.formats import ANALYSIS
from qeff_zoo.runtime.text.chat_output.free_grammar import free_grammar, loosened
from qeff_zoo.runtime.text.grammar import Grammar, Guide, Guides
from qeff_zoo.runtime.text.json_schemas import without_distinct
from qeff_zoo.runtime.text.template_source import TemplateSource
from qeff_zoo.runtime.text.thinking_budget import BudgetGuide
from qeff_zoo.runtime.text.token_bytes import bytes_of_tokens, completes, missing_bytes
from qeff_zoo.runtime.text.tokenizer import TextStream, Tokenizer
from qeff_zoo.runtime.text.vocabulary import Vocabulary

pytestmark = pytest.mark.turns(2)

EOS = "<|end_of_text|>"
#: Marks of formats: a name in brackets, or between bars.
_MARK = re.compile(r"</?[^<>{}\s]+>|\[/?[A-Z_ ]+\]|\uff5cDSML\uff5c")
CITY = {"type": "string", "enum": ["Rome", "Oslo"]}
SCHEMAS: dict[str, Any] = {
    "get_weather": {
        "type": "object",
        "properties": {"city": CITY, "days": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
}
ANSWER: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "<think>", "</tool_call>", "e\u0301"]}},
    "required": ["a"],
    "additionalProperties": False,
}
KINDS = ("ordinary", "special", "first ordinary, last special", "none")


def marks_of(texts: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(one for text in texts for one in _MARK.findall(text)))


@cache
def tokenizer_of(folder: Path, marks: tuple[str, ...], kind: str, by_bytes: bool) -> Tokenizer:
    """Return a tokenizer of bytes, and a few words, with marks of a kind."""
    words = ["Ġa", "na", "me", "e"]
    if by_bytes:
        names = [
            "<unk>",
            *(f"<0x{byte:02X}>" for byte in range(256)),
            "▁",
            *map(chr, range(33, 127)),
        ]
        made = tokenizers.Tokenizer(
            models.BPE(
                {name: at for at, name in enumerate(names)},
                [],
                byte_fallback=True,
                unk_token="<unk>",
                fuse_unk=True,
            )
        )
        made.normalizer = tokenizers.normalizers.Sequence(
            [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
        )
        made.decoder = decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
    else:
        names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *words[:-1]]
        merges = [("Ġ", "a"), ("n", "a"), ("m", "e")]
        made = tokenizers.Tokenizer(models.BPE({name: at for at, name in enumerate(names)}, merges))
        made.normalizer = tokenizers.normalizers.NFC()
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(EOS, normalized=False)])
    for at, mark in enumerate(marks if kind != "none" else ()):
        is_special = kind == "special" or (kind.endswith("last special") and at == len(marks) - 1)
        one = AddedToken(mark, normalized=at % 3 == 2, rstrip=at % 2 == 1)
        (made.add_special_tokens if is_special else made.add_tokens)([one])
    made.add_tokens([AddedToken("city", normalized=False), AddedToken("\n\n", normalized=False)])
    made.add_tokens([AddedToken("<b>", normalized=False), AddedToken("né", normalized=False)])
    place = folder / str(abs(hash((marks, kind, by_bytes))))
    place.mkdir(exist_ok=True)
    made.save(str(place / "tokenizer.json"))
    return Tokenizer(place)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("marks")


def id_of(tokenizer: Tokenizer, name: str) -> int:
    token = tokenizer.token_id(name)
    assert token is not None
    return token


def guides_of(tokenizer: Tokenizer) -> Guides:
    return Guides(tokenizer, tokenizer.vocab_size + 5, [id_of(tokenizer, EOS)])


def walked(
    guide: Guide, tokenizer: Tokenizer, hints: Sequence[str], seed: int, most: int = 900
) -> list[int]:
    """Return random tokens that a guide allows; in free text one of some hints comes soon, in any tokens."""
    draw, tokens, left = np.random.default_rng(seed), list[int](), list[int]()
    eos = id_of(tokenizer, EOS)
    for _ in range(most):
        allowed = np.flatnonzero(guide.allowed())
        assert all(guide.allows(int(one)) for one in allowed[:4])
        if len(allowed) > 60 and not left and draw.random() < 0.3:
            hint = str(draw.choice(np.array(hints, object)))
            left = [
                *(
                    tokenizer.spell(hint)
                    if draw.random() < 0.3
                    else tokenizer.encode(hint, special_tokens=False)
                )
            ]
        token = left.pop(0) if left else int(draw.choice(allowed))
        if token not in allowed:
            left, token = [], int(draw.choice(allowed))
        token = eos if eos in allowed else token
        if token == eos:
            return tokens
        tokens.append(token)
        if guide.take(token):
            return tokens
    pytest.fail(f"No end: {tokenizer.spelled(tokens)!r}")


def parsed(
    known: ChatFormat, tokenizer: Tokenizer, tokens: Sequence[int], prompt: str = "", **choices: Any
) -> Output:
    """Return an output, streamed token by token, which is the same for the whole text."""
    shown = known.shown(tokenizer)
    stream, streamed = TextStream(tokenizer, shown), known.parser(prompt, **choices)
    assert streamed is not None
    events = [event for token in tokens for event in streamed.push(stream.push(token))]
    events += [*streamed.push(stream.finish()), *streamed.finish()]
    whole = known.parser(prompt, **choices)
    assert whole is not None
    text = tokenizer.decode(tokens, shown)
    found = Output.of([*whole.push(text), *whole.finish()])
    plain = Output.of(events)
    assert (plain.text, plain.reasoning) == (found.text, found.reasoning)
    assert [(call.name, call.arguments) for call in plain.calls] == [
        (call.name, call.arguments) for call in found.calls
    ]
    return found


def check_tokens(tokenizer: Tokenizer, marks: Sequence[str], tokens: Sequence[int]) -> None:
    """Check that a mark is its token wherever the tokenizer has one, and never other tokens of the same text."""
    known = {token: mark for mark in marks if (token := tokenizer.token_id(mark)) is not None}
    between = [*tokens]
    for at, token in enumerate(tokens):
        if token in known:
            between[at] = id_of(tokenizer, "city")  # any other token
    text = tokenizer.spelled(between)
    assert not [mark for mark in known.values() if mark in text]


def ends_of(known: ChatFormat) -> list[str]:
    """Return the ends of free text in outputs of a format."""
    assert known.calls
    reasoning = ANALYSIS if known.calls.channels else known.reasoning
    ends = (
        known.calls.quote,
        known.calls.argument.partition("{value}")[2].strip(),
        reasoning.end.strip() if reasoning else "",
    )
    return [end for end in ends if end] or ["a"]


CALLS = [name for name, format in CALL_FORMATS.items() if marks_of(format.texts)]


@pytest.mark.parametrize("name", CALLS)
def test_required_calls_have_the_tokens_of_marks(name: str, folder: Path) -> None:
    known = ChatFormat(calls=CALL_FORMATS[name], takes_tools=True)
    marks = marks_of(CALL_FORMATS[name].texts)
    for at, (kind, by_bytes) in enumerate(product(KINDS, (False, True))):
        tokenizer = tokenizer_of(folder, tuple(marks), kind, by_bytes)
        of_format = known.marks(tokenizer)
        assert {tokenizer.added[one]["content"] for one in of_format.ids} == (
            set() if kind == "none" else {*marks}
        )
        grammar = output_grammar(known.calls, None, of_format, schemas=SCHEMAS, several=False)
        tokens = walked(guides_of(tokenizer).guide(grammar), tokenizer, ends_of(known), at)
        output = parsed(known, tokenizer, tokens, schemas=SCHEMAS)
        (call,) = output.calls
        assert call.name == "get_weather"
        assert not output.text.strip()
        jsonschema.validate(json.loads(call.arguments), SCHEMAS["get_weather"])
        check_tokens(tokenizer, marks, tokens)


REASONING = [*REASONING_FORMATS, "openai"]


def call_of(name: str, arguments: dict[str, Any], function: str = "get_weather") -> str:
    """Return a call as the template of a format renders it."""
    source, user = TemplateSource(TEMPLATES[name], {}), {"role": "user", "content": "x"}
    called = {"name": function, "arguments": arguments}
    message = {"tool_calls": [{"id": "a12345678", "type": "function", "function": called}]}
    tools = {"tools": [{"type": "function", "function": {"name": "get_weather"}}]}
    before = source.render([user], **tools)
    whole = source.render(
        [user, {"role": "assistant", **message}], **tools, add_generation_prompt=False
    )
    output = whole.removeprefix(before)
    # This template renders the type of each argument that is no string as an object's.
    output = output.replace('type="object"', 'type="integer"')
    return output.removesuffix("<|end_of_turn|>\n").removesuffix("<|call|>")


def accepts(
    guides: Guides, known: ChatFormat, tokenizer: Tokenizer, grammar: Any, text: str
) -> bool:
    """Return whether a grammar allows a text whose marks are tokens, and its end."""
    guide, tokens = guides.guide(grammar), known.marks(tokenizer).encode(text, tokenizer)
    for place, token in enumerate(tokens, 1):
        if not guide.allows(token):
            return False
        if guide.take(token):
            return place == len(tokens)
    return guide.allows(id_of(tokenizer, EOS))


GOOD = {"city": "Rome", "days": 3}
#: Arguments and functions of calls: valid, with an invalid argument, and of an unknown function.
FREE_CALLS: tuple[tuple[dict[str, Any], str], ...] = (
    (GOOD, "get_weather"),
    ({"city": "Rome", "days": "x"}, "get_weather"),
    (GOOD, "burn"),
)


@pytest.mark.parametrize("name", [name for name in CALL_FORMATS if name in TEMPLATES])
def test_free_text_and_calls_of_known_functions(name: str, folder: Path) -> None:
    """Text is free up to the mark of a call; then the function, and at a level its arguments, must be right."""
    calls = CALL_FORMATS[name]
    known, marks = ChatFormat(calls=calls, takes_tools=True), tuple(marks_of(calls.texts))
    before, after = ("", "") if calls.bare or calls.channels else ("Hi {a} [b] <b>.\n", "\nSo.")
    answer = {"openai": "<|channel|>final<|message|>", "functionary_v3": ">>>all\n"}.get(name, "")
    loose = {key: loosened(calls, schema) for key, schema in SCHEMAS.items()}
    for kind, schemas, fits in (
        ("none", SCHEMAS, (True, False, False)),
        ("special", loose, (True, None, False)),
    ):
        tokenizer = tokenizer_of(folder, marks, kind, False)
        guides, of_format = guides_of(tokenizer), known.marks(tokenizer)
        grammar = free_grammar(calls, None, of_format, schemas=schemas)
        allows = partial(accepts, guides, known, tokenizer, grammar)
        assert allows(f"{answer}Hi {{a}} [b] <b>.")
        for (arguments, function), expected in zip(FREE_CALLS, fits, strict=True):
            call = call_of(name, arguments, function)
            if expected is not None:
                texts = {call, f"{before}{call}", f"{call}{after and answer}{after}"}
                assert {allows(text) for text in texts} == {expected}, (kind, call)


#: Functions with sets, of the same arguments as one with lists.
_NUMBERS: dict[str, Any] = {"type": "array", "items": {"type": "integer"}}
SETS: dict[str, Any] = {
    "get": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {**_NUMBERS, "uniqueItems": True},
            "parts": {"type": "array", "items": {"$ref": "#/$defs/names"}},
        },
        "required": ["city", "days", "parts"],
        "additionalProperties": False,
        "$defs": {"names": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}},
    },
    "get_all": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": _NUMBERS},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
LISTS = {name: without_distinct(value) for name, value in SETS.items()}
#: Arguments of calls, and whether they are valid.
SET_CALLS: tuple[tuple[str, dict[str, Any], bool], ...] = (
    ("get", {"city": "a", "days": [3, 1, 2], "parts": [["a", "b"], ["a"]]}, True),
    ("get", {"city": "a", "days": [], "parts": []}, True),
    ("get", {"city": "a", "days": [3, 1, 3], "parts": []}, False),
    ("get", {"city": "a [1, 1] {", "days": [12, 1], "parts": [["a"], ["b", "b"]]}, False),
    ("get_all", {"city": "[1, 1]", "days": [3, 3]}, True),
)
_UNQUOTED = ("functiongemma", "gemma4")


@pytest.mark.parametrize(
    "name", [format for format in CALL_FORMATS if format in TEMPLATES and format not in _UNQUOTED]
)
@pytest.mark.sampled(5)
def test_sets_of_arguments_have_different_items(name: str, folder: Path) -> None:
    calls = CALL_FORMATS[name]
    known, marks = ChatFormat(calls=calls, takes_tools=True), tuple(marks_of(calls.texts))
    for kind in ("none", "special", "ordinary"):
        tokenizer = tokenizer_of(folder, marks, kind, False)
        guides, of_format = guides_of(tokenizer), known.marks(tokenizer)
        for form in (free_grammar, output_grammar):
            is_free = form is free_grammar
            # Of lists, what a grammar takes of the blanks of a template.
            grammar, of_lists = (form(calls, None, of_format, schemas=one) for one in (SETS, LISTS))
            before = (
                "Hi {[1,1] a(b=[1, 1, " if is_free and not (calls.bare or calls.channels) else ""
            )
            for function, arguments, fits in SET_CALLS:
                call = call_of(name, arguments, function).replace('type="integer"', 'type="array"')
                allows = partial(accepts, guides, known, tokenizer)
                is_known = allows(of_lists, before + call)
                assert is_known or not is_free
                assert allows(grammar, before + call) == (fits and is_known), (kind, is_free, call)


@pytest.mark.parametrize("kind", ["none", "special"])
@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "lfm2"])
@pytest.mark.sampled(2)
def test_sets_of_several_calls_and_of_an_answer(name: str, kind: str, folder: Path) -> None:
    """Reasoning and texts of arguments may look like calls; a call comes after another one, or an answer instead."""
    calls, thinks = CALL_FORMATS[name], REASONING_FORMATS["think"]
    known = ChatFormat(calls=calls, reasoning=thinks, takes_tools=True)
    tokenizer = tokenizer_of(folder, tuple(marks_of([*calls.texts, *thinks.texts])), kind, False)
    guides, marks = guides_of(tokenizer), known.marks(tokenizer)
    right, wrong = ({"city": "a", "days": days, "parts": []} for days in ([1, 2], [1, 2, 1]))
    good, bad = (call_of(name, one, "get") for one in (right, wrong))
    inner = bad if kind == "none" else re.sub("<[^>]*>", "", bad)
    thought = f"<think>Is it {inner} or {inner[:-30]}?</think>\n"
    text = call_of(name, {**right, "city": "days=[1,1"}, "get")
    form = Grammar.json({**_NUMBERS, "uniqueItems": True})
    for grammar in (
        output_grammar(calls, thinks, marks, schemas=SETS, otherwise=form),
        free_grammar(calls, thinks, marks, schemas=SETS),
    ):
        allows = partial(accepts, guides, known, tokenizer, grammar)
        for begun in ("", thought):
            assert allows(begun + good)
            assert not allows(begun + bad)
            assert allows(begun + text)
        for first, second, fits in ((good, good, True), (good, bad, False), (text, bad, False)):
            begin = first.removesuffix(calls.end) if calls.end else first
            rest = second.removeprefix(calls.begin) if calls.begin else second
            assert allows(f"{thought}{begin}{calls.join}{rest}") == fits
    answered = output_grammar(calls, thinks, marks, schemas=SETS, otherwise=form)
    for begun in ("", thought):
        assert accepts(guides, known, tokenizer, answered, f"{begun}[1, 2]")
        assert not accepts(guides, known, tokenizer, answered, f"{begun}[1, 1]")


@pytest.mark.parametrize("name", [name for name, format in CALL_FORMATS.items() if format.bare])
def test_an_answer_with_sets_may_begin_as_a_call_without_a_mark(name: str, folder: Path) -> None:
    """Each form holds until the output can no longer be of it, after reasoning too."""
    calls, thinks = CALL_FORMATS[name], REASONING_FORMATS["think"]
    known = ChatFormat(calls=calls, reasoning=thinks, takes_tools=True)
    tokenizer = tokenizer_of(folder, tuple(marks_of([*calls.texts, *thinks.texts])), "none", False)
    marks = known.marks(tokenizer)
    right, wrong = (
        call_of(name, {"city": "a", "days": one, "parts": []}, "get") for one in ([1, 2], [1, 1])
    )
    numbers = {**_NUMBERS, "uniqueItems": True}
    own = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "days": numbers},
        "required": ["name", "days"],
    }
    form = Grammar.json({"anyOf": [own, {**numbers, "minItems": 2, "maxItems": 3}]})
    grammar = output_grammar(calls, thinks, marks, schemas=SETS, otherwise=form)
    for closed in (grammar, grammar.closed()):
        guides = guides_of(tokenizer)
        allows = partial(accepts, guides, known, tokenizer, closed)
        for begun in ("", "<think>[1, 1] or " + wrong + "</think>"):
            for text in (
                right,
                '{"name": "get", "days": [1, 2]}',
                '{"name": "a", "days": []}',
                "[3, 1]",
            ):
                assert allows(begun + text), text
            for text in (wrong, '{"name": "get", "days": [1, 1]}', "[1, 1]", "[1, 2, 1]", "[]"):
                assert not allows(begun + text), text
    guides.check(grammar)
    assert guides.is_quick(grammar)
    of_one = output_grammar(
        calls, thinks, marks, schemas=SETS, several=False, thoughts="ended", otherwise=form
    )
    kinds = set[str]()
    for seed in range(20):
        text = tokenizer.decode(walked(guides.guide(of_one), tokenizer, ['"'], seed))
        if text.startswith("[get"):
            kinds.add("call in Python")
            continue
        answer = json.loads(text)
        kinds.add("list" if isinstance(answer, list) else min(answer))
        days = answer if isinstance(answer, list) else answer.get("parameters", answer)["days"]
        is_free = isinstance(answer, dict) and answer["name"] == "get_all" and "days" not in answer
        assert is_free or len({*days}) == len(days), text
    assert len(kinds) > 1


@pytest.mark.parametrize("kind", ["none", "special"])
def test_reasoning_is_free_before_calls(kind: str, folder: Path) -> None:
    """Reasoning may name a call, and need not end; calls after it are restricted to known functions."""
    calls, thinks = CALL_FORMATS["hermes"], REASONING_FORMATS["think"]
    known = ChatFormat(calls=calls, reasoning=thinks, takes_tools=True)
    tokenizer = tokenizer_of(folder, tuple(marks_of([*calls.texts, *thinks.texts])), kind, False)
    guides, marks = guides_of(tokenizer), known.marks(tokenizer)
    call, wrong = call_of("hermes", GOOD), call_of("hermes", GOOD, "burn")
    thought = "Is it <tool_call>{? No." if kind == "none" else "Is it? No."
    for state, begin in (("possible", "<think>"), ("begun", ""), ("ended", "")):
        grammar = free_grammar(calls, thinks, marks, schemas=SCHEMAS, thoughts=state)  # type: ignore[arg-type]
        allows = partial(accepts, guides, known, tokenizer, grammar)
        whole = "" if state == "ended" else f"{begin}{thought}</think>\n"
        for text, fits in (
            (f"{whole}Hi", True),
            (f"{whole}Hi {call}", True),
            (f"{whole}{wrong}", False),
            (f"{begin}{'It' if state == 'ended' else thought}", True),
            (call, state != "begun" or kind == "none"),  # else reasoning without an end
        ):
            assert allows(text) == fits, (state, text)


def reasoning_format(name: str) -> ChatFormat:
    if name == "openai":
        return ChatFormat(calls=CALL_FORMATS[name])
    return ChatFormat(reasoning=REASONING_FORMATS[name])


def marks_of_reasoning(known: ChatFormat) -> list[str]:
    """Return the marks of a format; whole texts, where it has none."""
    reasoning = known.reasoning or ANALYSIS
    return marks_of(reasoning.texts) or [reasoning.begin, reasoning.end]


@pytest.mark.parametrize("name", REASONING)
def test_an_answer_has_its_schema_after_reasoning(name: str, folder: Path) -> None:
    """Marks in the strings of the answer are text."""
    known = reasoning_format(name)
    marks, found = marks_of_reasoning(known), set()
    end = (known.reasoning or ANALYSIS).end.strip()
    for at, (kind, by_bytes) in enumerate(product(KINDS, (False, True))):
        tokenizer = tokenizer_of(folder, tuple(marks), kind, by_bytes)
        of_format = known.marks(tokenizer)
        thoughts: Any = ("possible", "begun")[at % 3 > 0 and name != "openai"]
        grammar = output_grammar(
            known.calls,
            known.reasoning,
            of_format,
            thoughts=thoughts,
            otherwise=Grammar.json(ANSWER),
        )
        tokens = walked(guides_of(tokenizer).guide(grammar), tokenizer, [end], at)
        prompt = known.reasoning.begin if known.reasoning and thoughts == "begun" else ""
        output = parsed(known, tokenizer, tokens, prompt=prompt, structured=True)
        assert output.text, (kind, by_bytes, tokenizer.spelled(tokens), output)
        jsonschema.validate(json.loads(output.text), ANSWER)
        found.add(json.loads(output.text)["a"])
        assert end not in output.reasoning
        if output.reasoning:
            assert {*of_format.encode(end, tokenizer)} & of_format.ids <= {*tokens}
    assert len(found) > 1


CHARACTERS = "é中😀"


@pytest.mark.parametrize("name", REASONING)
def test_a_budget_ends_reasoning_also_within_a_character(name: str, folder: Path) -> None:
    known = reasoning_format(name)
    marks = marks_of_reasoning(known)
    for at, (kind, by_bytes, form) in enumerate(product(KINDS, (False, True), (True, False))):
        tokenizer = tokenizer_of(folder, tuple(marks), kind, by_bytes)
        form_of = Grammar.json(ANSWER) if form else None
        guides, of_format = guides_of(tokenizer), known.marks(tokenizer)
        begin = (known.reasoning or ANALYSIS).begin.strip()
        budget = known.budget(begin if known.reasoning else "", 3 + at % 4, tokenizer)
        assert budget is not None
        inner = None
        if form_of:
            thoughts: Any = "begun" if known.reasoning else "possible"
            grammar = output_grammar(
                known.calls, known.reasoning, of_format, thoughts=thoughts, otherwise=form_of
            )
            inner = guides.guide(grammar)
        guide = BudgetGuide(budget, inner, tokenizer, tokenizer.vocab_size + 5)
        wanted = [] if known.reasoning else [*of_format.encode(begin, tokenizer)]
        wanted += tokenizer.spell(CHARACTERS * 9)
        before = len(wanted) - len(tokenizer.spell(CHARACTERS * 9))
        tokens, last = list[int](), id_of(tokenizer, EOS)
        while wanted:  # the model goes on with its reasoning, whatever it is
            allowed = np.flatnonzero(guide.allowed())
            if (
                len(allowed) == 1
                and tokens[-1:]
                and tokens[-1] != allowed[0]
                and len(tokens) > before
            ):
                break
            token = wanted.pop(0)
            token = token if token in allowed else int(allowed[0])
            guide.take(token)
            tokens.append(token)
        assert budget.tokens <= len(tokens) - before <= budget.tokens + 3
        thought = tokenizer.spelled(tokens[before:])
        assert CHARACTERS.startswith(thought[:3])
        for token in budget.end_ids:
            assert np.flatnonzero(guide.allowed()).tolist() == [token]
            assert guide.allows(token)
            guide.take(token)
            tokens.append(token)
        if inner is None:
            assert guide.allowed().all()
            continue
        rest = walked(guide, tokenizer, ["a"], at)
        output = parsed(
            known, tokenizer, [*tokens, *rest],
            prompt=begin if known.reasoning else "", structured=True,
        )  # fmt: skip
        assert output.text, (kind, by_bytes, tokenizer.spelled([*tokens, *rest]), output)
        jsonschema.validate(json.loads(output.text), ANSWER)
        assert output.reasoning == thought.strip()
        assert last not in tokens


# --- vocabularies ---------------------------------------------------------------------------------


@pytest.mark.parametrize("by_bytes", [False, True])
def test_texts_of_added_tokens_are_text_elsewhere(by_bytes: bool, folder: Path) -> None:
    """Forced texts of special tokens, ordinary tokens in strings, names in Lark, and characters that NFC changes."""
    marks = ("<tool_call>", "<|call|>")
    tokenizer = tokenizer_of(folder, marks, "first ordinary, last special", by_bytes)
    guides = guides_of(tokenizer)
    ordinary, special, bold = (id_of(tokenizer, one) for one in (*marks, "<b>"))
    texts = ["<|call|>", "<tool_call>", "e\u0301", "né\n\n", EOS]
    for text in texts:
        for grammar, whole in (
            (Grammar.choice([text]), text),
            (Grammar.regex(re.escape(text)), text),
            (Grammar.json({"const": text}), json.dumps(text, ensure_ascii=False)),
        ):
            tokens = walked(guides.guide(grammar), tokenizer, ["a"], 0)
            spelled = b"".join((tokenizer.token_bytes or {})[token] for token in tokens).decode()
            assert (json.loads(spelled) == text) if whole != text else (spelled == text)
            assert special not in tokens
    string = guides.guide(Grammar.json({"type": "string"}))
    string.take(tokenizer.spell('"')[0])
    assert string.allows(bold)
    assert string.allows(ordinary)
    assert not string.allows(special)
    assert not string.allows(id_of(tokenizer, EOS))
    for source, first in (
        ("start: <tool_call>", {ordinary}),
        ("start: <|call|>", {special}),
        (f"start: <[{ordinary}]>", {ordinary}),
        ('start: "<tool_call>"', {*tokenizer.spell("<tool_call>")[:1]}),
        ('start: "<tool_call>" | <tool_call>', {ordinary, *tokenizer.spell("<tool_call>")[:1]}),
        ("start: /<tool_call>/ // <tool_call>", {*tokenizer.spell("<tool_call>")[:1]}),
    ):
        guide = guides.guide(Grammar.lark(source))
        allowed = {*np.flatnonzero(guide.allowed()).tolist()}
        assert {*map(tokenizer.piece, allowed)} == {*map(tokenizer.piece, first)}, source
        assert guide.allows(ordinary) == (special not in first), source


@pytest.mark.parametrize("by_bytes", [False, True])
def test_bytes_of_tokens_are_those_of_decoded_text(by_bytes: bool, folder: Path) -> None:
    tokenizer = tokenizer_of(folder, ("<think>", "né x", "工具"), "ordinary", by_bytes)
    known = tokenizer.token_bytes
    assert known is not None
    before = tokenizer.spell("a")
    for token in tokenizer.vocabulary.values():
        text = tokenizer.spelled([*before, token])
        if "\N{REPLACEMENT CHARACTER}" not in text:
            assert b"a" + known[token] == text.encode()
    draw = np.random.default_rng(0)
    for _ in range(200):
        data = "".join(draw.choice([*"aé中😀 <"], 5))
        assert b"".join(known[token] for token in tokenizer.spell(data)).decode() == data


def test_time_grows_with_the_vocabulary_alone() -> None:
    """Published vocabularies have 150,000 tokens and more."""

    def seconds(size: int) -> float:
        known = {token: b"%d" % token for token in range(size)}
        tokenizer: Any = SimpleNamespace(token_bytes=known, added={0: {"content": "<a>"}})
        times = []
        for _ in range(3):
            begun = time.process_time()
            assert len(Vocabulary(tokenizer, size, {0}).tokens) == size
            times.append(time.process_time() - begun)
        return min(times)

    assert seconds(16_000) < 100 * seconds(1_000)  # 16 times; of its square 256 times


def test_tokens_without_bytes_have_none() -> None:
    assert bytes_of_tokens({0: "a"}, None) is None
    assert bytes_of_tokens({0: "a"}, {"type": "WordPiece", "prefix": "##"}) is None
    metaspace = {
        "type": "Sequence",
        "decoders": [{"type": "ByteFallback"}, {"type": "Metaspace", "replacement": "_"}],
    }
    assert bytes_of_tokens({0: "_a", 1: "<0x0A>", 2: "<0x0AB>"}, metaspace) == {
        0: b" a",
        1: b"\n",
        2: b"<0x0AB>",
    }


def test_bytes_that_complete_a_character() -> None:
    """Against Python's own decoder: exactly the bytes that complete, or continue, a character."""
    for character in "aé中😀퟿":
        whole = character.encode()
        for length in range(len(whole)):
            begun = b"x\xc3\xa9" + whole[:length]
            assert missing_bytes(begun) == (len(whole) - length if length else 0)
            if not length:
                continue
            for byte in range(0x80, 0xC0):
                data = begun + bytes([byte])
                valid = any(
                    _decodes(data + bytes([more]) * rest)
                    for more in (0x80, 0xBF)
                    for rest in range(3)
                )
                assert completes(begun, bytes([byte])) == valid


def _decodes(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
