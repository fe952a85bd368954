# SPDX-License-Identifier: Apache-2.0
"""Several models in one server: by the model of a request, within a memory budget, loaded and unloaded."""

import argparse
import asyncio
import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from fixtures_serving import MODEL, PROMPT, QUESTION, TIMEOUT, post
from fixtures_serving_fleet import Toy, models, send_request, served

import qeff_zoo
from qeff_zoo import cli, serving
from qeff_zoo.cli.running import _serve_several, _served
from qeff_zoo.package import Package
from qeff_zoo.package.memory import needed_memory
from qeff_zoo.serving.server import fleet as fleets
from qeff_zoo.serving.server.fleet import Fleet, Loaded, Member


@pytest.fixture(autouse=True)
def unsettled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load without collections of garbage, each of which takes about a second among the modules of tests."""
    monkeypatch.setattr(fleets, "settle", lambda: None)


def test_the_lists_of_the_ollama_api_load_no_model() -> None:
    async def names(fleet: Fleet, path: str) -> list[str]:
        status, body = await send_request(fleet, "", b"", path)
        assert status == 200
        return [model["name"] for model in json.loads(body)["models"]]

    async def run() -> None:
        toys = [Toy(name, 40) for name in ("one", "two")]
        fleet = Fleet([toy.member for toy in toys])
        assert await names(fleet, "/api/tags") == ["one", "two"]
        assert (await send_request(fleet, "two", path="/api/show"))[0] == 200
        assert (await send_request(fleet, "three", path="/api/show"))[0] == 404
        assert await names(fleet, "/api/ps") == []
        await send_request(fleet, "one")
        assert await names(fleet, "/api/ps") == ["one"]
        assert (await send_request(fleet, "two", path="/v1/load_lora_adapter"))[0] == 404
        assert [toy.loads for toy in toys] == [1, 0]

    asyncio.run(run())


def test_the_least_recently_used_model_makes_room() -> None:
    async def run() -> None:
        one, two, three = toys = [Toy(name, 40) for name in ("one", "two", "three")]
        fleet = Fleet([toy.member for toy in toys], budget=100)
        assert await send_request(fleet, "one") == (200, b"one")
        assert await send_request(fleet, "two") == (200, b"two")
        assert await send_request(fleet, "one") == (200, b"one")
        assert await send_request(fleet, "three") == (200, b"three")
        assert (one.is_loaded, two.is_loaded, three.is_loaded) == (True, False, True)
        assert [toy.loads for toy in toys] == [1, 1, 1]
        one.gate.clear()
        three.gate.clear()
        running = [asyncio.create_task(send_request(fleet, name)) for name in ("one", "three")]
        await asyncio.sleep(0.05)
        waiting = asyncio.create_task(send_request(fleet, "two"))  # both others have requests
        await asyncio.sleep(0.05)
        assert not waiting.done()
        three.gate.set()
        assert await waiting == (200, b"two")
        assert (one.is_loaded, two.is_loaded, three.is_loaded) == (True, True, False)
        one.gate.set()
        assert [found[0] for found in await asyncio.gather(*running)] == [200, 200]
        fleet.close()
        assert not any(toy.is_loaded for toy in toys)

    asyncio.run(run())


def test_requests_of_one_model_load_it_once_and_an_idle_model_is_unloaded() -> None:
    async def run() -> None:
        toy = Toy("one", 40)
        fleet = Fleet([toy.member], idle_seconds=0.1)
        found = await asyncio.gather(*(send_request(fleet, "one") for _ in range(8)))
        assert ({*found}, toy.loads) == ({(200, b"one")}, 1)
        await asyncio.sleep(0.4)
        assert not toy.is_loaded
        assert await send_request(fleet, "one") == (200, b"one")
        assert toy.loads == 2

    asyncio.run(run())


def test_a_request_without_a_known_model_is_refused() -> None:
    async def run() -> None:
        fleet = Fleet([Toy("one", 40).member])
        for name, status in (("two", 404), (None, 400), (["one"], 400), ("", 400)):
            found, body = await send_request(fleet, name)
            assert (found, json.loads(body)["error"]["param"]) == (status, "model")
        for content in (b"", b"[1]", b"\xff", b"{" * 100_000):
            assert (await send_request(fleet, "", content))[0] == 400
        form = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\none\r\n--x--\r\n'
        assert await send_request(fleet, "", form, kind=b"multipart/form-data; boundary=x") == (
            200,
            b"one",
        )
        assert await send_request(fleet, "", b"", "/openapi.json", b"model=one") == (200, b"one")
        assert (await send_request(fleet, "", b"", "/openapi.json", b"model=two"))[0] == 404
        status, body = await send_request(fleet, "two", path="/api/chat")
        assert (status, "no model 'two'" in json.loads(body)["error"]) == (404, True)

    asyncio.run(run())


def test_a_path_of_hugging_face_s_api_names_the_model() -> None:
    """Whatever its body is: a file, text like a field of a form, or JSON with the name of another model."""
    files = b"\xff\xd8\xff", b'name="model"\r\n\r\ntwo\r\n', b'{"model": "two"}'

    async def run() -> None:
        toys = [Toy(name, 40) for name in ("one", "org/two", "three")]
        toys[1].max_body_bytes = 20
        fleet = Fleet([toy.member for toy in toys])
        for file in files:
            for kind in (b"image/jpeg", b"application/json", b"multipart/form-data; boundary=x"):
                sent = await send_request(fleet, "", file, "/models/one", b"model=three", kind)
                assert sent == (200, b"one")
        jpeg = partial(send_request, fleet, "", kind=b"image/jpeg")
        assert await jpeg(b"a", "/models/org/two") == (200, b"org/two")
        assert (await jpeg(b"a" * 21, "/models/org/two"))[0] == 413
        for path, status in (("/models/two", 404), ("/models/", 400), ("/models", 400)):
            found, refusal = await jpeg(b"a", path)
            assert (found, json.loads(refusal)["error"]["param"]) == (status, "model")
        assert [toy.loads for toy in toys] == [1, 1, 0]

    asyncio.run(run())


def test_a_model_that_cannot_be_loaded_fails_its_own_requests_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    attempts: list[Exception] = [OSError("/home/me/a"), qeff_zoo.ZooError("/home/me/b")]
    toy = Toy("broken", 40)

    @contextmanager
    def load() -> Iterator[Loaded]:
        if attempts:
            raise attempts.pop()
        with toy.load() as loaded:
            yield loaded

    async def run() -> None:
        member, good = Member(name="broken", nbytes=40, load=load), Toy("good", 40)
        fleet = Fleet([member, good.member], budget=40)
        for kind in ("ZooError", "OSError"):
            for _ in range(3):  # of which the first tries to load it
                found = await asyncio.gather(*(send_request(fleet, "broken") for _ in range(3)))
                for status, body in found:
                    error = json.loads(body)["error"]
                    assert (status, error["code"]) == (500, "model_not_loaded")
                    assert f"'broken' cannot be loaded: {kind}," in error["message"]
                    assert "/home" not in error["message"]
                assert await send_request(fleet, "good") == (200, b"good")
            assert good.loads == ("ZooError", "OSError").index(kind) + 1
            status, body = await send_request(fleet, "broken", path="/api/chat")
            assert (status, [*json.loads(body)]) == (500, ["error"])
            listed = json.loads((await send_request(fleet, "", b"", "/v1/models"))[1])["data"]
            assert listed[0]["status"] == {"value": "unloaded", "failed": True}
            member.failed_until = 0.0
        assert "/home/me/a" in caplog.text
        assert await send_request(fleet, "broken") == (200, b"broken")
        listed = json.loads((await send_request(fleet, "", b"", "/v1/models"))[1])["data"]
        assert listed[0]["status"] == {"value": "loaded"}

    asyncio.run(run())


def test_a_cancelled_request_waits_for_the_thread_that_loads_its_model() -> None:
    async def run() -> None:
        toy, begun, gate = Toy("one", 40), threading.Event(), threading.Event()

        @contextmanager
        def load() -> Iterator[Loaded]:
            begun.set()
            assert gate.wait(TIMEOUT)
            with toy.load() as loaded:
                yield loaded

        member = Member(name="one", nbytes=40, load=load)
        fleet = Fleet([member], budget=40, idle_seconds=0.1)
        first = asyncio.create_task(send_request(fleet, "one"))
        await asyncio.to_thread(begun.wait, TIMEOUT)
        first.cancel()
        second = asyncio.create_task(send_request(fleet, "one"))
        await asyncio.sleep(0.05)
        assert (member.busy, first.done(), second.done()) == (True, False, False)
        gate.set()
        assert await second == (200, b"one")
        with pytest.raises(asyncio.CancelledError):
            await first
        assert (toy.loads, member.requests, member.users) == (1, 0, 0)
        await asyncio.sleep(0.4)
        assert not toy.is_loaded
        fleet.close()
        assert (await send_request(fleet, "one"))[0] == 503

    asyncio.run(run())


def test_what_cannot_be_served_together_is_refused_first(
    trained: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(qeff_zoo.ZooError, match="Two packages have the model name 'one'"):
        Fleet([Toy("one", 1).member, Toy("one", 1).member])
    with pytest.raises(qeff_zoo.ZooError, match=r"'one' takes .*--memory-budget"):
        Fleet([Toy("one", 100).member], budget=99)
    assert cli.main(["serve", str(trained.path), "--memory-budget", "1000"]) == 1
    assert "and the memory budget is 1 kB" in capsys.readouterr().err
    needed = needed_memory(
        trained.manifest
    )  # an unloaded model that exceeds the budget would wait for ever
    assert needed > trained.size
    for packages in ([str(trained.path)], [f"{name}={trained.path}" for name in "ab"]):
        assert cli.main(["serve", *packages, "--memory-budget", str(needed - 1)]) == 1
        assert "takes" in capsys.readouterr().err
    alone = ("model_name", "lora_modules", "allow_adapters", "prefill_from", "draft")
    alone += ("chat_template", "default_chat_template_kwargs")
    flags = dict.fromkeys(alone)
    path = str(trained.path)
    requested = argparse.Namespace(**flags, package=path, others=[path], build=False)
    requested.draft = "lookup"
    with pytest.raises(qeff_zoo.ZooError, match="--draft is given, and there are 2 packages"):
        _serve_several(requested, serving.ServerOptions(), None)  # type: ignore[arg-type]
    with pytest.raises(qeff_zoo.ZooError, match="With --build"):
        _served("no-such-package", build=False)


def test_packages_of_two_tasks_are_served_together(
    trained: Package, encoder_package: Package
) -> None:
    alone: Any = qeff_zoo.load(trained, threads=1)
    (expected,) = alone.generate([PROMPT], generation_len=8)
    with served({MODEL: trained, "bert": encoder_package}) as url:
        assert [model["status"] for model in models(url)] == [{"value": "unloaded"}] * 2
        body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0}
        status, found = post(url, "completions", json.dumps({"model": MODEL, **body}).encode())
        assert (status, found["choices"][0]["text"]) == (200, expected.text)
        assert [model["status"]["value"] for model in models(url)] == ["loaded", "unloaded"]
        status, found = post(
            url, "embeddings", json.dumps({"model": "bert", "input": "a"}).encode()
        )
        assert (status, len(found["data"])) == (200, 1)
        with urllib.request.urlopen(f"{url}/models/bert", timeout=TIMEOUT) as answer:
            assert json.load(answer)["id"] == "bert"
        assert post(url, "models/none", b"")[0] in (404, 405)
        chat = {"model": "bert", "messages": QUESTION}
        assert post(url, "chat/completions", json.dumps(chat).encode())[0] == 404
        metrics = url.replace("/v1", "/metrics")
        with urllib.request.urlopen(metrics, timeout=TIMEOUT) as answer:
            text = answer.read().decode()
        assert f'qeff_zoo_generated_tokens_total{{model_name="{MODEL}"}} 8.0' in text
        assert text.count("# TYPE qeff_zoo_generated_tokens_total ") == 1
