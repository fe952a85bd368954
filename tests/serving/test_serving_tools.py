# SPDX-License-Identifier: Apache-2.0
"""Tools and reasoning over HTTP, with OpenAI's client.

The model of these tests knows no tools. Grammars make it call them, and write outputs that a model would choose.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
import openai
import pytest
from chat_templates import TEMPLATES, THINKING
from checkout import TINY_LLAMA
from fixtures_serving import MODEL, QUESTION, connect, post, running
from fixtures_serving_tools import CITY
from pydantic import BaseModel, Field

from qeff_zoo import cli
from qeff_zoo.errors import ServingError
from qeff_zoo.package import Package
from qeff_zoo.runtime import ChatOptions, Engine, TextGenerationSession
from qeff_zoo.runtime.text.chat_template import ChatTemplate
from qeff_zoo.runtime.text.grammar import Guides
from qeff_zoo.runtime.text.tokenizer import Tokenizer
from qeff_zoo.serving import ServerOptions
from qeff_zoo.serving.requests.tools import ChatFormats

pytestmark = pytest.mark.turns(2)

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": [*properties],
                "additionalProperties": False,
            },
        },
    }
    for name, properties in (("get_weather", {"city": CITY}), ("now", {}))
]
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}
WEATHER = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
NOW = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
HELLO = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def templated(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give a function that changes the chat template of the shared engine."""

    def change(template: str) -> TextGenerationSession:
        found = ChatTemplate(template, {"bos_token": "<|begin|>"})
        monkeypatch.setattr(engine.session, "chat_template", found)
        return engine.session

    return change


@pytest.fixture
def thinking(templated: Any, engine: Engine) -> Iterator[openai.OpenAI]:
    """Give a client of a model with tools and thinking."""
    templated(THINKING.replace("<tools>{{ tools | tojson }}</tools>", "{{ tools | length }}"))
    with running(engine) as url, connect(url) as client:
        yield client


def request(client: openai.OpenAI, text: str | None = None, **choices: Any) -> Any:
    """Ask for a chat, whose output is a text if it is given."""
    forced = {"extra_body": {"structured_outputs": {"choice": [text]}}} if text else {}
    body = {"messages": HELLO, "max_tokens": 60, "temperature": 0, **forced, **choices}
    return client.chat.completions.create(model=MODEL, **body)


def grown(stream: Any) -> tuple[str, str, list[list[str]], list[str]]:
    """Return the text, the reasoning, the calls (identifier, name, arguments) and the finish reasons of a stream."""
    text = reasoning = ""
    calls: list[list[str]] = []
    reasons = []
    for chunk in stream:
        (choice,) = chunk.choices
        text += choice.delta.content or ""
        reasoning += getattr(choice.delta, "reasoning_content", None) or ""
        for call in choice.delta.tool_calls or ():
            if call.id:
                assert (call.index, call.type) == (len(calls), "function")
                calls.append([call.id, call.function.name, ""])
            else:
                assert call.function.name is None
            calls[call.index][2] += call.function.arguments
        reasons += [choice.finish_reason] if choice.finish_reason else []
    return text, reasoning, calls, reasons


def whole(completion: Any) -> tuple[str, str, list[list[str]], list[str]]:
    """Return the same of a completion that is not streamed."""
    (choice,) = completion.choices
    message = choice.message
    calls = [
        [call.id, call.function.name, call.function.arguments] for call in message.tool_calls or ()
    ]
    reasoning = getattr(message, "reasoning_content", None) or ""
    return message.content or "", reasoning, calls, [choice.finish_reason]


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_call_is_guaranteed(templated: Any, engine: Engine, choice: Any) -> None:
    templated(TEMPLATES["qwen3_coder"].replace("<tools>{{ tools | tojson }}</tools>", ""))
    options = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
    with running(engine) as url, connect(url) as client:
        whole = request(client, **options).choices[0]
        text, _, calls, reasons = grown(request(client, stream=True, **options))
    (call,) = whole.message.tool_calls
    assert (whole.finish_reason, whole.message.content) == ("tool_calls", None)
    assert (reasons, text) == (["tool_calls"], "")
    assert [calls[0][1:]] == [[call.function.name, call.function.arguments]]
    arguments = json.loads(call.function.arguments)
    if choice == NAMED or call.function.name == "get_weather":
        assert call.function.name == "get_weather"
        assert arguments["city"] in ("Rome", "Oslo")
    else:
        assert (call.function.name, arguments) == ("now", {})


