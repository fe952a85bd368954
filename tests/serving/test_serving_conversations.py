# SPDX-License-Identifier: Apache-2.0
"""OpenAI's Conversations API, by OpenAI's client: conversations, their items, and responses that continue them."""

import json
import time
from typing import Any

import openai
import pytest
from fixtures_serving import KEY, MODEL, QUESTION, chat, connect, post, running, wait_until

from qeff_zoo.runtime import Engine
from qeff_zoo.serving.apis.openai.responses import memory

REQUESTED = QUESTION[0]["content"]
SYSTEM: Any = {"role": "system", "content": "Be brief."}


def respond(client: openai.OpenAI, given: Any, **choices: Any) -> Any:
    return client.responses.create(
        model=MODEL, input=given, max_output_tokens=8, temperature=0, **choices
    )


def texts(items: Any) -> list[tuple[str, str]]:
    return [(item.role, item.content[0].text) for item in items]


@pytest.mark.parametrize("form", ["whole", "stream", "background"])
def test_a_response_continues_and_extends_a_conversation(client: openai.OpenAI, form: str) -> None:
    conversation = client.conversations.create(items=[SYSTEM])
    options = {} if form == "whole" else {form: True}
    messages: list[Any] = [SYSTEM]
    for given, named in (
        (REQUESTED, conversation.id),
        ([{"role": "user", "content": "And a list?"}], {"id": conversation.id}),
    ):
        made = respond(client, given, conversation=named, **options)
        if form == "stream":
            made = [*made][-1].response
        assert made.conversation.id == conversation.id
        messages.append({"role": "user", "content": given if given is REQUESTED else "And a list?"})
        count = len(messages) + 1
        wait_until(lambda: len(_listed(client, conversation.id)) == count)  # noqa: B023
        expected = chat(client, messages=messages, max_tokens=8).choices[0].message.content
        messages.append({"role": "assistant", "content": expected})
        assert texts(_listed(client, conversation.id)) == [
            (message["role"], message["content"]) for message in messages
        ]
    listed = client.responses.input_items.list(made.id, order="asc").data
    assert [one.id for one in listed] == [one.id for one in _listed(client, conversation.id)][:-1]
    counted = client.responses.input_tokens.count(
        model=MODEL, input="c", conversation=conversation.id
    )
    messages.append({"role": "user", "content": "c"})
    assert counted.input_tokens == chat(client, messages=messages, max_tokens=1).usage.prompt_tokens


def _listed(client: openai.OpenAI, name: str) -> list[Any]:
    return [*client.conversations.items.list(name, order="asc", limit=2)]


def test_conversations_are_made_changed_and_deleted(client: openai.OpenAI) -> None:
    made = client.conversations.create(metadata={"topic": "a"})
    assert (made.object, made.metadata) == ("conversation", {"topic": "a"})
    assert client.conversations.retrieve(made.id) == made
    changed = client.conversations.update(made.id, metadata={"topic": "b"})
    assert client.conversations.retrieve(made.id) == changed
    assert changed.metadata == {"topic": "b"}
    deleted = client.conversations.delete(made.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (made.id, "conversation.deleted", True)
    items = client.conversations.items
    for act in (
        lambda: client.conversations.retrieve(made.id),
        lambda: client.conversations.update(made.id, metadata=None),
        lambda: client.conversations.delete(made.id),
        lambda: items.list(made.id),
        lambda: items.create(made.id, items=[SYSTEM]),
        lambda: respond(client, "a", conversation=made.id),
    ):
        with pytest.raises(openai.NotFoundError, match="There is no conversation"):
            act()


def test_items_are_added_listed_and_deleted(client: openai.OpenAI) -> None:
    name = client.conversations.create().id
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "12"}
    items: Any = client.conversations.items
    added = items.create(name, items=[{**SYSTEM, "id": "mine"}, call, output])
    assert [entry.type for entry in added.data] == [
        "message",
        "function_call",
        "function_call_output",
    ]
    assert (added.first_id, added.last_id, added.has_more) == ("mine", added.data[2].id, False)
    assert [one.id for one in items.list(name)] == [one.id for one in added.data[::-1]]
    for one in added.data:
        assert items.retrieve(one.id, conversation_id=name) == one
    (again,) = items.create(name, items=[{**SYSTEM, "id": "mine"}]).data
    assert again.id not in ("mine", None)  # ids are unique
    assert items.delete("mine", conversation_id=name).id == name
    assert "mine" not in [one.id for one in items.list(name)]
    for act in (items.retrieve, items.delete):
        with pytest.raises(openai.NotFoundError, match="has no item 'mine'"):
            act("mine", conversation_id=name)


REFUSED: dict[str, tuple[Any, str]] = {
    "unknown item": ({"items": [{"type": "frob"}]}, "items"),
    "no role": ({"items": [{"content": "a"}]}, "items"),
    "no list": ({"items": "a"}, "items"),
    "metadata": ({"metadata": {"a": 1}}, "metadata"),
    "much metadata": ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
    "unknown parameter": ({"topic": "a"}, "topic"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_conversation_is_refused(url: str, case: str) -> None:
    body, param = REFUSED[case]
    status, answer = post(url, "conversations", json.dumps(body).encode())
    assert (status, answer["error"]["param"]) == (400, param)


def test_a_conversation_has_a_largest_size(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = client.conversations.create().id
    monkeypatch.setattr(memory, "MAX_VALUE", 4096)
    long: Any = {"role": "user", "content": "a" * 4096}
    for act in (
        lambda: client.conversations.items.create(name, items=[long]),
        lambda: client.conversations.create(items=[long]),
        lambda: respond(client, [long], conversation=name),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            act()
        assert refused.value.code == "conversation_too_long"
    assert _listed(client, name) == []


def test_what_was_not_used_for_long_is_dropped(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, response = (
        client.conversations.create(items=[SYSTEM]).id,
        respond(client, "a", store=True),
    )
    client.conversations.retrieve(name)
    client.responses.retrieve(response.id)
    monkeypatch.setattr(memory, "MAX_AGE", 0.0)
    for act in (
        lambda: client.conversations.retrieve(name),
        lambda: client.responses.retrieve(response.id),
    ):
        with pytest.raises(openai.NotFoundError):
            act()


def test_a_use_keeps_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = memory.ClientMemory()
    kept.put("a", 1, 8)
    kept.put("b", 2, 8)
    time.sleep(0.5)
    assert kept.find("a", int) == 1
    monkeypatch.setattr(memory, "MAX_AGE", time.monotonic() - kept._entries["b"].used)
    assert (kept.find("b", int), kept.find("a", int), kept.nbytes) == (None, 1, 8)


def test_a_conversation_belongs_to_its_key(engine: Engine) -> None:
    with running(engine, api_keys=[KEY, "other"]) as url, connect(url, KEY) as mine:
        name = mine.conversations.create(items=[SYSTEM]).id
        item: Any
        (item,) = mine.conversations.items.list(name)
        with connect(url, "other") as others:
            for act in (
                lambda: others.conversations.retrieve(name),
                lambda: others.conversations.update(name, metadata={}),
                lambda: others.conversations.delete(name),
                lambda: others.conversations.items.list(name),
                lambda: others.conversations.items.create(name, items=[SYSTEM]),
                lambda: others.conversations.items.retrieve(item.id, conversation_id=name),
                lambda: others.conversations.items.delete(item.id, conversation_id=name),
                lambda: respond(others, "a", conversation=name),
            ):
                with pytest.raises(openai.NotFoundError, match="There is no conversation"):
                    act()
        assert [*mine.conversations.items.list(name)] == [item]
