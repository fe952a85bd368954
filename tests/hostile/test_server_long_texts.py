# SPDX-License-Identifier: Apache-2.0
"""Whatever is sent to the server, no more of it is read than it takes to refuse it, and nobody else waits for that."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from fixtures_builds import Models
from fixtures_serving import MODEL, PROMPT, QUESTION, TIMEOUT, post, running

import qeff_zoo
from qeff_zoo.package import Package
from qeff_zoo.runtime import Engine
from qeff_zoo.runtime.tokenizer import Tokenizer
from qeff_zoo.serving.encoder_queue import EncoderQueue

LONG = "class collections.OrderedDict is a dict. " * 50_000  # 2 MB


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Give the lengths of all texts that are tokenized."""
    lengths: list[int] = []
    encode = Tokenizer.encode

    def listen(tokenizer: Tokenizer, text: str, **choices: Any) -> list[int]:
        lengths.append(len(text))
        return encode(tokenizer, text, **choices)

    monkeypatch.setattr(Tokenizer, "encode", listen)
    return lengths


def request(url: str, path: str, **body: Any) -> tuple[int, Any]:
    status, answer = post(url, path, json.dumps({"model": MODEL, **body}).encode())
    return status, answer.get("error", answer)


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_a_long_text_is_refused_by_its_beginning(url: str, path: str, read: list[int]) -> None:
    requested = {"prompt": LONG} if path == "completions" else {}
    messages = {"messages": [{"role": "user", "content": LONG}]}
    status, error = request(url, path, **(requested or messages))
    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert error["param"] == ("prompt" if requested else "messages")
    assert error["message"].startswith("A prompt has at least 256 tokens; expected at most 127,")
    assert 0 < sum(read) <= 128 * 100


def test_texts_that_fit_are_never_refused(tmp_path: Path) -> None:
    """However many characters a tokenizer drops or merges: spaces, control characters, unknown words."""
    words = tokenizers.models.WordPiece({"[UNK]": 0, "the": 1, "fox": 2}, unk_token="[UNK]")
    dropping = tokenizers.Tokenizer(words)
    dropping.normalizer = tokenizers.normalizers.BertNormalizer()
    dropping.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    dropping.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path)
    for text in (
        "the" + " " * 100_000 + "fox",
        "the" + "\x07" * 100_000 + "fox",
        "the " + "q" * 100_000 + " fox",
        "\u0301" * 100_000 + "fox",
    ):
        assert len(tokenizer.encode(text, special_tokens=False)) <= 4, text[:9]
        assert tokenizer.beginning(text, 10) == text
    assert len(tokenizer.beginning("fox " * 10_000, 10)) < 10_000


def test_other_threads_run_while_a_text_is_tokenized(models: Models) -> None:
    tokenizer, ticks, done = Tokenizer(models.llama), 0, threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.is_set():
            time.sleep(0.001)
            ticks += 1

    ticker = threading.Thread(target=tick)
    ticker.start()
    try:
        before = ticks
        tokenizer._tokenizer.encode_batch_fast(["warm"])
        assert len(tokenizer.encode(LONG)) > 100_000
        assert ticks - before > 10
    finally:
        done.set()
        ticker.join(TIMEOUT)


def test_many_messages_are_refused_before_the_template(
    url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.session, "encode_chat", lambda _: pytest.fail("rendered"))
    status, error = request(url, "chat/completions", messages=QUESTION * 100_000)
    assert (status, error["param"], error["code"]) == (400, "messages", "invalid_value")
    assert "at most 8192 items" in error["message"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": [' + b"[]," * 2_000_000 + b"[]]}",
        b'{"prompt": [' + b"{}," * 2_000_000 + b"{}]}",
        b"[" * 200_001 + b'"' + b'\\"' * 1_000_000,  # a string without an end
    ],
    ids=["lists", "objects", "string"],
)
def test_millions_of_lists_are_refused_before_they_are_made(url: str, body: bytes) -> None:
    status, answer = post(url, "completions", body)
    assert (status, answer["error"]["code"]) == (413, "body_too_large")
    assert "expected at most 200,000 lists and objects" in answer["error"]["message"]


def test_brackets_in_a_text_are_text(url: str) -> None:
    status, error = request(url, "completions", prompt='[{"\\' * 100_000)
    assert (status, error["code"]) == (400, "context_length_exceeded")


def test_a_stop_string_that_is_an_answer_of_its_own(url: str) -> None:
    status, error = request(url, "completions", prompt=PROMPT, stop=["a" * 1025])
    assert (status, error["param"]) == (400, "stop")


@contextmanager
def embedder(package: Package) -> Iterator[tuple[Any, str]]:
    session: Any = qeff_zoo.load(package, threads=1)
    with closing(EncoderQueue(session, max_waiting=4)) as queue, running(queue) as url:
        yield session, url


def test_a_long_text_is_embedded_by_its_beginning(
    encoder_package: Package, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with embedder(encoder_package) as (session, url):
        lengths: list[int] = []
        truncating = session.tokenizer._truncating

        class Listening:
            def __init__(self, tokenizer: Any) -> None:
                self._tokenizer = tokenizer

            def encode_batch(self, texts: list[str], **options: Any) -> Any:
                lengths.extend(map(len, texts))
                return self._tokenizer.encode_batch(texts, **options)

        @contextmanager
        def listening(length: int, side: str) -> Iterator[Listening]:
            with truncating(length, side) as tokenizer:
                yield Listening(tokenizer)

        monkeypatch.setattr(session.tokenizer, "_truncating", listening)
        status, found = request(url, "embeddings", input=["the lazy dog " * 100_000, "fox"])
        assert status == 200
        assert sum(read) + sum(lengths) < 10_000
        expected = session.embed(["the lazy dog " * 100, "fox"])
        vectors = [one["embedding"] for one in found["data"]]
        assert np.allclose(vectors, expected, atol=1e-5)