def test_a_named_function_is_called_once(
    templated: Any, engine: Engine, alone: TextGenerationSession
) -> None:
    templated(TEMPLATES["hermes"].replace("<tools>{{ tools | tojson }}</tools>", ""))
    more = {alone.tokenizer.token_id("<"): 100}  # begins a further call, if one may follow
    with running(engine) as url, connect(url) as client:
        answer = request(client, tools=TOOLS, tool_choice=NAMED, logit_bias=more).choices[0]
    assert len(answer.message.tool_calls) == 1
    assert answer.finish_reason == "tool_calls"


def test_a_call_is_parsed_in_what_the_model_chooses(thinking: openai.OpenAI) -> None:
    """Reasoning, text and two calls; the same streamed; without parallel calls the first alone."""
    expected_message = f"hm\n</think>\n\nI see.\n{WEATHER}\n{NOW}"
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    body = {"extra_body": {"structured_outputs": {"choice": [f"<think>{expected_message}"]}, **off}}
    options = {"tools": TOOLS, "max_tokens": 104, **body}
    whole = request(thinking, **options).choices[0]
    message = whole.message
    assert (message.content, message.reasoning_content, message.reasoning) == ("I see.", "hm", "hm")
    called = [(call.function.name, call.function.arguments) for call in message.tool_calls]
    assert called == [("get_weather", '{"city": "Rome"}'), ("now", "{}")]
    assert whole.finish_reason == "tool_calls"
    text, reasoning, calls, reasons = grown(request(thinking, stream=True, **options))
    assert (text, reasoning, reasons) == ("I see.", "hm", ["tool_calls"])
    assert [call[1:] for call in calls] == [
        [call.function.name, call.function.arguments] for call in message.tool_calls
    ]
    first = request(thinking, **options, parallel_tool_calls=False).choices[0].message.tool_calls
    assert len(first) == 1
    assert request(thinking, **options).usage.completion_tokens_details.reasoning_tokens > 0
    hidden = {**body["extra_body"], "include_reasoning": False}
    silent = request(thinking, **{**options, "extra_body": hidden}).choices[0].message
    assert (silent.content, getattr(silent, "reasoning_content", None)) == ("I see.", None)
    without = request(thinking, **{**options, "tool_choice": "none"}).choices[0]
    assert (without.finish_reason, without.message.tool_calls) == ("stop", None)
    assert WEATHER in without.message.content


def test_an_answer_has_its_form_after_the_thinking(thinking: openai.OpenAI) -> None:
    """The prompt begins the thinking, unless an effort of none turns it off; then no thinking is possible."""
    form = {"type": "json_schema", "json_schema": {"schema": {"type": "object", "required": ["a"],
            "properties": {"a": {"type": "boolean"}}, "additionalProperties": False}}}  # fmt: skip
    thought = request(thinking, response_format=form, max_tokens=20)
    assert thought.choices[0].message.content in ("", None)
    assert thought.choices[0].message.reasoning_content
    at_once = request(thinking, response_format=form, reasoning_effort="none").choices[0].message
    assert set(json.loads(at_once.content)) == {"a"}
    either = request(thinking, response_format=form, reasoning_effort="none", tools=TOOLS)
    (either,) = either.choices
    assert bool(either.message.tool_calls) != bool(either.message.content)


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_ends_at_its_budget(thinking: openai.OpenAI, stream: bool) -> None:
    """The prompt begins the thinking; the form of the answer comes after it."""
    form = {"type": "json_schema", "json_schema": {"schema": {"enum": ["yes"]}}}
    for tokens in (0, 3):
        body = {"thinking_token_budget": tokens}
        options = {"response_format": form, "max_tokens": 30, "extra_body": body, "stream": stream}
        found = request(thinking, **options)
        if stream:
            text, reasoning, _, _ = grown(found)
        else:
            message = found.choices[0].message
            text, reasoning = message.content, getattr(message, "reasoning_content", "")
        assert text == '"yes"'
        assert bool(reasoning) == bool(tokens)
    free = (
        request(thinking, max_tokens=20, extra_body={"thinking_token_budget": 2}).choices[0].message
    )
    assert free.reasoning_content
    assert free.content


