# SPDX-License-Identifier: Apache-2.0
"""What several tests of fuzz bodies and others use."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest
from chat_templates import TEMPLATES
from fixtures_serving import MODEL

import qeff_zoo
from qeff_zoo import serving
from qeff_zoo.package import Package
from qeff_zoo.runtime import Engine
from qeff_zoo.runtime.text.chat_template import ChatTemplate
from qeff_zoo.tasks.encoders.endpoints.encoder_queue import EncoderQueue


class Posts:
    """Posts to an app within one event loop.

    Args:
        app: The app.
    """

    #: Whether a file of most depths is answered; see `test_server_budget`.
    computes_depths: bool = True
    #: Factor of the budget of a request.
    times: int = 1

    def __init__(self, app: Any) -> None:
        self._loop = asyncio.new_event_loop()
        transport = httpx.ASGITransport(app)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://localhost")

    def send(self, path: str, body: bytes, **headers: str) -> httpx.Response:
        named = {"Content-Type": "application/json", **headers}
        return self._run(self._client.post(path, content=body, headers=named))

    def close(self) -> None:
        self._run(self._client.aclose())
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(work, 60))


@pytest.fixture(scope="module")
def calling(trained: Package) -> Iterator[Posts]:
    """Give a server of a model that calls functions, in a format that our grammars write."""
    session: Any = qeff_zoo.load(trained, threads=1)
    source = TEMPLATES["qwen3_coder"].replace("<tools>{{ tools | tojson }}</tools>", "")
    session.chat_template = ChatTemplate(source, {"bos_token": "<|begin|>"})
    with Engine(session) as engine:
        posts = Posts(serving.create_app(engine, name=MODEL, fingerprint="qz1-ab"))
        yield posts
        posts.close()


@pytest.fixture(scope="module")
def looking(seeing: Package) -> Iterator[Posts]:
    """Give a server of a vision-language model."""
    session: Any = qeff_zoo.load(seeing, threads=1)
    with Engine(session) as engine:
        posts = Posts(serving.create_app(engine, name=MODEL, fingerprint="qz1-ab"))
        yield posts
        posts.close()


@pytest.fixture(scope="module")
def encoding(encoder_package: Package) -> Iterator[Posts]:
    """Give a server of a text encoder with a chat template."""
    session: Any = qeff_zoo.load(encoder_package, threads=1)
    session.chat_template = ChatTemplate(TEMPLATES["hermes"], {})
    with closing(EncoderQueue(session, max_waiting=8)) as queue:
        posts = Posts(serving.create_app(queue, name=MODEL, fingerprint="qz1-ab"))
        yield posts
        posts.close()


def functions(kind: str) -> Any:
    """Return functions whose schemas are small and have no end, or repeat large definitions."""
    if kind == "definitions":
        large = {"large": {"enum": ["a" * 900_000]}}
        fields = {f"f{number}": {"type": "integer"} for number in range(1000)}
        return {"type": "object", "properties": fields, "$defs": large}
    alternatives = [{"$ref": "#/$defs/x"} for _ in range(20)]
    return {
        "type": "object",
        "properties": {"f": {"$ref": "#/$defs/x"}},
        "$defs": {"x": {"anyOf": alternatives}},
    }
