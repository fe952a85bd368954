# SPDX-License-Identifier: Apache-2.0
"""Services of a server: a task declares what a server does with its packages, and serving has no list of tasks."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import APIRouter
from starlette.testclient import TestClient

from qeff_zoo import contract
from qeff_zoo.serving.queues.waiting import Waiting
from qeff_zoo.serving.requests.model import Model
from qeff_zoo.serving.server import app
from qeff_zoo.serving.server.options import ServerOptions
from qeff_zoo.serving.server.services import Offer

SERVED = [name for name in contract.NAMES if contract.find(name).commands.serve]


class Lengths:
    """Service that returns the lengths of texts."""

    def takes_files(self, session: Any) -> bool:
        return False

    def open(self, session: Any, choices: ServerOptions) -> AbstractContextManager[Any]:
        return nullcontext(session)

    def mount(self, backend: Any, offer: Offer) -> tuple[Model, list[APIRouter]]:
        router = APIRouter()

        @router.post("/lengths")
        async def lengths(texts: list[str]) -> list[int]:
            return [len(text) for text in texts]

        return offer.model(0, capabilities=("lengths",)), [router]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """A client of a server for packages of a new task."""
    task = contract.find(contract.DEPTH_ESTIMATION)
    commands = replace(task.commands, serve=lambda: Lengths, serve_paths=("/lengths",))
    new = replace(task, name="new-task", commands=commands)
    monkeypatch.setattr(app, "find", {"new-task": new}.__getitem__)
    monkeypatch.setattr(app, "NAMES", ("new-task",))
    app.known_paths.cache_clear()
    stats = partial(Waiting(1).stats, rows=1, running=0, prompt_tokens=0)
    backend = SimpleNamespace(session=SimpleNamespace(task="new-task"), stats=stats)
    with TestClient(app.create_app(backend, name="m", fingerprint="f")) as opened:
        yield opened
    app.known_paths.cache_clear()


def test_a_task_serves_its_endpoints(client: TestClient) -> None:
    assert client.post("/lengths", json=["a", "bcd"]).json() == [1, 3]
    assert client.get("/v1/models").json()["data"][0]["capabilities"] == ["lengths"]


def test_paths_of_a_task_are_counted_by_name(client: TestClient) -> None:
    client.post("/lengths", json=[])
    client.post("/elsewhere", json=[])
    counted = client.get("/metrics").text
    assert 'path="/lengths"' in counted
    assert 'path="other"' in counted
    assert "/elsewhere" not in counted


@pytest.mark.parametrize("name", SERVED)
def test_a_service_is_in_the_folder_of_its_tasks(name: str) -> None:
    commands = contract.find(name).commands
    assert commands.serve
    service = commands.serve()
    assert service.__module__.startswith("qeff_zoo.tasks.")
    assert all(callable(getattr(service, method)) for method in ("takes_files", "open", "mount"))
