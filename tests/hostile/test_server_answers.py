# SPDX-License-Identifier: Apache-2.0
"""Small requests for large answers: refused before anything is computed, or written apart from the event loop."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from fixtures_builds import Models
from fixtures_serving import MODEL, post, running

import qeff_zoo
from qeff_zoo.serving.answers import large as answers
from qeff_zoo.tasks.encoders.endpoints.encoder_queue import EncoderQueue

TEXTS = ["a cat sat here", "two dogs", "the quick brown fox jumps over it"]


@pytest.fixture(scope="module")
def states(
    models: Models, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, EncoderQueue]]:
    """Serve a package that returns a state of 32 numbers for each token."""
    home = tmp_path_factory.mktemp("states")
    package = models.build(models.bert, home, seq_lens=(16,), pooling="none")
    session: Any = qeff_zoo.load(package, threads=1)
    with closing(EncoderQueue(session, max_waiting=8)) as queue, running(queue) as url:
        yield url, queue


def send(url: str, path: str, **fields: Any) -> tuple[int, Any]:
    return post(url, path, json.dumps({"model": MODEL, **fields}).encode())


def test_states_of_tokens_are_bounded(
    states: tuple[str, EncoderQueue], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, queue = states
    tokens = sum(len(one.ids) for one in queue.session.read(TEXTS))
    size = tokens * queue.session.width
    called: list[object] = []
    run = queue.session.run_encoded
    monkeypatch.setattr(
        queue.session, "run_encoded", lambda texts: (called.append(texts), run(texts))[1]
    )
    monkeypatch.setattr(answers, "MAX_NUMBERS", size - 1)
    status, found = send(url, "pooling", input=TEXTS)
    assert (status, found["error"]["code"]) == (400, "answer_too_large")
    assert f"{size:,} numbers" in found["error"]["message"]
    assert not called
    monkeypatch.setattr(answers, "MAX_NUMBERS", size)
    status, found = send(url, "pooling", input=TEXTS)
    assert status == 200
    assert sum(np.size(one["data"]) for one in found["data"]) == size


@pytest.mark.parametrize("piece", [1, 1 << 10, 1 << 30])
def test_pieces_of_an_answer_are_the_answer(
    states: tuple[str, EncoderQueue], piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, queue = states
    monkeypatch.setattr(answers, "_PIECE", piece)
    status, found = send(url, "pooling", input=TEXTS)
    expected = queue.session.states(TEXTS)  # type: ignore[attr-defined]
    assert status == 200
    for one, other in zip(found["data"], expected, strict=True):
        np.testing.assert_allclose(np.float32(one["data"]), other, atol=1e-5)
    assert found["usage"]["prompt_tokens"] == sum(map(len, expected))


@pytest.mark.parametrize(
    "content",
    [
        {},
        [],
        {"a": []},
        [1, "é", None],
        [{"a": {}}, 5, [1, [2]]],
        [*range(10_000)],
        "a\ud7ff\u2028",
    ],
)
def test_an_answer_is_json(content: Any) -> None:
    assert json.loads(b"".join(answers._pieces(content))) == content


def test_numbers_that_json_lacks_are_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        b"".join(answers._pieces({"data": iter([np.float32([0, np.nan])])}))


@pytest.mark.parametrize(
    ("path", "fields", "count"),
    [
        ("completions", {"prompt": "a", "logprobs": 5, "n": 4}, 4 * 6 * 10),
        ("completions", {"prompt": [65] * 9, "logprobs": 3, "echo": True}, 4 * (10 + 9)),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": 7},
            8 * 10,
        ),
    ],
)
def test_logprobs_are_bounded(
    url: str, path: str, fields: dict[str, Any], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for most, expected in ((count, 200), (count - 1, 400)):
        monkeypatch.setattr(answers, "MAX_LOGPROBS", most)
        status, found = send(url, path, max_tokens=10, **fields)
        assert status == expected, found
    assert found["error"]["code"] == "answer_too_large"
    assert f"{count:,} log-probabilities" in found["error"]["message"]
