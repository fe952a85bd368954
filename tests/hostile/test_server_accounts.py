# SPDX-License-Identifier: Apache-2.0
"""Clients that take all of a server, and clients that request responses of others."""

import asyncio
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any
from urllib.parse import urlsplit

import pytest
from fixtures_serving import MODEL, TIMEOUT, active, running, wait_until
from starlette.types import Message, Receive, Scope, Send

from qeff_zoo.runtime import Engine
from qeff_zoo.serving.apis.openai.responses import store as response_store
from qeff_zoo.serving.queues.accounts import Client, Shares, Turns, enter
from qeff_zoo.serving.server import outbox
from qeff_zoo.serving.server.outbox import Outbox

KEYS = ("alice", "mallory")
LONG = "class collections.OrderedDict returns an instance of a dict subclass that has methods for"


def send(
    url: str, path: str, key: str = KEYS[0], method: str = "POST", **fields: Any
) -> tuple[int, Any]:
    body = json.dumps({"model": MODEL, **fields}).encode() if method == "POST" else None
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{url}/{path}", body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.fixture(scope="module")
def keyed(engine: Engine) -> Iterator[str]:
    """Serve the trained Llama to two keys."""
    with running(engine, api_keys=KEYS) as url:
        yield url


@pytest.mark.parametrize("background", [False, True])
def test_a_response_belongs_to_its_key(
    keyed: str, background: bool, engine: Engine, paused: threading.Event
) -> None:
    if not background:
        paused.set()
    status, made = send(keyed, "responses", input="a", background=background, max_output_tokens=8)
    assert status == 200
    place = f"responses/{made['id']}"
    for _ in range(2):  # in the background it runs, and has ended
        for path, method in ((place, "GET"), (place, "DELETE"), (f"{place}/cancel", "POST")):
            status, refused = send(keyed, path, KEYS[1], method)
            assert (status, refused["error"]["code"]) == (404, "response_not_found")
        for path in ("responses", "responses/input_tokens"):
            fields = {"previous_response_id": made["id"], "input": "b"}
            status, refused = send(keyed, path, KEYS[1], **fields)
            assert (status, refused["error"]["code"]) == (404, "response_not_found")
        assert send(keyed, place, method="GET")[0] == 200
        paused.set()
        wait_until(lambda: send(keyed, place, method="GET")[1]["status"] != "in_progress")
    assert send(keyed, "responses", previous_response_id=made["id"], input="b")[0] == 200
    assert send(keyed, place, method="DELETE")[0] == 200
    assert send(keyed, place, method="GET")[0] == 404


