# SPDX-License-Identifier: Apache-2.0
"""Pytest plugin: servers of a small package that was trained, and clients of theirs."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from checkout import TINY_LLAMA
from fixtures_builds import Models

import qeff_zoo
from qeff_zoo.package import Package

if TYPE_CHECKING:
    import openai

    from qeff_zoo.runtime import Engine, TextGenerationSession
    from qeff_zoo.tasks.encoders.endpoints.encoder_queue import EncoderQueue

MODEL, KEY = "tiny", "sesame"
QUESTION = [{"role": "user", "content": "What is collections.OrderedDict?"}]
PROMPT = "class collections."
TIMEOUT = 60  # seconds; what takes longer hangs


@pytest.fixture(scope="session")
def trained(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Package:
    """Give a package of the trained Llama, with four slots."""
    home = tmp_path_factory.mktemp("serving")
    return models.build(TINY_LLAMA, home, ctx_len=128, prefill_seq_len=16, full_batch_size=4)


@pytest.fixture(scope="session")
def encoder_package(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Package:
    """Give a package of the tiny BERT, for three texts at a time."""
    home = tmp_path_factory.mktemp("embeddings")
    return models.build(models.bert, home, seq_lens=(16, 40), batch_size=3)


@pytest.fixture(scope="session")
def seeing(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Package:
    """Give a package of the trained vision-language model, with four slots; an image takes 36 tokens of 256."""
    home = tmp_path_factory.mktemp("seeing")
    checkpoint = TINY_LLAMA.parent / "tiny-vlm"
    return models.build(checkpoint, home, ctx_len=256, prefill_seq_len=64, full_batch_size=4)


@pytest.fixture(scope="session")
def alone(trained: Package) -> "TextGenerationSession":
    """Give a session of the same package that serves nobody else."""
    return qeff_zoo.load(trained, threads=1, prefix_cache_bytes=0)  # type: ignore[return-value]


@pytest.fixture(scope="session")
def engine(trained: Package) -> "Iterator[Engine]":
    """Give an engine that stays open."""
    from qeff_zoo.runtime import Engine

    with Engine(qeff_zoo.load(trained, threads=1)) as opened:  # type: ignore[arg-type]
        yield opened


@pytest.fixture(scope="session")
def url(engine: "Engine") -> Iterator[str]:
    """Give the URL of a server that most tests share."""
    with running(engine) as served:
        yield served


@pytest.fixture
def client(url: str) -> "Iterator[openai.OpenAI]":
    with connect(url) as opened:
        yield opened


@pytest.fixture
def paused(engine: "Engine", monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Give an event without which the shared server decodes nothing."""
    gate = pause(engine.session, monkeypatch)
    yield gate
    gate.set()


def pause(session: "TextGenerationSession", monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let a session decode only after an event."""
    gate, decode = threading.Event(), session.decoder.decode

    def wait(pieces: Any) -> Any:
        assert gate.wait(TIMEOUT)
        return decode(pieces)

    monkeypatch.setattr(session.decoder, "decode", wait)
    return gate


class Steps:
    """Lets a function be called as often as is permitted, and counts its calls.

    Args:
        act: The function.
    """

    def __init__(self, act: Callable[..., Any]) -> None:
        self._act, self._permits = act, threading.Semaphore(0)
        self.begun = 0

    def permit(self, count: int) -> None:
        self._permits.release(count)

    def __call__(self, *given: Any, **named: Any) -> Any:
        self.begun += 1
        assert self._permits.acquire(timeout=TIMEOUT)
        return self._act(*given, **named)


@contextmanager
def running(
    backend: "Engine | EncoderQueue",
    close: Callable[[], object] = lambda: None,
    patience: float = 0,
    **choices: Any,
) -> Iterator[str]:
    """Run a server in a thread; give its URL."""
    from qeff_zoo import serving

    app = serving.create_app(backend, **{"name": MODEL, "fingerprint": "qz1-ab", **choices})
    with (
        serving.bind("127.0.0.1", 0) as listener,
        listening(app, listener, close, patience) as url,
    ):
        yield url


@contextmanager
def listening(
    app: Any,
    listener: socket.socket,
    close: Callable[[], object] = lambda: None,
    patience: float = 0,
    tls: tuple[str, str] | None = None,
) -> Iterator[str]:
    """Run the server of an app on a socket, in a thread; give its URL."""
    from qeff_zoo.serving.server.process import Server

    urls: list[str] = []
    server = Server(app, close, patience, urls.append, tls)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    wait_until(lambda: bool(urls) or not thread.is_alive())
    try:
        yield urls[0]
    finally:
        server.should_exit = True
        thread.join(TIMEOUT)
        assert not thread.is_alive()


def connect(url: str, key: str = KEY) -> "openai.OpenAI":
    """Give OpenAI's client, which tries everything once."""
    import openai

    return openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=TIMEOUT)


def complete(client: "openai.OpenAI", prompt: Any = PROMPT, **choices: Any) -> Any:
    choices = {"max_tokens": 12, "temperature": 0, **choices}
    return client.completions.create(model=MODEL, prompt=prompt, **choices)


def chat(client: "openai.OpenAI", **choices: Any) -> Any:
    choices = {"messages": QUESTION, "max_tokens": 16, "temperature": 0, **choices}
    return client.chat.completions.create(model=MODEL, **choices)


def post(url: str, path: str, body: bytes, **headers: str) -> tuple[int, Any]:
    """Send bytes; give the status and the JSON that comes back."""
    named = {"Content-Type": "application/json", **headers}
    request = urllib.request.Request(f"{url}/{path}", body, named)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def figures(url: str) -> dict[str, float]:
    """Read /metrics; the labels' values are part of a name."""
    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(url.replace("/v1", "/metrics"), timeout=TIMEOUT) as answer:
        text = answer.read().decode()
    return {
        ":".join([sample.name.removeprefix("qeff_zoo_"), *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def dial(url: str) -> socket.socket:
    place = urlsplit(url)
    return socket.create_connection((place.hostname, place.port))


def send(connection: socket.socket, body: str, length: int | None = None) -> None:
    head = ["POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    head += [f"Content-Length: {length or len(body)}", "", body]
    connection.sendall("\r\n".join(head).encode())


def active(backend: "Engine | EncoderQueue") -> tuple[int, int]:
    """Return how many requests run, and how many wait."""
    stats = backend.stats()
    return stats.running, stats.waiting


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)
