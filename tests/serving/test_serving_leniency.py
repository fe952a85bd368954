# SPDX-License-Identifier: Apache-2.0
"""What agents and desktop clients send by default: answered, counted and logged once; refused by a strict server."""

import argparse
import json
import logging
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from chat_templates import TEMPLATES
from fixtures_serving import MODEL, QUESTION, figures, post, running
from hypothesis import given
from hypothesis import strategies as st

from qeff_zoo.cli import running as running_command
from qeff_zoo.runtime import Delta, Engine
from qeff_zoo.runtime.text.chat_output import Arguments, Call, Event
from qeff_zoo.runtime.text.chat_template import ChatTemplate
from qeff_zoo.serving.answers.custom_tools import text_of
from qeff_zoo.serving.answers.logprobs import LogprobObjects
from qeff_zoo.serving.answers.objects import Reply
from qeff_zoo.serving.apis.anthropic.schemas import MessagesRequest
from qeff_zoo.serving.apis.openai.responses.items import messages_of
from qeff_zoo.serving.apis.openai.responses.schemas import ResponsesRequest
from qeff_zoo.serving.errors import ApiError
from qeff_zoo.serving.requests.leniency import Leniency
from qeff_zoo.serving.requests.schemas import MAX_STOPS, ChatRequest

pytestmark = pytest.mark.turns(2)

SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
PLAIN = {"type": "function", "name": "f", "parameters": SCHEMA}
BESIDE = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'},
}
MCP = {"type": "namespace", "name": "mcp__files", "description": "", "tools": [PLAIN, PATCH]}
CLAUDE = {"name": "f", "input_schema": SCHEMA}
HELLO: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": QUESTION, "max_tokens": 1},
    "completions": {"prompt": "a", "max_tokens": 1},
    "responses": {"input": "a", "max_output_tokens": 1},
    "messages": {"messages": QUESTION, "max_tokens": 1},
}
#: Requests that change nothing, and the name that they are counted by.
IGNORED: dict[str, tuple[str, dict[str, Any], str]] = {
    "metadata of a client": ("responses", {"client_metadata": {"a": "b"}}, "client_metadata"),
    "truncation": ("responses", {"truncation": "auto"}, "truncation"),
    "OpenRouter's usage": ("chat/completions", {"usage": {"include": True}}, "usage"),
    "a chat's name": ("chat/completions", {"chat_id": "a"}, "chat_id"),
    "a prediction": ("chat/completions", {"prediction": {"type": "content"}}, "prediction"),
    "a session": ("completions", {"session_id": "a"}, "session_id"),
    "a cache beside a function": (
        "chat/completions", {"tools": [{**BESIDE, "cache_control": {"type": "ephemeral"}}]}, "tools.cache_control",
    ),
    "a cache in a function": (
        "chat/completions", {"tools": [{**BESIDE, "function": {**BESIDE["function"], "cache_control": 1}}]},  # type: ignore[dict-item]
        "tools.cache_control",
    ),
    "strict beside a function": ("chat/completions", {"tools": [{**BESIDE, "strict": True}]}, "tools.strict"),
    "an invented key": ("responses", {"tools": [{**PLAIN, "frob": 1}]}, "tools.other"),
    **{
        f"{kind} in a response": ("responses", {"tools": [PLAIN, {"type": kind}]}, f"tools.type={kind}")
        for kind in ("web_search", "local_shell", "file_search", "code_interpreter", "image_generation", "mcp")
    },
    "a dated tool": (
        "responses", {"tools": [{"type": "web_search_preview_2025_03_11"}]}, "tools.type=web_search_preview",
    ),
    "an unknown tool": ("responses", {"tools": [{"type": "frob"}]}, "tools.other"),
    "a tool in a namespace": (
        "responses", {"tools": [{**MCP, "tools": [PLAIN, {"type": "mcp"}]}]}, "tools.type=mcp",
    ),
    "a tool of a chat": ("chat/completions", {"tools": [BESIDE, {"type": "web_search"}]}, "tools.type=web_search"),
    "Anthropic's tool": (
        "messages", {"tools": [CLAUDE, {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}]},
        "tools.type=web_search",
    ),
    "Anthropic's search in the history": (
        "messages", {"messages": [*QUESTION, {"role": "assistant", "content": [
            {"type": "server_tool_use", "id": "a", "name": "web_search", "input": {}}, {"type": "text", "text": "a"},
        ]}, *QUESTION]}, "messages.type=server_tool_use",
    ),
    "a reference to a tool": (
        "messages", {"messages": [*QUESTION, {"role": "user", "content": [
            {"type": "tool_reference", "tool_name": "f"}, {"type": "text", "text": "a"},
        ]}]}, "messages.type=tool_reference",
    ),
    "a search in the history": (
        "responses", {"input": [{"type": "web_search_call", "id": "a"}, {"role": "user", "content": "a"}]},
        "input.type=web_search_call",
    ),
}  # fmt: skip