def test_cached_tokens_confirm_no_prompt_of_another_key(keyed: str, engine: Engine) -> None:
    def cached(url: str, key: str, prompt: str) -> int:
        _, found = send(url, "completions", key, prompt=prompt, max_tokens=1)
        return int(found["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached(keyed, KEYS[0], f"1 {LONG}") == 0
    assert cached(keyed, KEYS[1], f"1 {LONG}") == 0
    assert cached(keyed, KEYS[0], f"1 {LONG}") > 0
    assert cached(keyed, KEYS[1], f"1 {LONG}") > 0
    with running(engine, api_keys=KEYS, shares_prefixes=True) as shared:
        assert cached(shared, KEYS[0], f"2 {LONG}") == 0
        assert cached(shared, KEYS[1], f"2 {LONG}") > 0


def test_responses_in_the_background_are_few(
    keyed: str, engine: Engine, paused: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_store, "MAX_BACKGROUND", 3)
    made = [send(keyed, "responses", input="a", background=True) for _ in range(4)]
    assert [status for status, _ in made] == [200, 200, 200, 429]
    status, other = send(keyed, "responses", KEYS[1], input="a", background=True)
    assert status == 200
    for key, body in (
        (KEYS[0], made[0][1]),
        (KEYS[0], made[1][1]),
        (KEYS[0], made[2][1]),
        (KEYS[1], other),
    ):
        assert send(keyed, f"responses/{body['id']}/cancel", key)[0] == 200
    paused.set()
    wait_until(lambda: active(engine) == (0, 0))


def test_stalled_uploads_leave_room_for_others(engine: Engine) -> None:
    """Addresses of the loopback network are different clients of a server without keys."""
    body = json.dumps({"model": MODEL, "prompt": "a", "max_tokens": 1}).encode()
    with running(engine, max_body_bytes=1 << 20) as url, ExitStack() as stack:
        place = urlsplit(url).hostname, urlsplit(url).port

        def begin(source: str, sent: bytes, length: int) -> socket.socket:
            opened = socket.create_connection(place, TIMEOUT, (source, 0))  # type: ignore[arg-type]
            head = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
            opened.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode() + sent)
            return stack.enter_context(closing(opened))

        stalled = [begin("127.0.0.2", b" " * 500_000, 500_001) for _ in range(9)]
        stalled[-1].settimeout(TIMEOUT)
        assert stalled[-1].recv(1 << 10).startswith(b"HTTP/1.1 429 ")
        for _ in range(3):
            opened = begin("127.0.0.3", b" " * 100_000 + body, 100_000 + len(body))
            assert opened.recv(1 << 10).startswith(b"HTTP/1.1 200 ")


def test_shares_leave_room() -> None:
    shares, first, second = Shares(100, 5), Client("a"), Client("b")
    for client, most in ((first, 75), (second, 18)):
        taken = 0
        while shares.has(1, client):
            shares.take(1, client)
            taken += 1
        assert taken == most
    shares.take(-75, first)
    shares.take(-18, second)
    assert (shares.total, dict(shares.held)) == (0, {})


@pytest.mark.parametrize(
    ("one", "other", "are_same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8::2:3:4:5", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("", "", True),
    ],
)
def test_clients_by_address(one: str, other: str, are_same: bool) -> None:
    assert (Client.of_address(one) == Client.of_address(other)) == are_same


def test_a_client_has_few_turns_at_a_time() -> None:
    async def all_of() -> list[str]:
        turns, order = Turns(2), list[str]()

        async def work(name: str) -> None:
            enter(Client(name))
            async with turns.one():
                order.append(name)
                await asyncio.sleep(0.01)

        await asyncio.gather(*map(work, "aaaab"))
        assert not turns._gates
        return order

    assert asyncio.run(all_of()) == [*"aabaa"]


class Reader:
    """Client that reads an answer when it is permitted to."""

    def __init__(self) -> None:
        self.read, self.may_read, self.aborted = bytearray(), asyncio.Event(), False

    async def send(self, message: Message) -> None:
        await self.may_read.wait()
        self.read += message.get("body", b"")

    def abort(self) -> None:
        self.aborted = True
        self.may_read.set()


async def answer_to(reader: Reader, parts: int, size: int, ended: asyncio.Event) -> None:
    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200})
            for number in range(parts):
                body = {"body": b"%d" % number * size, "more_body": number < parts - 1}
                await send({"type": "http.response.body", **body})
        finally:
            ended.set()

    async def receive() -> Message:
        raise AssertionError

    scope = {"type": "http", outbox.ABORT: reader.abort}
    await Outbox(app)(scope, receive, reader.send)


@pytest.mark.parametrize(("parts", "size"), [(9, 100), (1, 1 << 20), (5, 1 << 19)])
def test_a_request_ends_before_its_answer_is_read(parts: int, size: int) -> None:
    async def read() -> bytes:
        reader, ended = Reader(), asyncio.Event()
        answering = asyncio.create_task(answer_to(reader, parts, size, ended))
        await asyncio.wait_for(ended.wait(), TIMEOUT)
        assert not reader.read
        assert not answering.done()
        reader.may_read.set()
        await answering
        return bytes(reader.read)

    assert asyncio.run(read()) == b"".join(b"%d" % number * size for number in range(parts))


def test_a_client_that_makes_no_room_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "ROOM_SECONDS", 0.05)
    monkeypatch.setattr(outbox, "MAX_UNREAD", 1 << 20)
    monkeypatch.setattr(outbox, "LEAST_UNREAD", 1 << 18)

    async def read() -> bool:
        reader = Reader()
        await answer_to(reader, 9, 1 << 18, asyncio.Event())
        return reader.aborted

    assert asyncio.run(read())
