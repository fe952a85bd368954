# SPDX-License-Identifier: Apache-2.0
"""Bodies of all requests have one bound in memory, and the body of a client that left is not read."""

import asyncio
import json
from contextlib import closing
from typing import Any

import pytest
from fixtures_serving import MODEL, PROMPT, dial, post, running, send, wait_until

from qeff_zoo.errors import BusyError
from qeff_zoo.runtime import Engine
from qeff_zoo.serving.middleware import BodyLimit
from qeff_zoo.serving.waiting import Bodies

REQUESTED = json.dumps({"model": MODEL, "prompt": PROMPT, "max_tokens": 1})


def test_bodies_that_are_received_have_one_bound(engine: Engine) -> None:
    """However many clients send them, and however slowly: 16 bodies of the largest size, a fourth of it small ones."""
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
        large(12 << 20)
        with pytest.raises(BusyError, match="no memory for a body of 12,582,913 bytes"):
            large(1)
        small(1 << 20)
    with bodies.one() as large:
        large(12 << 20)


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
    asyncio.run(limit({"type": "http", "headers": []}, receive, send))
    assert requested == ([] if left else [b"{}"])


def test_clients_that_left_are_not_answered(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that sends and leaves at once costs no more than to read what it sent."""
    from qeff_zoo.serving import generation

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
