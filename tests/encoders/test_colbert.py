# SPDX-License-Identifier: Apache-2.0
"""ColBERT checkpoints of PyLate and of ColBERT's authors: their packages compare as sentence-transformers does."""

import base64
import importlib.util
import json
import shutil
from collections.abc import Callable
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures_serving import MODEL, post, running
from runnable_package import edit_json
from safetensors.torch import load_file, save_file
from sentence_models import (
    LONGEST,
    TEXTS,
    WIDTH,
    built,
    dense,
    encoder,
    pooling,
    save,
    windowed_encoder,
)
from sentence_transformers import MultiVectorEncoder

import qeff_zoo
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.errors import UnsupportedModelError
from qeff_zoo.plan.request import Request
from qeff_zoo.plan.resolve import check
from qeff_zoo.serving.answers import large
from qeff_zoo.tasks.encoders.endpoints.encoder_queue import EncoderQueue
from qeff_zoo.validation.ladder import validate
from qeff_zoo.validation.reference import sentence_modules

pytestmark = pytest.mark.turns(3)

Making = Callable[[Path], Path]
_SETTINGS = "config_sentence_transformers.json"
#: Settings as PyLate writes them.
_PYLATE = {
    "query_prefix": "[Q] ",
    "document_prefix": "##1 ",
    "query_length": 14,
    "document_length": 20,
    "attend_to_expansion_tokens": False,
    "skiplist_words": [*".,?!"],
    "do_query_expansion": True,
}


def pylate(
    kind: str | None = "ColBERT",
    *,
    pooled: bool = False,
    base: Callable[[], Path] = encoder,
    **settings: Any,
) -> Making:
    """Return a function that saves a model as PyLate does.

    Args:
        kind: Class in the settings; None for the form of older releases.
        pooled: Whether modules pool the states first, as in models that were trained for one embedding per text.
        base: Function that returns the folder of the encoder.
        settings: Changes of the settings; None for none.
    """

    def make(folder: Path) -> Path:
        projection = dense(16, bias=False, activation_function=None)
        save(folder, *([pooling()] if pooled else []), projection, base=base())
        place = 2 if pooled else 1
        listed = json.loads((folder / "modules.json").read_text())
        listed[0]["type"] = "sentence_transformers.models.Transformer"
        listed[place]["type"] = "pylate.models.Dense.Dense"
        (folder / "modules.json").write_text(json.dumps(listed))
        path = folder / f"{place}_Dense" / "config.json"
        config = json.loads(path.read_text())
        kept = ("in_features", "out_features", "bias", "activation_function")
        path.write_text(json.dumps({name: config[name] for name in kept} | {"use_residual": False}))
        lengths = {"max_seq_length": 30, "do_lower_case": False}
        (folder / "sentence_bert_config.json").write_text(json.dumps(lengths))
        own = {**_PYLATE, "similarity_fn_name": "MaxSim", "model_type": kind, **settings}
        own = {name: value for name, value in own.items() if value is not None}
        (folder / _SETTINGS).write_text(json.dumps(own))
        return folder

    return make


def of_authors(metadata: dict[str, Any] | None) -> Making:
    """Return a function that saves a model as the code of ColBERT's authors does.

    Args:
        metadata: Content of artifact.metadata; None without the file.
    """

    def make(folder: Path) -> Path:
        shutil.copytree(encoder(), folder)
        torch.manual_seed(3)
        weights = {
            f"bert.{name}": value for name, value in load_file(folder / "model.safetensors").items()
        }
        size = (metadata or {}).get("dim", 128)
        weights["linear.weight"] = torch.randn(size, WIDTH)
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        edit_json(folder / "config.json", architectures=["HF_ColBERT"])
        if metadata is not None:
            (folder / "artifact.metadata").write_text(json.dumps(metadata))
        return folder

    return make


