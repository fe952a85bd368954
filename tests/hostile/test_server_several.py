# SPDX-License-Identifier: Apache-2.0
"""Several models in one server: no body, path, name or client of one model holds the others or their memory."""

import asyncio
import gc
import json
import socket
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.client import HTTPResponse
from typing import Any
from urllib.parse import urlsplit

import pytest
from fixtures_serving import MODEL, TIMEOUT, post
from fixtures_serving_fleet import Toy, models, send_request, served
from selection import few

import qeff_zoo
from qeff_zoo.package import Package
from qeff_zoo.package.memory import needed_memory
from qeff_zoo.serving.apis.openai.responses.store import ResponseStore, Stored
from qeff_zoo.serving.server import fleet as fleets
from qeff_zoo.serving.server import interpreter
from qeff_zoo.serving.server.fleet import Fleet, Loaded

FORM = b"multipart/form-data; boundary=x"
SECONDS = 2.0  # for one body on a machine that does other things, too; they took minutes
_FIELDS = b"--x\r\n" + b'name="model"\r\n' * 40_000


@pytest.fixture(autouse=True)
def unsettled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load without collections of garbage, each of which takes about a second among the modules of tests."""
    monkeypatch.setattr(fleets, "settle", lambda: None)


@pytest.mark.parametrize(
    "body",
    [_FIELDS, _FIELDS + b"X: " + b"a" * 400_000, b'{"a": [' + b"[]," * 1_000_000 + b"[]]}"],
    ids=["fields", "a long line", "lists"],
)
def test_the_model_of_a_form_is_found_in_time(body: bytes) -> None:
    """A body may be called a form to be spared the limits of JSON, and a form may have fields without end."""

    async def run() -> None:
        begun = time.process_time()
        assert (await send_request(Fleet([Toy("one", 1).member]), "", body, kind=FORM))[0] == 400
        assert time.process_time() - begun < SECONDS

    asyncio.run(run())


def test_an_unknown_path_loads_no_model() -> None:
    async def run() -> None:
        toy = Toy("one", 1)
        fleet = Fleet([toy.member])
        for path in ("/v1/nothing", "/v1/responses/one", "/v1/load_lora_adapter", "/one"):
            assert (await send_request(fleet, "one", path=path))[0] in (404, 405)
        assert toy.loads == 0

    asyncio.run(run())


@pytest.mark.parametrize("name", ["org/model", "../one", "/etc", "hf://org/model", "one ", "ONE"])
def test_no_name_of_a_client_is_built_pulled_or_opened(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator's command builds (`serve --build`); a request has the names of the server's models alone."""
    for work in ("build", "pull", "load"):
        monkeypatch.setattr(qeff_zoo, work, lambda *_, **__: pytest.fail("a client's name is used"))

    async def run() -> None:
        toy = Toy("one", 1)
        status, body = await send_request(Fleet([toy.member]), name)
        assert (status, json.loads(body)["error"]["code"]) == (404, "model_not_found")
        assert toy.loads == 0

    asyncio.run(run())


def test_a_body_has_the_limit_of_its_model() -> None:
    async def run() -> None:
        toy = Toy("one", 1)
        toy.max_body_bytes = 100
        fleet = Fleet([toy.member])
        body = json.dumps({"model": "one", "prompt": "a" * 100}).encode()
        status, found = await send_request(fleet, "", body)
        assert (status, json.loads(found)["error"]["code"]) == (413, "body_too_large")
        assert (await send_request(fleet, "one"))[0] == 200

    asyncio.run(run())


def test_a_model_in_steady_use_yields_to_one_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of one model always have a request there; the other's one is answered, and theirs go on."""
    monkeypatch.setattr(fleets, "PATIENCE", 0.2)

    async def run() -> None:
        one, two = Toy("one", 40), Toy("two", 40)
        fleet, answers = Fleet([one.member, two.member], budget=60), list[int]()
        one.seconds = 0.05

        async def insist() -> None:
            while True:
                answers.append((await send_request(fleet, "one"))[0])

        clients = [asyncio.create_task(insist()) for _ in range(3)]
        for client in clients:  # out of step: there is no moment without a request
            await asyncio.sleep(0.02)
            assert not client.done()
        assert await asyncio.wait_for(send_request(fleet, "two"), TIMEOUT) == (200, b"two")
        count = len(answers)
        async with asyncio.timeout(TIMEOUT):
            while len(answers) == count:
                await asyncio.sleep(0.05)
        assert {*answers} == {200}
        for client in clients:
            client.cancel()
        await asyncio.wait(clients)

    asyncio.run(run())


