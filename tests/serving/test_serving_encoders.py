# SPDX-License-Identifier: Apache-2.0
"""Endpoints of rerankers, classifiers and embedding models, by vLLM's API, beside the sessions alone."""

import base64
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures_builds import Models
from fixtures_serving import MODEL, TIMEOUT, post, running

import qeff_zoo
from qeff_zoo.package import Package
from qeff_zoo.runtime.text.chat_template import ChatTemplate
from qeff_zoo.serving.errors import ApiError
from qeff_zoo.sessions import open_session
from qeff_zoo.tasks.encoders.endpoints.embedding_prompts import of_kind
from qeff_zoo.tasks.encoders.endpoints.encoder_queue import EncoderQueue

pytestmark = pytest.mark.turns(2)

TEXTS = ["a cat sat here", "two dogs", "the quick brown fox jumps over it"]
CHAT = [
    {"role": "system", "content": "two dogs"},
    {"role": "user", "content": [{"type": "text", "text": "a cat "}, {"type": "text", "text": "sat"}]},
]  # fmt: skip
TEMPLATE = (
    "{% for one in messages %}{{ one.role }} {{ one.content }}\n{% endfor %}{{ mood }}"
    "{% if add_generation_prompt %}fox {% endif %}"
)


@contextmanager
def served(package: Package) -> Iterator[tuple[str, Any]]:
    """Serve a package; give the URL without /v1, and a session for the same package."""
    session: Any = qeff_zoo.load(package, threads=1)
    with closing(EncoderQueue(session, max_waiting=8)) as queue, running(queue) as url:
        yield url.removesuffix("/v1"), session


@pytest.fixture(scope="module", params=["reranker", "classifier"])
def classes(
    request: pytest.FixtureRequest, models: Models, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Any, int]]:
    """Serve a tiny BERT that scores pairs, or one with three labels."""
    count = {"reranker": 1, "classifier": 3}[request.param]
    home = tmp_path_factory.mktemp(request.param)
    source = classifier_of(models, home, count)
    package = models.build(source, home / "store", seq_lens=(16, 40), batch_size=3)
    with served(package) as (url, session):
        yield url, session, count


def classifier_of(models: Models, home: Path, count: int) -> Path:
    from transformers import AutoConfig, AutoTokenizer, BertForSequenceClassification, set_seed

    set_seed(5)
    folder = home / f"bert-of-{count}-labels"
    config = AutoConfig.from_pretrained(models.bert, num_labels=count)
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(models.bert)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def send_request(url: str, path: str, **body: Any) -> tuple[int, Any]:
    return post(url, path, json.dumps({"model": MODEL, **body}).encode())


