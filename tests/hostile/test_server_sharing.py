# SPDX-License-Identifier: Apache-2.0
"""However much one client asks for, others are answered beside it, and nothing is computed for one that has left."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from fixtures_serving import (
    MODEL,
    PROMPT,
    TIMEOUT,
    Steps,
    active,
    dial,
    figures,
    post,
    running,
    wait_until,
)

import qeff_zoo
from qeff_zoo.package import Package
from qeff_zoo.runtime import Engine
from qeff_zoo.tasks.encoders.endpoints.encoder_queue import EncoderQueue


def request(url: str, path: str, **body: Any) -> tuple[int, Any]:
    return post(url, path, json.dumps({"model": MODEL, **body}).encode())


@pytest.fixture
def clients() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as opened:
        yield opened


# --- generation -----------------------------------------------------------------------------------


def test_choices_are_counted_before_anything_is_read(
    url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.session, "encode", lambda *_, **__: pytest.fail("read"))
    status, answer = request(url, "completions", prompt=[PROMPT] * 2000, n=128)
    assert (status, answer["error"]["param"]) == (400, "n")
    assert "256,000 choices; expected at most 516." in answer["error"]["message"]


@pytest.mark.parametrize("much", [{"prompt": PROMPT, "n": 8}, {"prompt": [[7] * 60] * 8}])
def test_a_second_client_does_not_wait_for_the_first(
    trained: Package,
    monkeypatch: pytest.MonkeyPatch,
    clients: ThreadPoolExecutor,
    much: dict[str, Any],
) -> None:
    """One takes all rows and all that it may of the queue; another one is in the queue, and has its answer, at once."""
    session: Any = qeff_zoo.load(trained, threads=1)
    steps = Steps(session.decoder.decode)
    monkeypatch.setattr(session.decoder, "decode", steps)
    with Engine(session, max_waiting=8) as engine, running(engine) as url:
        first = clients.submit(
            request, url, "completions", **much, max_tokens=60, ignore_eos=True, temperature=0
        )
        wait_until(lambda: active(engine) == (4, 4) and steps.begun == 1)
        second = clients.submit(request, url, "completions", prompt=PROMPT, max_tokens=3)
        wait_until(lambda: active(engine) == (4, 5))
        assert not second.done()
        steps.permit(8)
        assert second.result(TIMEOUT)[0] == 200
        assert not first.done()
        steps.permit(10_000)
        status, answer = first.result(TIMEOUT)
        assert (status, answer["usage"]["completion_tokens"]) == (200, 8 * 60)
        assert (
            len({choice["text"] for choice in answer["choices"]}) == 1
        )  # also where a row was given up


# --- embeddings -----------------------------------------------------------------------------------


@pytest.fixture
def queue(
    encoder_package: Package, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[EncoderQueue, Steps]]:
    """Give a queue, and its calls of three texts, which wait for permission."""
    session: Any = qeff_zoo.load(encoder_package, threads=1)
    steps = Steps(session.run)
    monkeypatch.setattr(session, "run", steps)
    with closing(EncoderQueue(session, max_waiting=4)) as opened:
        yield opened, steps
        steps.permit(10_000)


def embed(url: str, texts: list[str]) -> tuple[int, Any]:
    return request(url, "embeddings", input=texts, encoding_format="base64")


def test_too_many_inputs(queue: tuple[EncoderQueue, Steps]) -> None:
    opened, steps = queue
    with running(opened) as url:
        status, answer = embed(url, ["fox"] * 2049)
        assert (status, answer["error"]["param"]) == (400, "input")
        assert "2,049 inputs; expected at most 2,048" in answer["error"]["message"]
        steps.permit(10_000)
        status, answer = embed(url, ["fox"] * 2048)
        assert (status, len(answer["data"])) == (200, 2048)
        assert steps.begun == -(-2048 // 3)


def test_clients_share_calls(
    queue: tuple[EncoderQueue, Steps], clients: ThreadPoolExecutor
) -> None:
    opened, steps = queue
    with running(opened) as url:
        first = clients.submit(embed, url, ["fox"] * 300)
        wait_until(lambda: active(opened) == (1, 0))
        others = [clients.submit(embed, url, ["the lazy dog"]) for _ in range(2)]
        # Their texts are tokenized, too: the next call is chosen among them.
        wait_until(lambda: active(opened) == (1, 2) and len(opened._jobs) == 3)
        steps.permit(2)
        assert [one.result(TIMEOUT)[0] for one in others] == [200, 200]
        assert not first.done()
        steps.permit(10_000)
        status, answer = first.result(TIMEOUT)
        assert (status, steps.begun) == (200, -(-302 // 3))
        assert len({one["embedding"] for one in answer["data"]}) == 1


def test_nothing_is_embedded_for_who_has_left(queue: tuple[EncoderQueue, Steps]) -> None:
    opened, steps = queue
    body = json.dumps({"model": MODEL, "input": ["fox"] * 300})
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    with running(opened) as url:
        with closing(dial(url)) as client:
            client.sendall(f"{head}\r\n\r\n{body}".encode())
            wait_until(lambda: active(opened) == (1, 0) and steps.begun == 1)
        wait_until(lambda: figures(url)["http_responses_total:/v1/embeddings:499"] == 1)
        steps.permit(10_000)
        assert embed(url, ["fox"])[0] == 200
        assert steps.begun == 2


def test_a_failure_reaches_every_request_of_a_call_and_ends_nothing(
    queue: tuple[EncoderQueue, Steps],
    clients: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    opened, steps = queue
    with running(opened) as url:
        with monkeypatch.context() as patch:
            patch.setattr(steps, "_act", lambda *_, **__: [][0])
            requested = [clients.submit(embed, url, ["fox"] * 30) for _ in range(2)]
            wait_until(lambda: sum(active(opened)) == 2 and steps.begun == 1)
            steps.permit(2)
            assert [one.result(TIMEOUT)[0] for one in requested] == [500, 500]
        wait_until(lambda: "IndexError" in caplog.text)  # logged after the answers
        steps.permit(1)
        assert embed(url, ["fox"])[0] == 200


def test_the_end_waits_for_one_call(
    queue: tuple[EncoderQueue, Steps], clients: ThreadPoolExecutor
) -> None:
    opened, steps = queue
    requested: list[Future[Any]] = []
    with running(opened, opened.close) as url:
        requested += [clients.submit(embed, url, ["fox"] * 300) for _ in range(2)]
        wait_until(lambda: sum(active(opened)) == 2 and steps.begun == 1)
        threading.Thread(
            target=lambda: (wait_until(lambda: opened._closing), steps.permit(1))
        ).start()
    assert [one.result(TIMEOUT)[0] for one in requested] == [503, 503]
    assert steps.begun == 1