def test_a_slow_reader_holds_no_model(trained: Package, encoder_package: Package) -> None:
    """Of two models there is memory for one; the answer of the unloaded one is whole when it is read at last."""
    packages = {MODEL: trained, "bert": encoder_package}
    budget = max(needed_memory(one.manifest) for one in packages.values())
    embeddings = json.dumps({"model": "bert", "input": ["a"] * 2048}).encode()
    head = (
        f"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(embeddings)}\r\n"
    )
    with served(packages, memory_budget=budget) as url, socket.socket() as slow:
        place = urlsplit(url)
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(TIMEOUT)
        slow.connect((place.hostname, place.port))
        slow.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + embeddings)
        answer = HTTPResponse(slow)
        answer.begin()
        assert answer.status == 200
        text, begun = json.dumps({"model": MODEL, "prompt": "a", "max_tokens": 2}).encode(), b""
        for _ in range(3):
            assert post(url, "completions", text)[0] == 200
            begun += answer.read(300)
        assert [one["status"]["value"] for one in models(url)] == ["loaded", "unloaded"]
        rest = answer.read()
        assert len(rest) > 1 << 20  # more than the connection holds
        assert len(json.loads(begun + rest)["data"]) == 2048


def test_nothing_is_loaded_for_a_client_that_left() -> None:
    async def run() -> None:
        one, two = Toy("one", 40), Toy("two", 40)
        fleet, left = Fleet([one.member, two.member], budget=60), asyncio.Event()
        one.gate.clear()
        running = asyncio.create_task(send_request(fleet, "one"))
        await asyncio.sleep(0.05)
        waiting = asyncio.create_task(send_request(fleet, "two", left=left))
        await asyncio.sleep(0.05)
        left.set()
        assert await asyncio.wait_for(waiting, 5) == (499, b"")
        one.gate.set()
        assert (await running)[0] == 200
        await asyncio.sleep(0.05)
        assert (two.loads, one.is_loaded) == (0, True)

    asyncio.run(run())


def test_kept_responses_have_one_bound_for_all_models() -> None:
    """And they outlive the model that made them, which may be unloaded."""
    store = ResponseStore()

    async def run() -> None:
        fleet = Fleet([Toy(name, 1).member for name in ("one", "two")], store=store)
        store.add(Stored({"id": "resp_1"}, []))
        status, body = await send_request(fleet, "", b"", "/v1/responses/resp_1")
        assert (status, json.loads(body)) == (200, {"id": "resp_1"})
        status, body = await send_request(fleet, "", b"{}", "/v1/conversations")
        assert (status, json.loads(body)["object"]) == (200, "conversation")

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["utf-8-sig", "utf-16"])
def test_a_body_is_read_as_by_a_server_of_one_model(kind: str) -> None:
    body = '{"model": "one"}'.encode(kind)
    assert asyncio.run(send_request(Fleet([Toy("one", 1).member]), "", body)) == (200, b"one")


def test_models_that_come_and_go_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects are exempt from garbage collection; those of a closed model are in cycles."""
    monkeypatch.setattr(fleets, "settle", interpreter.settle)
    alive = list[weakref.ref[Any]]()

    class Cyclic(Toy):
        @contextmanager
        def load(self) -> Iterator[Loaded]:
            with super().load() as loaded:
                app = partial(loaded.app)
                app.itself = app  # type: ignore[attr-defined]
                alive.append(weakref.ref(app))
                yield replace(loaded, app=app)

    async def run() -> None:
        fleet = Fleet([Cyclic(name, 40).member for name in ("one", "two")], budget=40)
        for name in ("one", "two") * few(10):
            assert await send_request(fleet, name) == (200, name.encode())
            assert sum(one() is not None for one in alive) == 1

    asyncio.run(run())
    gc.unfreeze()
    assert len(alive) == 2 * few(10)