def test_pairs_are_scored_by_a_reranker_alone(classes: tuple[str, Any, int]) -> None:
    url, session, count = classes
    if count > 1:
        assert send_request(url, "v1/rerank", query="a", documents=["b"])[0] == 404
        return
    expected = [one.score for one in session.classify([("a cat", text) for text in TEXTS])]
    for path in ("v1/score", "score"):
        status, found = send_request(url, path, queries="a cat", documents=TEXTS)
        assert status == 200
        assert [one["score"] for one in found["data"]] == pytest.approx(expected, abs=1e-6)
    named = send_request(url, "score", text_1=["a cat"] * 3, text_2=TEXTS)[1]
    assert named["data"] == found["data"]
    best = sorted(range(3), key=lambda number: -expected[number])
    for path in ("v1/rerank", "rerank", "v2/rerank"):
        status, found = send_request(
            url, path, query="a cat", documents=[*TEXTS[:2], {"text": TEXTS[2]}]
        )
        assert status == 200
        assert [result["index"] for result in found["results"]] == best
        assert [result["document"]["text"] for result in found["results"]] == [
            TEXTS[n] for n in best
        ]
        scores = [result["relevance_score"] for result in found["results"]]
        assert scores == pytest.approx([expected[number] for number in best], abs=1e-6)
    few = send_request(
        url, "rerank", query="a cat", documents=TEXTS, top_n=1, return_documents=False
    )[1]
    assert few["results"] == [{"index": best[0], "relevance_score": scores[0]}]
    logits = send_request(url, "score", queries="a cat", documents=TEXTS, use_activation=False)[1][
        "data"
    ]
    activated = session.activate(np.array([[logit["score"]] for logit in logits]))[:, 0]
    assert activated == pytest.approx(expected, abs=1e-6)
    most = len(session.tokenizer.encode("two dogs", special_tokens=False))
    requested: Any = {"query": "a cat", "documents": ["two dogs and more"]}
    short = send_request(url, "rerank", **requested, max_tokens_per_doc=most)
    (one,) = session.classify([("a cat", "two dogs")])
    assert short[1]["results"][0]["relevance_score"] == pytest.approx(one.score, abs=1e-6)
    assert short[1]["results"][0]["document"]["text"] == "two dogs and more"
    as_list = [
        {"index": number, "score": expected[number], "text": TEXTS[number]} for number in best
    ]
    tei = send_request(url, "rerank", query="a cat", texts=TEXTS, return_text=True, top_n=2)[1]
    assert tei == [{**one, "score": pytest.approx(one["score"], abs=1e-6)} for one in as_list[:2]]
    raw = send_request(url, "rerank", query="a cat", texts=TEXTS, raw_scores=True)[1]
    assert sorted(one["score"] for one in raw) == sorted(logit["score"] for logit in logits)
    for wrong in ({}, {"texts": TEXTS, "documents": TEXTS}):
        assert send_request(url, "rerank", query="a cat", **wrong)[0] == 400
    tokens = sum(len(ids) for ids in session.encode([("a cat", text) for text in TEXTS]))
    assert found["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert send_request(url, "score", queries=["a", "b"], documents=["c"])[1]["error"]["code"]


def test_classes_are_those_of_the_session(classes: tuple[str, Any, int]) -> None:
    url, session, count = classes
    status, found = send_request(url, "classify", input=TEXTS)
    assert status == 200
    for one, expected in zip(found["data"], session.classify(TEXTS), strict=True):
        assert (one["label"], one["num_classes"]) == (expected.label, count)
        by_label = {score.label: score.score for score in expected.scores}
        assert one["probs"] == pytest.approx([by_label[name] for name in session.labels], abs=1e-6)
    pooled = send_request(url, "v1/pooling", input=TEXTS)[1]["data"]
    assert [one["data"] for one in pooled] == [one["probs"] for one in found["data"]]
    logits = send_request(url, "classify", input=TEXTS, use_activation=False)[1]["data"]
    activated = [session.activate(np.array(logit["probs"])).tolist() for logit in logits]
    assert activated == [pytest.approx(one["probs"], abs=1e-6) for one in found["data"]]
    (ids,) = session.encode([TEXTS[2]])
    # The separator stays.
    for options, kept in (({}, ids[1:3]), ({"truncate": "START"}, ids[-3:-1])):
        body: Any = {"input": TEXTS[2], "truncate_prompt_tokens": 4, **options}
        short = send_request(url, "classify", **body)[1]
        expected = session.classify([[ids[0], *kept, ids[-1]]])
        assert short["usage"]["prompt_tokens"] == 4
        assert max(short["data"][0]["probs"]) == pytest.approx(expected[0].score, abs=1e-6)
    for options, kept in (({}, ids[:3]), ({"truncation_side": "left"}, ids[-3:])):
        short = send_request(url, "classify", input=ids, truncate_prompt_tokens=3, **options)[1]
        assert short["data"] == send_request(url, "classify", input=kept)[1]["data"]
    assert send_request(url, "pooling", input=TEXTS, task="classify")[1]["data"] == pooled
    assert send_request(url, "pooling", input=TEXTS, task="embed")[1]["error"]["param"] == "task"


def test_a_chat_is_one_text_of_the_template(classes: tuple[str, Any, int]) -> None:
    url, session, _ = classes
    text = "system two dogs\nuser a cat sat\n"
    for options, written in (
        ({}, text),
        ({"add_generation_prompt": True}, f"{text}fox "),
        ({"continue_final_message": True}, text.rstrip()),
        ({"chat_template_kwargs": {"mood": "quick"}}, f"{text}quick"),
    ):
        for special in (False, True):
            ids = session.tokenizer.encode(written, special_tokens=special)
            body: Any = {"messages": CHAT, "add_special_tokens": special, **options}
            expected = send_request(url, "classify", input=ids)[1]
            for path in ("classify", "pooling"):
                status, found = send_request(url, path, **body)
                assert (status, found["usage"]["prompt_tokens"]) == (200, len(ids))
                values = found["data"][0].get("probs", found["data"][0].get("data"))
                assert values == pytest.approx(expected["data"][0]["probs"], abs=1e-6)
            plain = send_request(url, "classify", input=written, add_special_tokens=special)[1]
            assert plain["data"] == expected["data"]
            ends = {"add_generation_prompt": False, **body}
            assert send_request(url, "tokenize", **ends)[1]["tokens"] == ids
        rendering = {"add_generation_prompt": False, "messages": CHAT, **options}
        assert send_request(url, "apply-template", **rendering) == (200, {"prompt": written})
    assert send_request(url, "classify", messages=CHAT)[1]["usage"]["prompt_tokens"] < len(ids)
    long = [{"role": "user", "content": "two dogs " * 100}]
    short = send_request(url, "classify", messages=long, truncate_prompt_tokens=5)[1]
    assert short["usage"]["prompt_tokens"] == 5
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    for wrong, param in (
        ({}, "input"),
        ({"messages": CHAT, "input": "a"}, None),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [image]}]}, "messages"),
        ({"messages": long, "truncate": "NONE"}, "messages"),
        ({"messages": CHAT, "tools": [{}]}, "tools"),
        ({"messages": CHAT, "chat_template": "other"}, "chat_template"),
        ({"messages": CHAT, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        (
            {"messages": CHAT, "continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
    ):
        status, refused = send_request(url, "classify", **wrong)
        assert (status, refused["error"]["param"]) == (400, param), wrong


def test_invocations_of_encoders(classes: tuple[str, Any, int], encoder_package: Package) -> None:
    url, _, count = classes
    bodies: list[tuple[str, Any]] = [
        ("classify", {"input": TEXTS, "encoding_format": "float"}),
        ("classify", {"messages": CHAT}),
    ]
    if count == 1:
        bodies += [("score", {"queries": "a", "documents": TEXTS})]
        bodies += [("score", {"text_1": "a", "text_2": TEXTS})]
        bodies += [("rerank", {"query": "a", "documents": TEXTS})]
    for path, body in bodies:
        (status, found), alone = (
            send_request(url, "invocations", **body),
            send_request(url, path, **body)[1],
        )
        assert (status, found.keys()) == (200, alone.keys())
        names = {"id", "created"}
        assert all(found[name] == alone[name] for name in found.keys() - names)
    if count > 1:
        assert send_request(url, "invocations", query="a", documents=["b"])[0] == 400
    with served(encoder_package) as (url, _):
        found = send_request(url, "invocations", input=TEXTS)[1]["data"]
        assert found == send_request(url, "v1/embeddings", input=TEXTS)[1]["data"]


def test_a_chat_needs_a_template(encoder_package: Package) -> None:
    with served(encoder_package) as (url, session):
        for path in ("v1/embeddings", "pooling", "tokenize"):
            status, refused = send_request(url, path, messages=CHAT)
            assert (status, refused["error"]["code"]) == (400, "no_chat_template")
            assert str(session.folder) not in refused["error"]["message"]
        assert send_request(url, "apply-template", messages=CHAT)[0] == 404
        session.chat_template = ChatTemplate(TEMPLATE, {})
        text = "system two dogs\nuser a cat sat\n"
        found = send_request(url, "v1/embeddings", messages=CHAT, add_special_tokens=True)[1][
            "data"
        ]
        (expected,) = session.embed([text])
        np.testing.assert_allclose(found[0]["embedding"], expected, atol=1e-6)


def test_a_template_that_repeats_messages_is_bounded(encoder_package: Package) -> None:
    with served(encoder_package) as (url, session):
        session.chat_template = ChatTemplate("{{ messages[0].content * 9_000 }}", {})
        for length, status in ((100, 200), (120, 400)):
            messages = [{"role": "user", "content": "a" * length}]
            body: Any = {"messages": messages, "truncate": "START"}
            found = send_request(url, "v1/embeddings", **body)
            assert found[0] == status
            assert status == 200 or found[1]["error"]["code"] == "context_length_exceeded"


def test_a_slow_template_delays_no_texts(encoder_package: Package) -> None:
    begun, gate = threading.Event(), threading.Event()

    def render(*_: Any) -> str:
        begun.set()
        assert gate.wait(TIMEOUT)
        return TEXTS[0]

    with served(encoder_package) as (url, session), ThreadPoolExecutor() as clients:
        session.chat_template = ChatTemplate(TEMPLATE, {})
        session.chat_template.render = render
        slow = [clients.submit(send_request, url, "v1/embeddings", messages=CHAT) for _ in range(8)]
        assert begun.wait(TIMEOUT)
        assert send_request(url, "v1/embeddings", input="a")[0] == 200
        gate.set()
        assert {one.result()[0] for one in slow} == {200}


def test_embeddings_score_by_their_cosine_and_may_be_shortened(encoder_package: Package) -> None:
    with served(encoder_package) as (url, session):
        vectors = session.embed(TEXTS)
        found = send_request(url, "score", text_1=TEXTS[0], text_2=TEXTS)[1]["data"]
        assert send_request(url, "score", queries=TEXTS[0], items=TEXTS)[1]["data"] == found
        parts = [{"content": [{"type": "text", "text": text}]} for text in TEXTS]
        assert send_request(url, "score", queries=parts[0], documents=parts)[1]["data"] == found
        ranked = send_request(url, "rerank", query=parts[0], documents=parts)[1]["results"]
        assert ranked == send_request(url, "rerank", query=TEXTS[0], documents=TEXTS)[1]["results"]
        image = {"content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
        status, refused = send_request(url, "score", queries=TEXTS[0], documents=[image])
        assert (status, refused["error"]["param"]) == (400, "documents")
        cosines = session.similarity(vectors[:1], vectors)[0]
        assert [one["score"] for one in found] == pytest.approx(cosines.tolist(), abs=1e-5)
        pooled = send_request(url, "pooling", input=TEXTS)[1]["data"]
        np.testing.assert_allclose([one["data"] for one in pooled], vectors, atol=1e-6)
        short = send_request(url, "v1/embeddings", input=TEXTS, dimensions=8)[1]["data"]
        part = vectors[:, :8] / np.linalg.norm(vectors[:, :8], axis=1, keepdims=True)
        np.testing.assert_allclose([one["embedding"] for one in short], part, atol=1e-6)
        status, refused = send_request(url, "v1/embeddings", input=TEXTS, dimensions=10_000)
        assert (status, refused["error"]["param"]) == (400, "dimensions")
        assert send_request(url, "classify", input=TEXTS)[0] == 404


def test_a_package_without_pooling_returns_the_states_of_tokens(
    models: Models, tmp_path: Path
) -> None:
    package = models.build(models.bert, tmp_path, seq_lens=(16,), pooling="none")
    with served(package) as (url, session):
        expected = session.states(TEXTS)
        for task in (None, "token_embed"):
            found = send_request(url, "v1/pooling", input=TEXTS, task=task)[1]["data"]
            for one, states in zip(found, expected, strict=True):
                np.testing.assert_allclose(one["data"], states, atol=1e-6)
        first, *others = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in expected)
        nearest = [float((first @ other.T).max(axis=1).sum()) for other in others]
        scored = send_request(url, "v1/score", queries=TEXTS[0], documents=TEXTS[1:])[1]["data"]
        assert [one["score"] for one in scored] == pytest.approx(nearest, abs=1e-5)
        best = send_request(url, "v1/rerank", query=TEXTS[0], documents=TEXTS)[1]["results"][0]
        assert best["index"] == 0
        assert best["relevance_score"] == pytest.approx(len(first), abs=1e-5)
        for path in ("v1/embeddings", "v2/embed", "embed"):
            assert send_request(url, path, input=TEXTS)[0] == 404


def test_embeddings_by_coheres_api(encoder_package: Package) -> None:
    with served(encoder_package) as (url, session):
        vectors = session.embed(TEXTS)
        types = ["float", "base64", "binary", "ubinary"]
        status, found = send_request(
            url, "v2/embed", texts=TEXTS, embedding_types=types, input_type="clustering"
        )
        assert (status, found["texts"], found["meta"]["api_version"]) == (
            200,
            TEXTS,
            {"version": "2"},
        )
        tokens = sum(map(len, session.encode(TEXTS)))
        assert found["meta"]["billed_units"] == {"input_tokens": tokens, "image_tokens": 0}
        by_type = found["embeddings"]
        np.testing.assert_allclose(by_type["float"], vectors, atol=1e-6)
        for number, text in enumerate(by_type["base64"]):
            np.testing.assert_array_equal(
                np.frombuffer(base64.b64decode(text), "<f4"), np.float32(by_type["float"][number])
            )
        signs = np.unpackbits(np.uint8(by_type["ubinary"]), axis=1)[:, : vectors.shape[1]]
        np.testing.assert_array_equal(signs, np.array(by_type["float"]) > 0)
        np.testing.assert_array_equal(np.array(by_type["binary"]) + 128, by_type["ubinary"])
        inputs = [{"content": [{"type": "text", "text": text}]} for text in TEXTS]
        short = send_request(url, "v2/embed", inputs=inputs, output_dimension=8)[1]["embeddings"][
            "float"
        ]
        part = vectors[:, :8] / np.linalg.norm(vectors[:, :8], axis=1, keepdims=True)
        np.testing.assert_allclose(short, part, atol=1e-6)
        for wrong in (
            {}, {"texts": ["a"], "inputs": inputs}, {"texts": ["a"], "input_type": "x"},
            {"texts": ["a"], "embedding_types": ["int8"]}, {"images": ["data:"]},
            {"texts": ["a b " * 99], "truncate": "NONE"},
        ):  # fmt: skip
            assert send_request(url, "v2/embed", **wrong)[0] == 400, wrong
        old = send_request(url, "v1/embed", texts=TEXTS, input_type="search_query")[1]
        assert old["response_type"] == "embeddings_floats"
        np.testing.assert_allclose(old["embeddings"], vectors, atol=1e-6)
        typed = send_request(url, "v1/embed", texts=TEXTS, embedding_types=["float"])[1]
        assert typed["embeddings"]["float"] == old["embeddings"]


def test_embeddings_by_the_api_of_text_embeddings_inference(encoder_package: Package) -> None:
    with served(encoder_package) as (url, session):
        vectors = session.embed(TEXTS, normalize=True)
        np.testing.assert_allclose(send_request(url, "embed", inputs=TEXTS)[1], vectors, atol=1e-6)
        plain = send_request(url, "embed", inputs=TEXTS, normalize=False)[1]
        np.testing.assert_allclose(plain, session.embed(TEXTS), atol=1e-6)
        np.testing.assert_allclose(
            send_request(url, "embed", inputs=TEXTS[0])[1], vectors[:1], atol=1e-6
        )
        assert np.shape(send_request(url, "embed", inputs=TEXTS, dimensions=8)[1]) == (3, 8)
        long = "fox " * 50 + "two dogs"
        assert (
            send_request(url, "embed", inputs=long)[1]["error"]["code"] == "context_length_exceeded"
        )
        for side, kept in (("Right", "fox " * 50), ("left", long)):
            (ids,) = session.read([kept], side=side.lower())
            found = send_request(
                url, "embed", inputs=long, truncate=True, truncation_direction=side
            )[1]
            np.testing.assert_allclose(found, session.embed([ids.ids], normalize=True), atol=1e-6)
        for wrong in ({"prompt_name": "topic"}, {"input_type": "x"}, {"truncate": "END"}):
            assert send_request(url, "embed", inputs="a", **wrong)[0] == 400, wrong


def test_a_kind_of_input_has_the_prompt_of_the_model(encoder_package: Package) -> None:
    session = open_session(encoder_package, threads=1)
    prompts = {"query": "query: ", "document": "", "passage": "passage: ", "sts": "same? "}
    session.settings = replace(session.settings, prompts=prompts, default_prompt="sts")
    kinds = ("search_query", "search_document", "document", "sts", "clustering")
    found = [of_kind(session, kind).prompt for kind in kinds]
    assert found == ["query: ", "passage: ", "", "same? ", "same? "]
    with pytest.raises(ApiError, match=r"classification, clustering, code\.passage"):
        of_kind(session, "image")


def test_tokens_of_texts_and_back(encoder_package: Package) -> None:
    with served(encoder_package) as (url, session):
        (ids,) = session.encode(TEXTS[:1])
        status, found = send_request(url, "tokenize", prompt=TEXTS[0], return_token_strs=True)
        assert (status, found["tokens"], found["count"]) == (200, ids, len(ids))
        assert len(found["token_strs"]) == len(ids)
        assert found["max_model_len"] == session.max_length
        bare = send_request(url, "v1/tokenize", prompt=TEXTS[0], add_special_tokens=False)[1][
            "tokens"
        ]
        assert bare == ids[1:-1]
        assert TEXTS[0] in send_request(url, "detokenize", tokens=bare)[1]["prompt"]
        assert (
            send_request(url, "tokenize", content=TEXTS[0])[1]["tokens"] == bare
        )  # as in llama-server
        pieces = send_request(
            url, "tokenize", content=TEXTS[0], add_special=True, with_pieces=True
        )[1]
        assert [token["id"] for token in pieces["tokens"]] == ids
        assert all(token["piece"] for token in pieces["tokens"])
        assert TEXTS[0] in send_request(url, "detokenize", tokens=bare)[1]["content"]
        for wrong in ({}, {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}):
            status, refused = send_request(url, "tokenize", **wrong)
            assert status == 400
            assert "one of prompt, messages and content" in refused["error"]["message"]
        assert send_request(url, "detokenize", tokens=[10**6])[1]["error"]["param"] == "tokens"