RIGHT: dict[str, Making] = {
    "pylate": pylate(),
    "older": pylate(None, skiplist_words=None, query_length=None),
    "attending": pylate(attend_to_expansion_tokens=True, document_length=None),
    "unexpanded": pylate(do_query_expansion=False, query_prefix=None, skiplist_words=None),
    "prompts": pylate(prompts={"query": "[Q] dog ", "document": "the "}),
    "pooled": pylate("SentenceTransformer", pooled=True),
    # Of short queries the last tokens see no key in layers with a window.
    "windowed": pylate(base=windowed_encoder, query_length=30),
    "authors": of_authors(
        {
            "query_maxlen": 12,
            "doc_maxlen": 22,
            "dim": 16,
            "query_token_id": "##q",
            "doc_token_id": "##1",
            "attend_to_mask_tokens": True,
        }
    ),
    "authors-plain": of_authors({"mask_punctuation": False}),
    "authors-alone": of_authors(None),
}


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.sampled(2)
def test_late_interaction_is_that_of_the_library(name: str, home: Path, tmp_path: Path) -> None:
    folder = RIGHT[name](tmp_path / "model")
    session, model = built(folder), MultiVectorEncoder(str(folder), device="cpu")
    ways = {"query": model.encode_query, "document": model.encode_document, None: model.encode}
    for kind, encode in ways.items():
        for got, expected in zip(session.states(TEXTS, kind=kind), encode(TEXTS), strict=True):
            np.testing.assert_allclose(got, expected, atol=3e-6)
    states = [session.states(TEXTS, kind=kind) for kind in ("query", "document")]
    scores = model.similarity(model.encode_query(TEXTS), model.encode_document(TEXTS)).numpy()
    np.testing.assert_allclose(session.similarity(*states), scores, atol=1e-4)


@pytest.mark.parametrize("name", ["pylate", "authors", "windowed"])
@pytest.mark.sampled(1)
def test_a_record_names_the_library_and_a_server_ranks(
    name: str, home: Path, tmp_path: Path
) -> None:
    folder = RIGHT[name](tmp_path / "model")
    session, model = built(folder, validate=True), MultiVectorEncoder(str(folder), device="cpu")
    checks = json.loads((session.folder / "manifest.json").read_text())["validation"]
    assert all(one["passed"] for one in checks)
    witness = f"sentence-transformers {version('sentence-transformers')}"
    assert witness in {one["against"].get("modules") for one in checks}
    (read,) = (one for one in checks if one["metric"] == "same_sentence_tokens")
    assert read["canary"]["failed"]
    assert read["against"]["reference"] == "MultiVectorEncoder"
    scores = model.similarity(model.encode_query(TEXTS[2:3]), model.encode_document(TEXTS))[0]
    with closing(EncoderQueue(session, max_waiting=8)) as queue, running(queue) as url:
        body = {"model": MODEL, "query": TEXTS[2], "documents": TEXTS}
        status, found = post(url, "rerank", json.dumps(body).encode())
        body = {"model": MODEL, "queries": TEXTS[2], "documents": TEXTS}
        scored = post(url, "score", json.dumps(body).encode())[1]["data"]
        body = {"model": MODEL, "input": TEXTS}
        pooled = post(url, "pooling", json.dumps(body).encode())[1]["data"]
    np.testing.assert_allclose([one["score"] for one in scored], scores, atol=1e-4)
    for got, expected in zip(pooled, model.encode(TEXTS), strict=True):
        np.testing.assert_allclose(got["data"], expected, atol=3e-6)
    assert status == 200, found
    by_place = {result["index"]: result["relevance_score"] for result in found["results"]}
    np.testing.assert_allclose([by_place[place] for place in range(4)], scores, atol=1e-4)


