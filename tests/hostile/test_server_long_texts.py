# SPDX-License-Identifier: Apache-2.0
"""Whatever is sent to the server, no more of it is read than it takes to refuse it, and nobody else waits for that."""

import json
import random
import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokenizers
from fixtures_builds import Models
from fixtures_serving import MODEL, PROMPT, QUESTION, TIMEOUT, post, running
from published_tokenizers import FORMS, TRAINED_ON

import qeff_zoo
from qeff_zoo.package import Package
from qeff_zoo.runtime import Engine
from qeff_zoo.runtime.engine.prompts import PromptReader
from qeff_zoo.runtime.text.tokenizer import Tokenizer
from qeff_zoo.tasks.encoders.endpoints.encoder_queue import EncoderQueue

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
def test_a_long_text_is_refused_by_its_beginning(
    url: str, path: str, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PromptReader, "encoding_apart", lambda *_: None)  # here, where it is seen
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
    status, error = request(url, "chat/completions", messages=QUESTION * 10_000)
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
    assert re.search("expected at most (65,536|100) lists and objects", answer["error"]["message"])


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


def tokenized(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Give the lengths of the texts of requests that a tokenizer encodes, also of those yet to come."""
    lengths: list[int] = []
    library = tokenizer._tokenizer

    def listen(texts: list[str], **options: Any) -> Any:
        lengths.extend(map(len, texts))
        return library.encode_batch(texts, **options)

    both = SimpleNamespace(encode_batch=listen, encode_batch_fast=library.encode_batch_fast)
    monkeypatch.setattr(tokenizer, "_tokenizer", both)
    return lengths


def test_a_long_text_is_embedded_by_its_beginning(
    encoder_package: Package, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with embedder(encoder_package) as (session, url):
        lengths = tokenized(session.tokenizer, monkeypatch)
        status, found = request(url, "embeddings", input=["the lazy dog " * 100_000, "fox"])
        assert status == 200
        assert sum(read) + sum(lengths) < 10_000
        expected = session.embed(["the lazy dog " * 100, "fox"])
        vectors = [one["embedding"] for one in found["data"]]
        assert np.allclose(vectors, expected, atol=1e-5)


FAR = "the lazy dog " * 100_000  # 1.3 MB


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"input": FAR, "truncation_side": "left"}, 400),
        ({"input": FAR, "truncate": "START", "truncate_prompt_tokens": 4}, 400),
        ({"input": [FAR[: len(FAR) // 2]] * 2, "truncate": "START"}, 400),  # as long together
        ({"input": FAR[: len(FAR) // 2], "truncate": "START"}, 200),
        ({"input": ["the lazy dog " * 20] * 2048, "truncate": "START", "dimensions": 1}, 200),
        ({"input": FAR, "truncate": "NONE", "truncation_side": "left"}, 400),  # for its length
    ],
)
def test_texts_that_are_truncated_on_the_left_are_not_far_longer(
    encoder_package: Package, monkeypatch: pytest.MonkeyPatch, body: dict[str, Any], status: int
) -> None:
    with embedder(encoder_package) as (session, url):
        lengths = tokenized(session.tokenizer, monkeypatch)
        found = request(url, "embeddings", **body)
        assert found[0] == status, found
        if status == 400:
            assert (found[1]["code"], found[1]["param"]) == ("context_length_exceeded", "input")
            assert sum(lengths) < 10_000


def long_texts(rng: random.Random, tokens: int) -> list[str]:
    """Draw texts with far more tokens."""
    count, words = 30 * tokens, " ".join(TRAINED_ON).split()
    marks = ["<s>", "</s>", "[SEP]", "<mask>", " ", "  ", "the", "\n", "."]
    return [
        " ".join(rng.choices(words, k=count)),
        "".join(rng.choices("ab 1\n你é,", k=4 * count)),
        "".join(rng.choices(marks, k=count)),
        *(one * (3 * count + rng.randrange(8)) for one in ("a", "1", " ", "\n", "ab", "你")),
        "the" + " " * count + "<mask>" + " fox" * count,
    ]


@pytest.mark.parametrize("form", FORMS)
def test_truncated_texts_have_the_tokens_of_whole_ones(form: str, tmp_path: Path) -> None:
    content = FORMS[form]().tokenizer
    if content is None:
        pytest.skip("in another format")
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer, library = Tokenizer(tmp_path), tokenizers.Tokenizer.from_str(json.dumps(content))
    library.no_padding()
    rng = random.Random(form)
    sides = (("right", 7, True), ("right", 24, False), ("left", 8, False), ("left", 25, True))
    for side, length, special in sides:
        library.enable_truncation(length, direction=side)
        texts: list[Any] = long_texts(rng, length)
        pairs = [(text[:length], text[: 9 * length]) for text in texts]
        pairs += [(long, short) for short, long in pairs]
        pairs += [(text[: 9 * length], text[: 8 * length]) for text in texts]
        found = tokenizer.encode_all([*texts, *pairs], length, side, special_tokens=special)
        expected = library.encode_batch([*texts, *pairs], add_special_tokens=special)
        for given, one, whole in zip([*texts, *pairs], found, expected, strict=True):
            assert (one.ids, one.type_ids) == (whole.ids, whole.type_ids), given
            assert one.special == [bool(mark) for mark in whole.special_tokens_mask]
            assert one.cut == bool(whole.overflowing)
            if side == "right":  # else the library trims the first token as if it began the text
                assert one.offsets == whole.offsets


def test_pairs_that_are_cut_are_one_encoding(models: Models) -> None:
    """The library keeps the product of the parts of both texts: 160,000 encodings of 40 tokens here."""
    tokenizer = Tokenizer(models.bert)
    text = "fox " * 8_000
    begun = time.process_time()
    (found,) = tokenizer.encode_all([(text, text)], 40, "left")
    assert time.process_time() - begun < 5
    assert (len(found.ids), found.cut) == (40, True)
