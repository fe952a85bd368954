# SPDX-License-Identifier: Apache-2.0
"""Flows of the client `anthropic`."""

import json
from typing import Any

from flows import ANSWER, CALL, CHAT, SCHEMA, flow, get_weather
from flows_openai import KEY

_TOOL = {"name": "get_weather", "description": "Temperature.", "input_schema": SCHEMA}


def _anthropic(url: str) -> Any:
    from anthropic import Anthropic

    return Anthropic(base_url=url.removesuffix("/v1"), api_key=KEY, max_retries=0, timeout=120)


@flow("anthropic")
def messages_create(urls: Any) -> None:
    answer = _anthropic(urls.trained).messages.create(
        model="trained", messages=CHAT, max_tokens=16, system="Answer briefly."
    )
    assert answer.content[0].text
    assert answer.stop_reason in ("end_turn", "max_tokens")
    assert answer.usage.output_tokens > 0


@flow("anthropic")
def messages_in_a_stream(urls: Any) -> None:
    options: Any = {"model": "trained", "messages": CHAT, "max_tokens": 16}
    with _anthropic(urls.trained).messages.stream(**options) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text


@flow("anthropic")
def messages_with_tools(urls: Any) -> None:
    client, messages = _anthropic(urls.scripted), [{"role": "user", "content": CALL}]
    options: Any = {"model": "scripted", "max_tokens": 80, "tools": [_TOOL]}
    first = client.messages.create(messages=messages, **options)
    (call,) = (one for one in first.content if one.type == "tool_use")
    assert first.stop_reason == "tool_use"
    result = {
        "type": "tool_result",
        "tool_use_id": call.id,
        "content": get_weather(**call.input),
    }
    messages += [
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    second = client.messages.create(messages=messages, **options)
    assert second.content[0].text == ANSWER


@flow("anthropic")
def messages_count_tokens(urls: Any) -> None:
    client = _anthropic(urls.trained)
    counted = client.messages.count_tokens(model="trained", messages=CHAT)
    answer = client.messages.create(model="trained", messages=CHAT, max_tokens=1)
    usage = answer.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


@flow("anthropic")
def messages_errors_have_types(urls: Any) -> None:
    import anthropic

    try:
        _anthropic(urls.trained).messages.create(model="absent", messages=CHAT, max_tokens=1)
    except anthropic.NotFoundError as error:
        body: Any = error.body
        assert body["error"]["type"] == "not_found_error"
        return
    raise AssertionError("an absent model is accepted")


@flow("anthropic")
def messages_with_tools_in_a_stream(urls: Any) -> None:
    client = _anthropic(urls.scripted)
    options: Any = {"messages": [{"role": "user", "content": CALL}], "tools": [_TOOL]}
    counted = client.messages.count_tokens(model="scripted", **options)
    with client.messages.stream(model="scripted", max_tokens=80, **options) as stream:
        parts = [event.partial_json for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use"
    assert json.loads("".join(parts)) == final.content[-1].input == {"city": "Rome"}
    usage = final.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


@flow("anthropic")
def messages_tool_runner(urls: Any) -> None:
    from anthropic import beta_tool

    runner = _anthropic(urls.scripted).beta.messages.tool_runner(
        model="scripted",
        max_tokens=80,
        tools=[beta_tool(get_weather)],
        messages=[{"role": "user", "content": CALL}],
    )
    assert runner.until_done().content[0].text == ANSWER


@flow("anthropic")
def messages_parsed(urls: Any) -> None:
    from pydantic import BaseModel

    class Answer(BaseModel):
        is_class: bool

    answer = _anthropic(urls.trained).messages.parse(
        model="trained", messages=CHAT, max_tokens=80, output_format=Answer
    )
    assert isinstance(answer.parsed_output.is_class, bool)