@pytest.mark.parametrize("name", ["pylate", "windowed", "unexpanded", "prompts"])
@pytest.mark.sampled(1)
def test_a_server_returns_the_states_of_queries_and_documents(
    name: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RIGHT[name](tmp_path / "model")
    session, model = built(folder), MultiVectorEncoder(str(folder), device="cpu")
    ways = {"query": model.encode_query, "document": model.encode_document, None: model.encode}
    with closing(EncoderQueue(session, max_waiting=8)) as queue, running(queue) as url:

        def send(path: str, **body: Any) -> tuple[int, Any]:
            address = url if path == "pooling" else url.removesuffix("/v1")
            return post(address, path, json.dumps({"model": MODEL, **body}).encode())

        for kind, encode in ways.items():
            named = {"input_type": kind} if kind else {}
            answers = [
                send("pooling", input=TEXTS, task="token_embed", **named)[1]["data"],
                send("pooling", input=TEXTS, encoding_format="base64", **named)[1]["data"],
            ]
            pooled = [np.array(one["data"]) for one in answers[0]]
            packed = [np.frombuffer(base64.b64decode(one["data"]), "<f4") for one in answers[1]]
            status, every = send("embed_all", inputs=TEXTS, truncate=True, **named)
            assert status == 200, every
            for number, expected in enumerate(encode(TEXTS)):
                np.testing.assert_allclose(pooled[number], expected, atol=3e-6)
                np.testing.assert_allclose(every[number], expected, atol=3e-6)
                flat = expected.reshape(-1)
                np.testing.assert_allclose(packed[number], flat, atol=3e-6)
        status, found = send("embed_all", inputs=TEXTS[1], prompt_name="nothing")
        assert (status, found["error"]["param"]) == (400, "prompt_name")
        status, found = send("pooling", input=TEXTS, input_type="query", prompt="the ")
        assert (status, found["error"]["param"]) == (400, "input_type")
        chat = [{"role": "user", "content": "a"}]
        status, found = send("pooling", messages=chat, input_type="query")
        assert (status, found["error"]["param"]) == (400, "input_type")
        # The price of a query has its expansion.
        numbers = len(session.read_as(TEXTS[1], "query")[0].ids) * session.width
        for most, answer in ((numbers - 1, 400), (numbers, 200)):
            monkeypatch.setattr(large, "MAX_NUMBERS", most)
            for body in ({"input": TEXTS[1]}, {"inputs": TEXTS[1]}):
                path = "pooling" if "input" in body else "embed_all"
                status, found = send(path, input_type="query", **body)
                assert status == answer, found
                if status == 400:
                    assert found["error"]["code"] == "answer_too_large"


@pytest.mark.parametrize(
    "change",
    [
        {"query_length": 13},
        {"document_length": 19},
        {"skiplist_words": [*".,?"]},
        {"attend_to_expansion_tokens": True},
        {"query_prefix": "the "},
    ],
    ids=lambda change: next(iter(change)),
)
@pytest.mark.sampled(1)
def test_validation_notices_other_settings(
    change: dict[str, Any], home: Path, tmp_path: Path
) -> None:
    folder = pylate()(tmp_path / "model")
    package = qeff_zoo.build(folder, seq_lens=(16, LONGEST), validate=False)
    edit_json(package.path / _SETTINGS, **change)
    record = validate(package, open_checkpoint(str(folder)))
    assert "same_sentence_tokens" in {one["metric"] for one in record.checks if not one["passed"]}


@pytest.mark.parametrize("name", ["pylate", "authors"])
def test_a_reference_without_the_library_computes_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RIGHT[name](tmp_path / "model")
    model = MultiVectorEncoder(str(folder), device="cpu")
    found = []
    for _ in range(2):
        given = {"token_embeddings": torch.ones(1, 9, WIDTH).cumsum(2)}
        given["attention_mask"] = torch.ones(1, 9, dtype=torch.long)
        modules = sentence_modules.load_modules(folder, {}, model[0].auto_model)
        with torch.no_grad():
            found.append(sentence_modules.run(modules, given))
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    np.testing.assert_allclose(*found, atol=1e-6)


def test_a_colbert_without_a_projection_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", pooling())
    edit_json(folder / _SETTINGS, query_prefix="[Q] ", model_type="SentenceTransformer")
    with pytest.raises(UnsupportedModelError, match=r"expected Transformer and Dense.*trained"):
        check(open_checkpoint(str(folder)), Request())