@pytest.fixture
def calling(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Give an engine of a model with tools, which its prompts do not have."""
    source = TEMPLATES["hermes"].replace("<tools>{{ tools | tojson }}</tools>", "")
    template = ChatTemplate(source, {"bos_token": "<|begin|>"})
    monkeypatch.setattr(engine.session, "chat_template", template)
    return engine


@pytest.fixture
def url(calling: Engine) -> Iterator[str]:
    with running(calling) as url:
        yield url


def send_request(url: str, path: str, **changes: Any) -> tuple[int, Any]:
    body = {"model": MODEL, **HELLO[path], **changes}
    return post(url, path, json.dumps(body).encode())


def test_what_changes_nothing_is_counted_and_logged_once(
    calling: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), running(calling) as url:
        counts: dict[str, int] = {}
        for path, changes, name in IGNORED.values():
            assert send_request(url, path, **changes)[0] == 200, changes
            counts[name] = counts.get(name, 0) + 1
        found = figures(url)
    assert {name: found[f"ignored_parameters_total:{name}"] for name in counts} == counts
    lines = [record.message for record in caplog.records if "--strict-parameters" in record.message]
    assert len(lines) == len(counts)


def test_a_strict_server_refuses_them_by_name(calling: Engine) -> None:
    with running(calling, strict_parameters=True) as url:
        for path, changes, _ in IGNORED.values():
            status, answer = send_request(url, path, **changes)
            assert (status, answer["error"]["code"]) == (400, "unsupported_parameter")
            assert answer["error"]["param"] == next(iter(changes))
        for path in HELLO:
            assert send_request(url, path)[0] == 200
        assert send_request(url, "responses", tools=[PLAIN, PATCH, MCP])[0] == 200


def test_the_flag_of_a_strict_server() -> None:
    parser = argparse.ArgumentParser()
    running_command._add_serve(parser.add_subparsers())
    for flags in ([], ["--strict-parameters"]):
        options = running_command._server_options(parser.parse_args(["serve", "x", *flags]))
        assert options.strict_parameters is bool(flags)


def test_what_would_change_an_answer_is_still_refused(url: str) -> None:
    for path, changes, param in (
        ("chat/completions", {"frob": 1}, "frob"),
        ("chat/completions", {"tools": [{}]}, "tools"),
        ("chat/completions", {"tools": [{"type": 5}]}, "tools"),
        ("chat/completions", {"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ("responses", {"truncation": "middle"}, "truncation"),
        ("responses", {"tools": [PLAIN], "tool_choice": {"type": "custom", "name": "g"}}, "tool_choice"),
        ("chat/completions", {"tools": [{"type": "custom"}]}, "tools"),
        ("chat/completions", {"tools": [{"type": "custom", "custom": {}}]}, "tools"),
        ("responses", {"tools": [{"type": "custom"}]}, "tools"),
        ("responses", {"tools": [{"type": "namespace", "name": "a"}]}, "tools"),
        ("responses", {"tools": [MCP, {**PLAIN, "name": "mcp__files__f"}]}, "tools"),
        ("responses", {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ("responses", {"input": [{"type": ["function_call"]}]}, "input"),
        ("responses", {"input": [{"type": "function_call", "name": "f", "namespace": 5}]}, "input"),
    ):  # fmt: skip
        status, answer = send_request(url, path, **changes)
        assert (status, answer["error"]["param"]) == (400, param), (changes, answer)


def test_a_count_has_few_names() -> None:
    names: list[str] = []
    leniency = Leniency(names.append)
    for number in range(100):
        leniency.ignore(f"tools.type=kind{number}", {})
        leniency.ignore(f"tools.key{number}", {})
    assert {*names} == {"tools.other"}
    with pytest.raises(ApiError):
        Leniency(strict=True).ignore("client_metadata", {})


def test_minus_one_is_no_limit_and_many_stop_strings_are_taken(url: str) -> None:
    for path, name in (("chat/completions", "max_tokens"), ("completions", "max_tokens"),
                       ("chat/completions", "max_completion_tokens"), ("responses", "max_output_tokens"),
                       ("completions", "n_predict")):  # fmt: skip
        body = {**HELLO[path], "max_tokens": None, "temperature": 0, name: -1}
        status, answer = post(url, path, json.dumps({"model": MODEL, **body}).encode())
        assert status == 200
        usage = answer["usage"]
        assert usage.get("completion_tokens", usage.get("output_tokens")) > 16
    assert send_request(url, "completions", max_tokens=2.0)[1]["usage"]["completion_tokens"] <= 2
    for path in ("chat/completions", "completions"):
        assert send_request(url, path, max_tokens=-2)[1]["error"]["param"] == "max_tokens"
        assert send_request(url, path, stop=["never"] * MAX_STOPS)[0] == 200
        assert (
            send_request(url, path, stop=["never"] * (MAX_STOPS + 1))[1]["error"]["param"] == "stop"
        )
    whole = send_request(url, "completions", max_tokens=12, temperature=0)[1]["choices"][0]["text"]
    stop = whole[3:5]
    stops = [*(f"never {number}" for number in range(15)), stop]
    (choice,) = send_request(url, "completions", max_tokens=12, temperature=0, stop=stops)[1][
        "choices"
    ]
    assert choice["text"] == whole[: whole.index(stop)]


def test_some_tools_are_allowed(calling: Engine) -> None:
    """The others are not offered: a required call is one of the allowed function."""
    other = {"type": "function", "function": {"name": "g", "parameters": SCHEMA}}
    chosen = {"mode": "required", "tools": [{"type": "function", "function": {"name": "g"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": chosen}
    body = {"messages": QUESTION, "tools": [BESIDE, other], "tool_choice": choice}
    chat = ChatRequest.model_validate(body)
    assert ([one.function.name for one in chat.offered], chat.tool_choice) == (["g"], "required")
    named = {**choice, "mode": "auto", "tools": [{"type": "function", "name": "f"}]}
    del named["allowed_tools"]
    response = {"input": "a", "tools": [PLAIN, {**PLAIN, "name": "g"}], "tool_choice": named}
    found = ResponsesRequest.model_validate(response)
    assert ([tool.name for tool in found.tools], found.tool_choice) == (["f"], "auto")
    with running(calling) as url:
        for wrong in ({**chosen, "mode": "none"}, {**chosen, "tools": [PLAIN]}):
            changes = {"tools": [other], "tool_choice": {**choice, "allowed_tools": wrong}}
            status, answer = send_request(url, "chat/completions", **changes)
            assert (status, answer["error"]["param"]) == (400, "tool_choice")


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"type": "document", "source": {"type": "text", "data": "b"}, "title": "a"}, "a\nb\n"),
        ({"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "b"}]}}, "b"),
        ({"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "b"}]}, "t\ns\nb"),
        ({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": ""}}, None),
    ],
)  # fmt: skip
def test_documents_of_messages_are_their_texts(block: dict[str, Any], text: str | None) -> None:
    result = {"type": "tool_result", "tool_use_id": "a", "content": [block]}
    content = [result, block, {"type": "text", "text": "c"}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 16.0}
    request = MessagesRequest.model_validate(body)
    assert request.max_tokens == 16
    if text is None:
        with pytest.raises(ApiError, match=r"'application/pdf', which this server does not read"):
            request.as_chat()
        return
    tool, user = ChatRequest.model_validate(request.as_chat()).messages
    assert (tool.text, user.text) == (text, f"{text}c")


def test_refusals_are_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]
    chat = ChatRequest.model_validate({"messages": [{"role": "assistant", "content": parts}]})
    rendered = chat.messages[0].as_template_input()["content"]
    assert rendered == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


def test_strict_beside_a_function_is_the_functions_own() -> None:
    body = {"messages": QUESTION, "tools": [{**BESIDE, "strict": True}]}
    assert ChatRequest.model_validate(body).tools[0].function.strict is True


def test_custom_tools_and_namespaces_are_functions_of_the_chat() -> None:
    body = ResponsesRequest.model_validate({"input": "a", "tools": [PLAIN, PATCH, MCP]})
    functions = [tool["function"] for tool in body.as_chat([])["tools"]]
    named = ["f", "apply_patch", "mcp__files__f", "mcp__files__apply_patch"]
    assert [function["name"] for function in functions] == named
    assert functions[2]["parameters"] == SCHEMA
    assert functions[1]["parameters"]["required"] == ["input"]
    assert 'start: "a"' in functions[1]["description"]


@pytest.mark.parametrize("tool", [PATCH, MCP], ids=["custom", "namespace"])
def test_calls_have_the_items_of_their_tools(url: str, tool: Any) -> None:
    """The same streamed; and the items, sent back, are what the server itself kept."""
    choice = {"type": "custom", "name": "apply_patch"} if tool is PATCH else None
    choice = choice or {"type": "function", "name": "f", "namespace": "mcp__files"}
    options = {"tools": [tool], "tool_choice": choice, "max_output_tokens": 100, "temperature": 0}
    status, made = send_request(url, "responses", **options)
    assert status == 200, made
    (call,) = made["output"]
    lines = streamed(url, "responses", {"model": MODEL, "input": "a", "stream": True, **options})
    last = lines[-1]["response"]["output"][0]
    same = {name: value for name, value in call.items() if name not in ("id", "call_id")}
    assert same == {name: last[name] for name in same}
    if tool is PATCH:
        assert (call["type"], call["name"]) == ("custom_tool_call", "apply_patch")
        (done,) = [line for line in lines if line["type"] == "response.custom_tool_call_input.done"]
        deltas = [line["delta"] for line in lines if line["type"].endswith("input.delta")]
        assert call["input"] == done["input"] == "".join(deltas)
        assert call["input"]
        assert "arguments" not in call
    else:
        assert (call["type"], call["name"], call["namespace"]) == (
            "function_call",
            "f",
            "mcp__files",
        )
        assert json.loads(call["arguments"])["a"] in ("x", "y")
    result = {"type": f"{call['type']}_output", "call_id": call["call_id"], "output": "1"}
    known = {"input": [result], "previous_response_id": made["id"]}
    sent = {"input": [{"role": "user", "content": "a"}, call, result]}
    counts = [
        send_request(url, "responses", **one)[1]["usage"]["input_tokens"] for one in (known, sent)
    ]
    assert counts[0] == counts[1]


def streamed(url: str, path: str, body: dict[str, Any]) -> list[Any]:
    named = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/{path}", json.dumps(body).encode(), named)
    with urllib.request.urlopen(request, timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


@pytest.mark.parametrize("more", [{}, {"n": 2}], ids=["one", "two choices"])
def test_a_custom_tool_of_a_chat_is_called_with_a_text(url: str, more: dict[str, Any]) -> None:
    """The same streamed; and the message, sent back, renders as the call of a function."""
    name = "apply_patch"
    tool = {
        "type": "custom",
        "custom": {key: PATCH[key] for key in ("name", "description", "format")},
    }
    chosen = {"type": "custom", "custom": {"name": name}}
    talk = {
        "messages": [{"role": "user", "content": "a"}],
        "max_tokens": 100,
        "temperature": 0,
        **more,
    }
    options = {"tools": [tool, BESIDE], "tool_choice": chosen, **talk}
    status, made = send_request(url, "chat/completions", **options)
    assert status == 200, made
    body = {"model": MODEL, "stream": True, **options}
    chunks = streamed(url, "chat/completions", body)
    for choice in made["choices"]:
        (call,) = choice["message"]["tool_calls"]
        assert (call["type"], call["custom"]["name"]) == ("custom", name)
        assert call["custom"]["input"]
        mine = [
            one for chunk in chunks for one in chunk["choices"] if one["index"] == choice["index"]
        ]
        first, *others = [one for each in mine for one in each["delta"].get("tool_calls", ())]
        assert (first["type"], first["custom"]["name"]) == ("custom", name)
        texts = [one["custom"]["input"] for one in (first, *others)]
        assert "".join(texts) == call["custom"]["input"]
    answer = {"role": "tool", "tool_call_id": call["id"], "content": "1"}
    function = {"name": name, "arguments": {"input": call["custom"]["input"]}}
    plain = {"id": call["id"], "type": "function", "function": function}
    counts = []
    for one in (call, plain):
        earlier = {"role": "assistant", "content": None, "tool_calls": [one]}
        history = {"messages": [*QUESTION, earlier, answer]}
        counts.append(send_request(url, "chat/completions", **history)[1]["usage"]["prompt_tokens"])
    assert counts[0] == counts[1]


def test_texts_of_several_custom_calls_come_at_their_ends() -> None:
    reply = Reply("chat", MODEL, "", LogprobObjects(None), False, custom_tools=["p"])
    written: list[Event] = [
        Call(0, "a", "p"), Arguments(0, '{"input": "x'), Arguments(0, 'y"}'), Call(1, "b", "f"),
        Arguments(1, "{}"), Call(2, "c", "p"), Arguments(2, '{"input": "z'),
    ]  # fmt: skip
    chunks = [reply.chunk(0, Delta(text=""), [event]) for event in written]
    chunks.append(reply.chunk(0, Delta(text="", finish_reason="length"), []))
    shown = [chunk["choices"][0]["delta"] for chunk in chunks if chunk]
    calls = [call for delta in shown for call in delta.get("tool_calls", ())]
    assert calls == [
        {"index": 0, "id": "a", "type": "custom", "custom": {"name": "p", "input": ""}},
        {"index": 0, "custom": {"input": "xy"}},
        {"index": 1, "id": "b", "type": "function", "function": {"name": "f", "arguments": ""}},
        {"index": 1, "function": {"arguments": "{}"}},
        {"index": 2, "id": "c", "type": "custom", "custom": {"name": "p", "input": ""}},
        {"index": 2, "custom": {"input": "z"}},
    ]


def test_calls_of_agents_are_messages_of_a_chat() -> None:
    items: list[dict[str, Any]] = [
        {"type": "custom_tool_call", "call_id": "a", "name": "apply_patch", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "a", "output": "1"},
        {
            "type": "function_call",
            "call_id": "b",
            "name": "f",
            "namespace": "mcp",
            "arguments": "{",
        },
        {"type": "local_shell_call", "call_id": "c", "action": {"command": ["ls"]}},
        {"type": "local_shell_call_output", "call_id": "c", "output": "2"},
    ]
    patched, first, two, second = messages_of(items)
    (call,) = patched["tool_calls"]
    assert call["function"] == {"name": "apply_patch", "arguments": {"input": "x"}}
    functions = [one["function"] for one in two["tool_calls"]]
    assert functions == [
        {"name": "mcp__f", "arguments": "{"},
        {"name": "local_shell", "arguments": {"command": ["ls"]}},
    ]
    assert [one["tool_call_id"] for one in (first, second)] == ["a", "c"]


@given(st.text(), st.integers(0, 400))
def test_the_text_of_a_cut_call_is_its_beginning(text: str, end: int) -> None:
    arguments = json.dumps({"input": text})
    assert text_of(arguments) == text.encode(errors="replace").decode()
    begun = len('{"input": "')
    cut = arguments[: max(begun, min(end, len(arguments)))]
    assert text.startswith(text_of(cut).rstrip("?"))


def test_the_text_of_broken_arguments_is_what_the_model_wrote() -> None:
    for broken in (
        '{"input": "He said "no" and',
        "no JSON",
        '{"input": 5}',
        "[1]",
        '{"other": "a"}',
    ):
        assert text_of(broken) == broken
    assert text_of('{"input": "\\ud800"}') == "?"
