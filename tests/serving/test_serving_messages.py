# SPDX-License-Identifier: Apache-2.0
"""Anthropic's Messages API, by Anthropic's client: text, tools, thinking, streams, token counts, refusals."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import pytest
from chat_templates import TEMPLATES
from fixtures_serving import KEY, MODEL, QUESTION, TIMEOUT, chat, connect, post, running
from fixtures_serving_tools import CITY

from qeff_zoo.runtime import Engine, Generation
from qeff_zoo.runtime.text.chat_output import Arguments, Call, Output, Reasoning, Text
from qeff_zoo.runtime.text.chat_template import ChatTemplate
from qeff_zoo.serving.apis.anthropic.messages import MessageBuilder
from qeff_zoo.serving.apis.anthropic.schemas import MessagesRequest

SCHEMA = {"type": "object", "properties": {"city": CITY}, "required": ["city"]}
TOOL: Any = {"name": "get_weather", "description": "Weather.", "input_schema": SCHEMA}


def connected(url: str, key: str = KEY) -> anthropic.Anthropic:
    root = url.removesuffix("/v1")
    return anthropic.Anthropic(base_url=root, api_key=key, max_retries=0, timeout=TIMEOUT)


@pytest.fixture
def claude(url: str) -> Iterator[anthropic.Anthropic]:
    """Give Anthropic's client."""
    with connected(url) as client:
        yield client


@pytest.fixture
def calling(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[anthropic.Anthropic]:
    """Give Anthropic's client of a model with tools, on a server with a key."""
    source = TEMPLATES["qwen3_coder"].replace("<tools>{{ tools | tojson }}</tools>", "")
    template = ChatTemplate(source, {"bos_token": "<|begin|>"})
    monkeypatch.setattr(engine.session, "chat_template", template)
    with running(engine, api_keys=[KEY]) as url, connected(url) as client:
        yield client


def request(client: anthropic.Anthropic, messages: Any = QUESTION, **choices: Any) -> Any:
    body = {"max_tokens": 16, "extra_body": {"temperature": 0}, **choices}
    return client.messages.create(model=MODEL, messages=messages, **body)


def test_a_message_is_the_answer_of_a_chat(claude: anthropic.Anthropic, url: str) -> None:
    with connect(url) as client:
        expected = chat(client)
        both = [{"role": "system", "content": "Be brief."}, *QUESTION]
        brief = chat(client, messages=both)
    blocks = [{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}]
    for messages in (QUESTION, blocks):
        found = request(claude, messages)
        (block,) = found.content
        assert (found.role, block.type) == ("assistant", "text")
        assert block.text == expected.choices[0].message.content
        usage = found.usage
        assert usage.input_tokens + usage.cache_read_input_tokens == expected.usage.prompt_tokens
        assert usage.output_tokens == expected.usage.completion_tokens
    cut = expected.choices[0].finish_reason == "length"
    assert found.stop_reason == ("max_tokens" if cut else "end_turn")
    for system in ("Be brief.", [{"type": "text", "text": "Be brief."}]):
        first: Any = {"role": "system", "content": system}
        for found in (request(claude, system=system), request(claude, [first, *QUESTION])):
            assert found.content[0].text == brief.choices[0].message.content
    stop = block.text[2:5]
    short = request(claude, stop_sequences=["never there", stop])
    assert (short.stop_reason, short.stop_sequence) == ("stop_sequence", stop)
    assert short.content[0].text == block.text[: block.text.index(stop)]
    assert request(claude, max_tokens=10**6).usage.output_tokens <= 128  # the rest of the context


def test_a_stream_is_the_message(claude: anthropic.Anthropic) -> None:
    expected = request(claude)
    with claude.messages.stream(
        model=MODEL, messages=QUESTION, max_tokens=16, extra_body={"temperature": 0}
    ) as stream:
        text = "".join(stream.text_stream)
        found = stream.get_final_message()
    assert text == expected.content[0].text == found.content[0].text
    assert (found.stop_reason, found.usage.output_tokens) == (
        expected.stop_reason, expected.usage.output_tokens,
    )  # fmt: skip
    kinds = [event.type for event in request(claude, stream=True)]
    assert kinds[:1] == ["message_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_functions_are_called_and_answered(calling: anthropic.Anthropic) -> None:
    hi = [{"role": "user", "content": "Hi"}]
    choice = {"type": "any", "disable_parallel_tool_use": True}
    options = {"tools": [TOOL], "tool_choice": choice, "max_tokens": 60}
    found = request(calling, hi, **options)
    (call,) = found.content
    assert (found.stop_reason, call.type, call.name) == ("tool_use", "tool_use", "get_weather")
    assert call.input["city"] in ("Rome", "Oslo")
    with calling.messages.stream(
        model=MODEL, messages=hi, extra_body={"temperature": 0}, **options
    ) as stream:
        (streamed,) = stream.get_final_message().content
    assert (streamed.name, streamed.input) == (call.name, call.input)
    result = {
        "type": "tool_result",
        "tool_use_id": call.id,
        "content": [{"type": "text", "text": "12"}],
    }
    turn = [*hi, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    answer = request(calling, turn, tools=[TOOL])
    assert answer.usage.input_tokens + answer.usage.cache_read_input_tokens > 0
    named = request(
        calling, hi, **{**options, "tool_choice": {"type": "tool", "name": "get_weather"}}
    )
    assert named.content[0].name == "get_weather"
    with pytest.raises(anthropic.BadRequestError):
        request(calling, hi, tools=[TOOL], tool_choice={"type": "tool", "name": "other"})
    count = calling.messages.count_tokens(model=MODEL, messages=hi, tools=[TOOL]).input_tokens
    used = request(calling, hi, tools=[TOOL]).usage
    assert count == used.input_tokens + used.cache_read_input_tokens


def test_the_runner_of_tools_goes_on_without_a_kept_conversation(
    calling: anthropic.Anthropic,
) -> None:
    """By default it asks the server to keep the conversation."""
    with pytest.raises(anthropic.BadRequestError) as refused:
        calling.beta.messages.create(
            model=MODEL, messages=QUESTION, max_tokens=4, thread={"type": "create"}
        )
    body: Any = refused.value.body
    assert (body["error"]["param"], body["error"]["code"]) == ("thread", "unsupported_parameter")

    @anthropic.beta_tool
    def get_weather(city: Literal["Rome", "Oslo"]) -> str:
        """Weather of a city."""
        return city

    runner = calling.beta.messages.tool_runner(
        model=MODEL,
        messages=[{"role": "user", "content": "Hi"}],
        max_tokens=60,
        tools=[get_weather],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        max_iterations=2,
    )
    assert [message.stop_reason for message in runner] == ["tool_use"] * 2


def test_an_output_has_the_form_of_its_schema(claude: anthropic.Anthropic) -> None:
    form: Any = {
        "format": {"type": "json_schema", "schema": {**SCHEMA, "additionalProperties": False}}
    }
    found = request(claude, output_config=form, max_tokens=40)
    assert json.loads(found.content[0].text)["city"] in ("Rome", "Oslo")


def test_errors_are_those_of_the_api(calling: anthropic.Anthropic, url: str) -> None:
    with (
        connected(calling.base_url.host and str(calling.base_url), "wrong") as stranger,
        pytest.raises(anthropic.AuthenticationError),
    ):
        request(stranger)
    with pytest.raises(anthropic.NotFoundError):
        calling.messages.create(model="other", messages=QUESTION, max_tokens=1)
    for changes, param in (
        ({"max_tokens": None}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"messages": [{"role": "system", "content": [{"type": "image"}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages"),
        ({"messages": [{"role": "assistant", "content": [{"type": "image"}]}]}, "messages"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        (
            {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
            "context_management",
        ),
        ({"compaction": {"type": "summarize"}}, "compaction"),
    ):
        body = {"model": MODEL, "messages": QUESTION, "max_tokens": 4, **changes}
        status, answer = post(url, "messages", json.dumps(body).encode())
        assert (status, answer["type"]) == (400, "error")
        assert (answer["error"]["type"], answer["error"]["param"]) == (
            "invalid_request_error",
            param,
        )


def test_values_that_leave_parameters_off_change_nothing(url: str) -> None:
    plain: Any = {"model": MODEL, "messages": QUESTION, "max_tokens": 4, "temperature": 0}
    expected = post(url, "messages", json.dumps(plain).encode())[1]["content"]
    for neutral in (
        {"context_management": {"edits": []}},
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
        {"mcp_servers": [], "fallbacks": "default", "inference_geo": "global", "container": None},
        {"billing_policy": {"type": "billing_policy", "bill_to": "self"}, "speed": "standard"},
    ):
        status, answer = post(url, "messages", json.dumps({**plain, **neutral}).encode())
        assert (status, answer.get("content")) == (200, expected), neutral


def test_blocks_become_messages_of_a_chat() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aa"}}
    body = MessagesRequest.model_validate(
        {
            "model": MODEL,
            "max_tokens": 1,
            "thinking": {"type": "disabled"},
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "a"}, image]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": ""},
                        {"type": "text", "text": "So."},
                        {"type": "tool_use", "id": "c", "name": "f", "input": {"x": 1}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "c", "content": "1"},
                        {"type": "text", "text": "And?"},
                    ],
                },
            ],
        }
    ).as_chat()
    function = {"name": "f", "arguments": {"x": 1}}
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aa"}}
    assert body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "a"}, url]},
        {
            "role": "assistant", "content": "So.", "reasoning_content": "hm",
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "1"},
        {"role": "user", "content": [{"type": "text", "text": "And?"}]},
    ]  # fmt: skip
    assert body["reasoning_effort"] == "none"


