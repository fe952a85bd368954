# SPDX-License-Identifier: Apache-2.0
"""What several tests of serving fleet and others use."""

import asyncio
import json
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from fixtures_serving import TIMEOUT
from starlette.types import Receive, Scope, Send

from qeff_zoo import serving
from qeff_zoo.package import Package
from qeff_zoo.runtime import Stats
from qeff_zoo.serving.monitoring.metrics import Metrics
from qeff_zoo.serving.requests.model import Model
from qeff_zoo.serving.server.fleet import Fleet, Loaded, Member
from qeff_zoo.serving.server.process import Server
from qeff_zoo.sessions import open_session


class Toy:
    """A model that counts how often it is loaded, and answers when it is let."""

    def __init__(self, name: str, nbytes: int) -> None:
        self.name, self.nbytes, self.loads = name, nbytes, 0
        self.is_loaded, self.gate = False, asyncio.Event()
        self.gate.set()
        self.seconds, self.max_body_bytes = 0.0, 1 << 20

    @contextmanager
    def load(self) -> Iterator[Loaded]:
        self.loads, self.is_loaded = self.loads + 1, True
        metrics = Metrics(partial(Stats, 1, 0, 0, {}, 0, 0, 0))
        model = Model(name=self.name, fingerprint="", max_tokens=1)
        yield Loaded(
            app=self.answer,
            model=model,
            metrics=metrics,
            max_body_bytes=self.max_body_bytes,
        )
        self.is_loaded = False

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.is_loaded
        body = (await receive())["body"]
        await self.gate.wait()
        await asyncio.sleep(self.seconds)
        assert self.is_loaded
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": self.name.encode() + body[:0]})

    @property
    def member(self) -> Member:
        return Member(name=self.name, nbytes=self.nbytes, load=self.load)


async def send_request(
    fleet: Fleet,
    name: Any,
    body: bytes | None = None,
    path: str = "/v1/completions",
    query: bytes = b"",
    kind: bytes = b"application/json",
    left: asyncio.Event | None = None,
) -> tuple[int, bytes]:
    """Send a request to an app; give the status and the body. The client leaves at an event."""
    sent: list[Any] = []
    content = json.dumps({"model": name}).encode() if body is None else body
    whole = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive() -> Any:
        if not whole:
            await (left or asyncio.Event()).wait()
            return {"type": "http.disconnect"}
        return whole.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", kind)]
    method = "GET" if body == b"" else "POST"
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": headers,
        "query_string": query,
    }
    await fleet(scope, receive, send)
    if not sent:
        return 499, b""
    return sent[0]["status"], sent[1]["body"]


@contextmanager
def served(packages: Mapping[str, Package], **choices: Any) -> Iterator[str]:
    """Serve packages by name in a thread; give the URL."""
    named = {
        name: (package, partial(open_session, package, threads=1))
        for name, package in packages.items()
    }
    options = serving.ServerOptions(request_log="none", **choices)
    urls, servers = list[str](), list[Server]()
    begin = Server.__init__

    def noted(self: Server, *given: Any) -> None:
        begin(self, *given)
        servers.append(self)

    with serving.bind("127.0.0.1", 0) as listener, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Server, "__init__", noted)
        thread = threading.Thread(
            target=serving.serve_several, args=(named, listener, options, urls.append)
        )
        thread.start()
        while not urls:
            assert thread.is_alive()
            time.sleep(0.01)
        yield urls[0]
        servers[0].should_exit = True
        thread.join(TIMEOUT)
        assert not thread.is_alive()


def models(url: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{url}/models", timeout=TIMEOUT) as answer:
        data: list[dict[str, Any]] = json.load(answer)["data"]
        return data