@pytest.mark.parametrize("special", [False, True], ids=["ordinary", "special"])
def test_marks_that_are_tokens(
    templated: Any,
    engine: Engine,
    special: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Qwen 3 ships its marks as ordinary added tokens, others as special ones: the outputs are the same."""
    content = json.loads((TINY_LLAMA / "tokenizer.json").read_text())
    names = {0: "<think>", 2: "</think>", 4: "<tool_call>", 5: "</tool_call>"}  # 1 and 3 are EOS
    for token, mark in names.items():
        added = content["added_tokens"][token]
        content["model"]["vocab"][mark] = content["model"]["vocab"].pop(added["content"])
        added |= {"content": mark, "special": special}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    session = templated(THINKING.replace("<tools>{{ tools | tojson }}</tools>", ""))
    tokenizer = Tokenizer(tmp_path)
    guides = Guides(tokenizer, session.decoder.vocab_size, session.eos_token_ids)
    monkeypatch.setattr(session, "tokenizer", tokenizer)
    monkeypatch.setattr(session, "guides", guides)
    form = {"type": "json_schema", "json_schema": {"schema": {"enum": ["<think>", "</tool_call>"]}}}
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    budget = {"thinking_token_budget": 2}
    ends: Any = {"logit_bias": {tokenizer.token_id("</think>"): 100}}
    vocabulary = tokenizer.vocabulary  # blanks would take all tokens
    blanks: Any = {token: -100 for name, token in vocabulary.items() if not name.strip("ĠĊ")}
    with running(engine) as url, connect(url) as client:
        for stream in (False, True):
            for choice, body in (("required", off), (NAMED, off), (NAMED, budget)):
                options = {"tools": TOOLS, "tool_choice": choice, "extra_body": body}
                options |= {"logit_bias": blanks}
                found = request(
                    client, stream=stream, max_tokens=90, parallel_tool_calls=False, **options
                )
                text, _, calls, reasons = grown(found) if stream else whole(found)
                assert (text, reasons) == ("", ["tool_calls"])
                ((_, name, arguments),) = calls
                assert (name, json.loads(arguments)) in (
                    ("now", {}),
                    *(("get_weather", {"city": city}) for city in CITY["enum"]),
                )
            for more in ({"extra_body": budget}, ends):
                found = request(client, stream=stream, response_format=form, **more)
                text, _, calls, reasons = grown(found) if stream else whole(found)
                assert (json.loads(text) in ("<think>", "</tool_call>"), calls, reasons) == (
                    True,
                    [],
                    ["stop"],
                )


def test_a_history_of_calls_is_rendered_as_the_template_wants_it(
    templated: Any, engine: Engine
) -> None:
    """With null contents and arguments as text, as OpenAI's clients send them; and a message is continued."""
    session = templated(TEMPLATES["hermes"].replace("{{ tools | tojson }}", ""))
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    messages: list[Any] = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": [{"type": "text", "text": "1"}]},
    ]
    function = {"name": "now", "arguments": {}}
    plain = [
        *QUESTION,
        {"role": "assistant", "content": "", "tool_calls": [{**call, "function": function}]},
        {"role": "tool", "content": "1"},
    ]
    with running(engine) as url, connect(url) as client:
        requested = request(client, messages=messages, tools=TOOLS, max_tokens=1)
        begun = [*QUESTION, {"role": "assistant", "content": "A"}]
        body = {"continue_final_message": True, "add_generation_prompt": False}
        continued = request(client, messages=begun, max_tokens=4, extra_body=body)
    tokens = session.encode_chat(plain, ChatOptions(tools=TOOLS))
    assert requested.usage.prompt_tokens == len(tokens)
    tokens = session.encode_chat(begun, ChatOptions(continue_final_message=True))
    assert continued.usage.prompt_tokens == len(tokens)
    assert session.tokenizer is not None
    assert session.tokenizer.spelled(tokens).endswith("A")