def test_thinking_text_and_calls_are_blocks_in_their_order() -> None:
    events = [
        Reasoning("h"),
        Reasoning("m"),
        Text("So"),
        Call(0, "c", "f"),
        Arguments(0, '{"x"'),
        Arguments(0, ": 1}"),
    ]
    output = Output.of(events)
    generation = Generation(
        prompt="", text="", token_ids=[1], finish_reason="eos", prompt_tokens=3, reused_tokens=2
    )
    whole = MessageBuilder(MODEL, 3).whole(generation, output)
    assert whole["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "So"},
        {"type": "tool_use", "id": "c", "name": "f", "input": {"x": 1}},
    ]
    assert whole["stop_reason"] == "tool_use"
    assert (whole["usage"]["input_tokens"], whole["usage"]["cache_read_input_tokens"]) == (1, 2)
    builder = MessageBuilder(MODEL, 3)
    lines = [line for event in events for line in builder.grow(event)]
    lines += builder.closing(generation, output)
    found = [json.loads(line.split(b"data: ")[1]) for line in lines]
    assert [(one["type"], one.get("index")) for one in found] == [
        ("content_block_start", 0), ("content_block_delta", 0), ("content_block_delta", 0),
        ("content_block_delta", 0), ("content_block_stop", 0),
        ("content_block_start", 1), ("content_block_delta", 1), ("content_block_stop", 1),
        ("content_block_start", 2), ("content_block_delta", 2), ("content_block_delta", 2), ("content_block_stop", 2),
        ("message_delta", None), ("message_stop", None),
    ]  # fmt: skip
