# SPDX-License-Identifier: Apache-2.0
"""OpenAI's Responses API, by OpenAI's client: text, tools, structured output, earlier responses, streams, refusals."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import openai
import pytest
from chat_templates import TEMPLATES
from fixtures_serving import MODEL, QUESTION, chat, connect, pause, post, running, wait_until
from fixtures_serving_tools import CITY

from qeff_zoo.runtime import Engine, Generation, Handle
from qeff_zoo.runtime.text.chat_output import Arguments, Call, Output, Reasoning, Text
from qeff_zoo.runtime.text.chat_template import ChatTemplate
from qeff_zoo.serving.answers.logprobs import LogprobObjects
from qeff_zoo.serving.answers.streaming import Recording
from qeff_zoo.serving.apis.openai.responses import endpoints as responses
from qeff_zoo.serving.apis.openai.responses import memory
from qeff_zoo.serving.apis.openai.responses.items import messages_of
from qeff_zoo.serving.apis.openai.responses.objects import ResponseBuilder
from qeff_zoo.serving.apis.openai.responses.schemas import ResponsesRequest
from qeff_zoo.serving.apis.openai.responses.store import ResponseStore, Stored
from qeff_zoo.serving.errors import ApiError
from qeff_zoo.serving.requests import chat_runs

REQUESTED = QUESTION[0]["content"]
TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": CITY}, "required": ["city"]},
    "strict": True,
}


def respond(client: openai.OpenAI, given: Any = REQUESTED, **choices: Any) -> Any:
    choices = {"max_output_tokens": 16, "temperature": 0, **choices}
    return client.responses.create(model=MODEL, input=given, **choices)


@pytest.fixture
def calling(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[openai.OpenAI]:
    """Give a client of a model with tools."""
    source = TEMPLATES["qwen3_coder"].replace("<tools>{{ tools | tojson }}</tools>", "")
    template = ChatTemplate(source, {"bos_token": "<|begin|>"})
    monkeypatch.setattr(engine.session, "chat_template", template)
    with running(engine) as url, connect(url) as client:
        yield client


def test_a_response_is_the_chat_of_its_input(client: openai.OpenAI) -> None:
    expected = chat(client)
    for given in (REQUESTED, QUESTION, [{"type": "message", **QUESTION[0]}]):
        found = respond(client, given)
        assert found.output_text == expected.choices[0].message.content
        assert found.usage.input_tokens == expected.usage.prompt_tokens
        assert found.usage.output_tokens == expected.usage.completion_tokens
    cut = expected.choices[0].finish_reason == "length"
    assert found.status == ("incomplete" if cut else "completed")
    assert (
        found.incomplete_details is None or found.incomplete_details.reason == "max_output_tokens"
    )
    (message,) = found.output
    assert (message.type, message.role, message.status) == ("message", "assistant", found.status)
    parts = [{"role": "user", "content": [{"type": "input_text", "text": REQUESTED}]}]
    settings = respond(client, parts, instructions="Be brief.")
    both = [{"role": "system", "content": "Be brief."}, *QUESTION]
    assert settings.output_text == chat(client, messages=both).choices[0].message.content


def test_a_stream_has_the_events_of_its_response(client: openai.OpenAI) -> None:
    expected = respond(client)
    events = [*respond(client, stream=True)]
    assert [event.sequence_number for event in events] == [*range(len(events))]
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    ]  # fmt: skip
    assert kinds[-4:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done",
        f"response.{expected.status}",
    ]  # fmt: skip
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == expected.output_text == events[-1].response.output_text
    assert events[-1].response.usage == expected.usage
    with client.responses.stream(
        model=MODEL, input=REQUESTED, max_output_tokens=16, temperature=0
    ) as stream:
        text = "".join(
            chunk.delta for chunk in stream if chunk.type == "response.output_text.delta"
        )
        assert stream.get_final_response().output_text == text == expected.output_text


def test_a_text_has_log_probabilities_on_request(client: openai.OpenAI) -> None:
    expected = (
        chat(client, max_tokens=16, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    )
    requested: Any = {"top_logprobs": 2, "include": ["message.output_text.logprobs"]}
    found = respond(client, **requested).output[0].content[0].logprobs
    assert [one.model_dump() for one in found] == [one.model_dump() for one in expected]
    events = [*respond(client, stream=True, **requested)]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    streamed = [entry.model_dump() for delta in deltas for entry in delta.logprobs]
    assert streamed == [one.model_dump() for one in found]
    assert events[-1].response.output[0].content[0].logprobs == found
    assert respond(client).output[0].content[0].logprobs == []


def test_a_response_continues_an_earlier_one(client: openai.OpenAI) -> None:
    first = respond(client)
    second = respond(client, "And a list?", previous_response_id=first.id)
    messages = [
        *QUESTION,
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "And a list?"},
    ]
    assert second.output_text == chat(client, messages=messages).choices[0].message.content
    items = [*QUESTION, *first.output, {"role": "user", "content": "And a list?"}]
    assert respond(client, items).output_text == second.output_text
    assert client.responses.retrieve(first.id).output == first.output
    client.responses.delete(first.id)
    for unknown in (first.id, respond(client, store=False).id):
        with pytest.raises(openai.NotFoundError, match="There is no response"):
            client.responses.retrieve(unknown)
        with pytest.raises(openai.NotFoundError, match="There is no response"):
            respond(client, previous_response_id=unknown)


def test_a_response_runs_in_the_background(client: openai.OpenAI) -> None:
    queued = respond(client, background=True)
    assert (queued.status, queued.background, queued.output) == ("queued", True, [])
    while (found := client.responses.retrieve(queued.id)).status in ("queued", "in_progress"):
        time.sleep(0.02)
    assert found.output_text == respond(client).output_text
    assert client.responses.cancel(queued.id).status == found.status  # it has ended
    assert respond(client, "And a list?", previous_response_id=queued.id).output_text
    with pytest.raises(openai.BadRequestError, match="Cannot cancel a synchronous response"):
        client.responses.cancel(respond(client).id)


def test_a_response_in_the_background_is_cancelled(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled: list[Any] = []

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Handle, "cancel", lambda one: cancelled.append(one))
    monkeypatch.setattr(responses, "whole", never)
    running = respond(client, background=True)
    assert client.responses.retrieve(running.id).status == "in_progress"
    with pytest.raises(openai.BadRequestError, match="is in progress"):
        respond(client, previous_response_id=running.id)
    assert client.responses.cancel(running.id).status == "cancelled"
    assert cancelled  # its batch slot is free
    assert client.responses.retrieve(running.id).status == "cancelled"
    client.responses.delete(respond(client, background=True).id)


def _types(events: Iterable[Any]) -> list[str]:
    """Return the types of events without repetitions."""
    return [*dict.fromkeys(event.type.removeprefix("response.") for event in events)]


def test_a_stream_in_the_background_is_resumed(
    client: openai.OpenAI, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = pause(engine.session, monkeypatch)
    with respond(client, background=True, stream=True) as left:
        first, second, third = itertools.islice(left, 3)
    assert _types([first, second, third]) == ["created", "queued", "in_progress"]
    assert first.response.status == second.response.status == "queued"
    name = first.response.id
    with client.responses.retrieve(name, stream=True, starting_after=1) as resumed:
        assert next(resumed) == third
        assert client.responses.retrieve(name).status == "in_progress"
        gate.set()
        rest = [third, *resumed]
    assert [event.sequence_number for event in rest] == [*range(2, len(rest) + 2)]
    made = respond(client)
    deltas = [event.delta for event in rest if event.type == "response.output_text.delta"]
    assert "".join(deltas) == rest[-1].response.output_text == made.output_text
    wait_until(lambda: client.responses.retrieve(name).status == made.status)
    assert [*client.responses.retrieve(name, stream=True)] == [first, second, *rest]
    with pytest.raises(openai.BadRequestError, match="has no recorded stream"):
        client.responses.retrieve(made.id, stream=True)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.retrieve(name, stream=True, starting_after=-1)
    assert refused.value.param == "starting_after"


def test_a_stream_in_the_background_ends_with_its_response(
    client: openai.OpenAI, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = pause(engine.session, monkeypatch)
    with respond(client, background=True, stream=True) as stream:
        name = next(stream).response.id
        assert client.responses.cancel(name).status == "cancelled"
        gate.set()
        assert not {"completed", "incomplete", "failed"} & {*_types(stream)}
    assert client.responses.retrieve(name).status == "cancelled"
    monkeypatch.setattr(chat_runs, "chat_events", _failing)
    events = [*respond(client, background=True, stream=True)]
    assert events[-1].type == "response.failed"
    assert events[-1].response.error.message == "Out of order."
    name = events[-1].response.id
    wait_until(lambda: client.responses.retrieve(name).status == "failed")


async def _failing(*_: object) -> AsyncIterator[Any]:
    raise ApiError(500, "Out of order.")
    yield


def test_a_response_lists_its_input(client: openai.OpenAI) -> None:
    first = respond(client)
    parts = [{"type": "input_text", "text": "And?"}, {"type": "input_text", "text": " More?"}]
    added = [{"role": "user", "content": parts, "id": "mine"}, {"role": "user", "content": "b"}]
    second = respond(client, added, previous_response_id=first.id)
    found: Any = client.responses.input_items.list(second.id, order="asc")
    user, answer, mine, last = found.data
    assert (user.role, user.content[0].type, user.content[0].text) == (
        "user",
        "input_text",
        REQUESTED,
    )
    assert answer.to_dict() == first.output[0].to_dict()
    assert (mine.id, mine.to_dict()["content"]) == ("mine", parts)
    assert [part.text for part in last.content] == ["b"]
    paged: Any = client.responses.input_items.list(second.id, limit=1)
    assert (paged.data[0].id, paged.has_more) == (last.id, True)
    assert [item.id for item in paged] == [last.id, "mine", answer.id, user.id]
    assert not client.responses.input_items.list(second.id, after=answer.id).has_more
    for changes, param in (({"after": "x"}, "after"), ({"limit": 0}, "limit")):
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.input_items.list(second.id, **changes)
        assert refused.value.param == param
    with pytest.raises(openai.NotFoundError, match="There is no response"):
        client.responses.input_items.list("resp_x")


def test_functions_are_called_and_answered(calling: openai.OpenAI) -> None:
    options = {
        "tools": [TOOL],
        "tool_choice": "required",
        "max_output_tokens": 60,
        "parallel_tool_calls": False,
    }
    found = respond(calling, "Hi", **options)
    (call,) = found.output
    assert (call.type, call.name, found.status) == ("function_call", "get_weather", "completed")
    assert json.loads(call.arguments)["city"] in ("Rome", "Oslo")
    events = [*respond(calling, "Hi", stream=True, **options)]
    deltas = "".join(
        event.delta for event in events if event.type == "response.function_call_arguments.delta"
    )
    (done,) = (event for event in events if event.type == "response.function_call_arguments.done")
    assert deltas == done.arguments == call.arguments == events[-1].response.output[0].arguments
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "12"}
    answer = respond(calling, [output], previous_response_id=found.id, tools=[TOOL])
    by_items = respond(calling, [{"role": "user", "content": "Hi"}, call, output], tools=[TOOL])
    assert answer.output_text == by_items.output_text
    with pytest.raises(openai.BadRequestError) as refused:
        respond(calling, tools=[TOOL], tool_choice={"type": "function", "name": "other"})
    assert refused.value.param == "tool_choice"


def test_structured_output_is_json_of_its_schema(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"city": CITY}, "required": ["city"]}
    form = {
        "type": "json_schema",
        "name": "city",
        "schema": {**schema, "additionalProperties": False},
    }
    found = respond(client, text={"format": form}, max_output_tokens=40)
    assert json.loads(found.output_text)["city"] in ("Rome", "Oslo")
    broken = {**form, "schema": {"type": "frob"}}
    with pytest.raises(openai.BadRequestError) as refused:
        respond(client, text={"format": broken})
    assert refused.value.param == "text"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no kind of tool": ({"tools": [{"name": "f"}]}, "tools"),
    "unknown item": ({"input": [{"type": "item_reference", "id": "a"}]}, "input"),
    "a file": ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input"),
    "no role": ({"input": [{"content": "a"}]}, "input"),
    "no text": ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input"),
    "too long": ({"max_output_tokens": 10**6}, "input"),
    "two conversations": ({"conversation": "a", "previous_response_id": "b"}, "conversation"),
    "in the background, not kept": ({"background": True, "store": False}, "background"),
    "truncation": ({"truncation": "middle"}, "truncation"),
    "a prompt of a template": ({"prompt": {"id": "a"}}, "prompt"),
    "hot": ({"temperature": 3}, "temperature"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_unsupported_is_refused(url: str, case: str) -> None:
    changes, param = REFUSED[case]
    body = {"model": MODEL, "input": "a", **changes}
    status, answer = post(url, "responses", json.dumps(body).encode())
    assert (status, answer["error"]["param"]) == (400, param)


def test_items_of_the_assistant_become_one_message() -> None:
    reasoning = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    settings = {"role": "assistant", "content": [{"type": "output_text", "text": "So."}]}
    result = {
        "type": "function_call_output",
        "call_id": "c",
        "output": [{"type": "input_text", "text": "1"}],
    }
    user = {"role": "user", "content": "a"}
    function = {"name": "f", "arguments": "{}"}
    assert messages_of([user, reasoning, settings, call, result, settings]) == [
        user,
        {
            "role": "assistant", "content": "So.", "reasoning_content": "hm",
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "1"}]},
        {"role": "assistant", "content": "So."},
    ]  # fmt: skip


def test_reasoning_text_and_calls_are_items_in_their_order() -> None:
    events = [
        Reasoning("h"),
        Reasoning("m"),
        Text("So"),
        Call(0, "c", "f"),
        Arguments(0, "{"),
        Arguments(0, "}"),
    ]
    generation = Generation(
        prompt="",
        text="",
        token_ids=[1, 2],
        finish_reason="length",
        prompt_tokens=3,
        reused_tokens=1,
    )
    body = ResponsesRequest.model_validate({"model": MODEL, "input": "a"})
    parts: Any = (
        lambda _: 2,
        LogprobObjects(None),
    )  # tokens of reasoning, and objects of log-probabilities
    whole = ResponseBuilder(body, *parts).whole(generation, Output.of(events))
    streamed = ResponseBuilder(body, *parts)
    lines = [line for event in events for line in streamed.grow(event)] + [*streamed.close()]
    names = [line.split(b"\n")[0].removeprefix(b"event: response.").decode() for line in lines]
    assert names == [
        "output_item.added", "reasoning_text.delta", "reasoning_text.delta", "reasoning_text.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done",
        "output_item.done", "output_item.added", "function_call_arguments.delta", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done",
    ]  # fmt: skip
    made = streamed.finished(generation)
    for one in (whole, made):
        for item in one["output"]:
            del item["id"]
    assert whole["output"] == made["output"]
    assert [item["status"] for item in made["output"]] == ["completed", "completed", "incomplete"]
    assert made["usage"]["output_tokens_details"] == {"reasoning_tokens": 2}
    assert made["usage"]["input_tokens_details"] == {"cached_tokens": 1}


def test_old_responses_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    one = memory.size_of({"id": "a", "text": "x" * 60}) + memory.size_of([])
    monkeypatch.setattr(memory, "MAX_KEPT", 2.5 * one)
    monkeypatch.setattr(memory, "MAX_VALUE", one + 100)
    store = ResponseStore()
    for name in "abc":
        store.add(Stored({"id": name, "text": "x" * 60}, []))
        store.find("a") if name == "b" else None
    assert store.find("a").body["id"] == "a"  # used after b
    with pytest.raises(ApiError):
        store.find("b")
    store.add(Stored({"id": "d", "text": "x" * 200}, []))  # too long to be kept
    with pytest.raises(ApiError):
        store.find("d")
    store.remove("c")
    assert store.memory.nbytes == one


def test_responses_are_measured_without_a_look_at_their_text() -> None:
    text = "x" * (1 << 20)
    body = {"id": "a", "text": text}
    found = memory.size_of([body, [{"role": "user", "content": text}]])
    assert 2 * len(text) < found < 2 * len(text) + 10_000
    nested: Any = []
    for _ in range(10_000):
        nested = [nested]
    store = ResponseStore()
    store.add(Stored({**body, "tools": nested}, []))
    assert store.memory.nbytes > len(text) + 10_000 * 56


def test_a_large_recording_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MAX_VALUE", 4096)
    store, recording = ResponseStore(), Recording()
    store.add(Stored({"id": "a"}, [], recording))
    assert store.recording("a") is recording
    recording.add(b"x" * 4096)
    store.add(Stored({"id": "a"}, [], recording))
    with pytest.raises(ApiError, match="has no recorded stream"):
        store.recording("a")
    assert store.find("a").body == {"id": "a"}