def test_the_examples_of_the_guide(
    templated: Any, engine: Engine, trained: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    templated(
        TEMPLATES["hermes"].replace("<tools>{{ tools | tojson }}</tools>", "{{ tools | length }}")
    )
    page = (TINY_LLAMA.parents[1] / "docs" / "serving.md").read_text()
    _, called, *_ = re.split("<!-- tools: .*?```python\n", page, maxsplit=1, flags=re.DOTALL)
    with running(engine) as url:
        code = called.partition("```")[0].replace("http://127.0.0.1:8000/v1", url)
        exec(code.replace('"qwen"', f'"{MODEL}", max_tokens=90, seed=0, parallel_tool_calls=False'))
    assert capsys.readouterr().out.startswith("get_weather {")
    python = page.partition("## Reasoning")[2].partition("```python\n")[2].partition("```")[0]
    exec(python.replace("my-package", str(trained.path)))
    assert capsys.readouterr().out


def test_a_parser_is_named(templated: Any, engine: Engine) -> None:
    templated("{{ messages[0].content }}{% if tools %}:{% endif %}")
    tools = json.dumps({"model": MODEL, "messages": QUESTION, "tools": TOOLS, "max_tokens": 60, "temperature": 0,
                        "structured_outputs": {"choice": [WEATHER]}}).encode()  # fmt: skip
    with running(engine) as url:
        status, answer = post(url, "chat/completions", tools)
    assert (status, answer["error"]["code"]) == (400, "tools_not_supported")
    assert "calls in an unknown format" in answer["error"]["message"]
    with running(engine, formats=ChatFormats("hermes", "deepseek_r1")) as url:
        status, answer = post(url, "chat/completions", tools)
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "get_weather"


def test_a_schema_that_cannot_be_compiled_is_refused(thinking: openai.OpenAI) -> None:
    function = {"name": "f", "parameters": {"type": "frob"}}
    with pytest.raises(openai.BadRequestError, match="frob") as refused:
        request(
            thinking, tools=[{"type": "function", "function": function}], tool_choice="required"
        )
    assert (refused.value.param, refused.value.code) == ("tools", "invalid_schema")


class Tags(BaseModel):
    """Sets as people write them."""

    a: Annotated[set[Annotated[str, Field(max_length=1)]], Field(min_length=2, max_length=2)]
    b: Annotated[set[Literal["a", "b"]], Field(min_length=2)]


@pytest.mark.parametrize("parser", ["hermes", "qwen3_coder"])
def test_sets_of_arguments_are_valid(parser: str, templated: Any, engine: Engine) -> None:
    session = templated("{{ messages[0].content }}{% if tools %}:{% endif %}")
    assert session.tokenizer
    texts = session.tokenizer.token_bytes or {}
    allowed = [name for name, data in texts.items() if b"\n" not in data]  # no blanks without end
    function = {"name": "f", "parameters": Tags.model_json_schema()}
    tools: Any = [{"type": "function", "function": function}]
    formats, ended = ChatFormats(parser, "none"), 0
    with running(engine, formats=formats) as url, connect(url) as client:
        for seed in range(3):
            found = request(
                client, tools=tools, tool_choice="required", parallel_tool_calls=False, max_tokens=120,
                temperature=1, seed=seed, extra_body={"allowed_token_ids": allowed},
            )  # fmt: skip
            (choice,) = found.choices
            (call, *_) = choice.message.tool_calls
            ended += choice.finish_reason == "tool_calls"
            if choice.finish_reason == "tool_calls":
                Tags.model_validate_json(call.function.arguments)
                jsonschema.validate(json.loads(call.function.arguments), function["parameters"])
    assert ended, (choice.finish_reason, choice.message)


@pytest.mark.parametrize("parser", ["hermes", "llama3_json", "pythonic"])
def test_a_set_in_an_answer_beside_tools(parser: str, templated: Any, engine: Engine) -> None:
    """Calls with a mark, and calls that begin as an answer may."""
    session = templated("{{ messages[0].content }}{% if tools %}:{% endif %}")
    nested = {
        "type": "array",
        "items": {"enum": [0, 1, "a", "["]},
        "uniqueItems": True,
        "minItems": 4,
    }
    schema = {"type": "array", "items": nested, "minItems": 1, "maxItems": 1}
    forms: list[dict[str, Any]] = [
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": schema},
            }
        },
        {"extra_body": {"structured_outputs": {"json": schema}}},
    ]
    more = {session.tokenizer.token_id("["): 100, session.tokenizer.token_id("[["): 100}
    more = {token: bias for token, bias in more.items() if token is not None}
    with running(engine, formats=ChatFormats(parser, "none")) as url, connect(url) as client:
        for form in forms:
            (choice,) = request(client, tools=TOOLS, logit_bias=more, **form).choices
            if parser != "pythonic":  # whose calls begin with the same bracket
                assert choice.message.content
            if choice.message.content:
                (items,) = json.loads(choice.message.content)
                assert sorted(map(str, items)) == ["0", "1", "[", "a"]


