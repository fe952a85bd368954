# SPDX-License-Identifier: Apache-2.0
"""Bodies of all requests have one bound in memory, and the body of a client that left is not read."""

import asyncio
import json
from contextlib import closing
from typing import Any

import pytest
from fixtures_serving import MODEL, PROMPT, dial, post, running, send, wait_until

from qeff_zoo.errors import BusyError
from qeff_zoo.runtime import Engine, TextGenerationSession
from qeff_zoo.runtime.text.chat_template import ChatOptions
from qeff_zoo.serving.queues import accounts
from qeff_zoo.serving.queues.waiting import Bodies
from qeff_zoo.serving.server.middleware import BodyLimit, _checked_json

REQUESTED = json.dumps({"model": MODEL, "prompt": PROMPT, "max_tokens": 1})


def test_bodies_that_are_received_have_one_bound(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many clients send them, and however slowly: 16 bodies of the largest size, a fourth of it small ones."""
    monkeypatch.setattr(accounts, "_TIMES_FREE", 1000)  # these are all of one address
    half = "{" + " " * 3000

    def held(url: str) -> bool:
        return post(url, "completions", (REQUESTED + " " * 1500).encode())[0] == 429

    with running(engine, max_body_bytes=4000) as url:
        clients = [dial(url) for _ in range(5)]
        try:
            for client in clients:
                send(client, half, 4000)
            wait_until(lambda: held(url))
            status, answer = post(url, "completions", (REQUESTED + " " * 3000).encode())
            assert (status, answer["error"]["code"]) == (429, "queue_full")
            assert "no memory for a body of 3,0" in answer["error"]["message"]
        finally:
            for client in clients:
                client.close()
        wait_until(lambda: not held(url))


def test_a_small_body_does_not_wait_for_large_ones() -> None:
    bodies = Bodies(16 << 20)
    with bodies.one() as large, bodies.one() as small:
        large(9 << 20)  # of 12 MiB, the rest of which is for other clients
        with pytest.raises(BusyError, match="no memory for a body of 9,437,185 bytes"):
            large(1)
        small(1 << 20)
    with bodies.one() as large:
        large(9 << 20)


@pytest.mark.parametrize("left", [False, True])
def test_nothing_is_done_for_a_client_that_left_before_its_request_is_read(left: bool) -> None:
    requested = list[bytes]()
    there = asyncio.Event()
    messages: list[Any] = [{"type": "http.request", "body": b"{}", "more_body": False}]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        if left:
            for _ in range(2):  # until the event loop reads the end of a connection
                await asyncio.sleep(0)
        else:
            await there.wait()
        return {"type": "http.disconnect"}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        requested.append((await receive())["body"])
        there.set()
        assert (await receive())["type"] == "http.disconnect"

    async def send(message: Any) -> None:
        raise AssertionError

    limit = BodyLimit(app, 100, Bodies(100))
    asyncio.run(limit({"type": "http", "path": "/v1/completions", "headers": []}, receive, send))
    assert requested == ([] if left else [b"{}"])


def test_clients_that_left_are_not_answered(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that sends and leaves at once costs no more than to read what it sent."""
    from qeff_zoo.serving.apis.openai import generation

    read, price = list[Any](), generation.prepare_completion
    monkeypatch.setattr(
        generation, "prepare_completion", lambda *given: read.append(0) or price(*given)
    )
    with running(engine) as url:
        for _ in range(20):
            with closing(dial(url)) as client:
                send(client, REQUESTED + " " * 70_000)
        assert post(url, "completions", REQUESTED.encode())[0] == 200
    assert len(read) < 20


@pytest.mark.parametrize("path", ["responses", "chat/completions", "tokenize"])
@pytest.mark.parametrize("text", [b"\xed\xa0\x80", b"\xff", b"\xc0\x80", b"\xf4\x90\x80\x80"])
def test_bytes_that_are_no_unicode_are_refused(url: str, path: str, text: bytes) -> None:
    """Python's reader of JSON takes halves of characters, which no answer can have."""
    body = b'{"input": "a", "messages": [], "prompt": "%b", "metadata": {"a": "%b"}}' % (text, text)
    status, answer = post(url, path, body)
    assert (status, answer["error"]["code"]) == (400, "invalid_json")


@pytest.mark.parametrize("path", ["responses", "messages", "chat/completions"])
@pytest.mark.parametrize("number", ["NaN", "-Infinity", "-1e999", "1E+400", "9" * 400 + ".5"])
def test_numbers_that_no_answer_can_have_are_refused(url: str, path: str, number: str) -> None:
    """An answer repeats the functions of its request, and JSON has no such number."""
    body = f'''{{"model": "{MODEL}", "input": "a", "messages": [{{"role": "user", "content": "a"}}],
    "max_tokens": 9, "tools": [{{"type": "function", "name": "f", "parameters": {{"default": {number}}},
    "function": {{"name": "f", "parameters": {{"default": {number}}}}},
    "input_schema": {{"default": {number}}}}}]}}'''
    status, answer = post(url, path, body.encode())
    assert (status, answer["error"]["code"]) == (400, "invalid_json")


def test_large_and_small_numbers_are_numbers() -> None:
    text = json.dumps([1e308, -1.7e308, 5e-324, int("9" * 400), "1e999", "NaN"]) + "\n "
    assert _checked_json(text.encode()).decode() == text


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32"])
def test_limits_of_json_are_those_of_every_encoding(url: str, encoding: str) -> None:
    assert post(url, "completions", REQUESTED.encode(encoding))[0] == 200
    for nested in ("[" * 101 + "]" * 101, "[" + "[]," * 200_000 + "[]]"):
        body = f'{REQUESTED[:-1]}, "a": {nested}}}'.encode(encoding)
        assert post(url, "completions", body)[0] == 413


def test_variables_of_a_template_have_any_names(alone: TextGenerationSession) -> None:
    template = alone.chat_template
    assert template is not None
    messages = [{"role": "user", "content": "a"}]
    plain = template.render(messages)
    for name in ("template", "context", "values", "source", "environment", "loop", "namespace"):
        assert template.render(messages, ChatOptions(variables={name: 1})) == plain