def test_a_template_that_takes_no_tools_is_blamed_for_them(templated: Any, engine: Engine) -> None:
    raising = "{{ raise_exception('Nothing is rendered') }}"
    templated(f"{{% if tools or messages[0].content == 'Bad' %}}{raising}{{% endif %}}a")
    bad = [{"role": "user", "content": "Bad"}]
    with running(engine) as url:
        for path, address in (
            ("chat/completions", url),
            ("apply-template", url.removesuffix("/v1")),
        ):
            for messages, param in ((HELLO, "tools"), (bad, "messages")):
                body = {"model": MODEL, "messages": messages, "tools": TOOLS}
                status, answer = post(address, path, json.dumps(body).encode())
                assert (status, answer["error"]["param"]) == (400, param), (path, answer)


def test_an_unknown_parser_is_refused_at_the_start(
    trained: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    for option, choice in (
        ("--tool-parser", "tool_parser"),
        ("--reasoning-parser", "reasoning_parser"),
    ):
        with pytest.raises(ServingError, match=f"{option} is 'frob', which is unknown; expected"):
            ServerOptions(name="a", fingerprint="b", **{choice: "frob"})  # type: ignore[arg-type]
    assert cli.main(["serve", str(trained.path), "--port", "0", "--tool-parser", "frob"]) == 1
    assert "--tool-parser is 'frob'" in capsys.readouterr().err


def test_the_command_renders_by_options(
    trained: Package, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = list[Any]()

    def render(self: ChatTemplate, messages: Any, options: ChatOptions) -> str:
        recorded.append(options)
        return str(messages[0]["content"])

    monkeypatch.setattr(ChatTemplate, "render", render)
    argv = ["run", str(trained.path), "--prompt", "Hi", "--generation-len", "1"]
    options = ["--chat-template-kwargs", '{"enable_thinking": false}', "--reasoning-effort", "low"]
    assert cli.main([*argv, *options]) == 1
    assert "and --chat is not" in capsys.readouterr().err
    assert cli.main([*argv, "--chat", *options]) == 0
    assert recorded == [ChatOptions(variables={"enable_thinking": False}, reasoning_effort="low")]
    with pytest.raises(SystemExit, match="2"):
        cli.main([*argv, "--chat", "--chat-template-kwargs", "[]"])
