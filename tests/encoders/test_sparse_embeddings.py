# SPDX-License-Identifier: Apache-2.0
"""Sparse models (SPLADE) that sentence-transformers made and saved: their packages embed as the library itself."""

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
from sentence_models import LONGEST, TEXTS, encoder, of_library
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder import modules as sparse

import qeff_zoo
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.cli import main
from qeff_zoo.errors import GenerationError, PlanError, UnsupportedModelError
from qeff_zoo.plan.request import Request
from qeff_zoo.plan.resolve import check
from qeff_zoo.sessions import SparseEmbedding, SparseEmbeddingSession, open_session
from qeff_zoo.tasks.encoders.endpoints.encoder_queue import EncoderQueue
from qeff_zoo.validation.reference import sentence_modules

pytestmark = pytest.mark.turns(2)

PROMPTS = {"query": "query: ", "document": "the cat "}
Making = Callable[[Path], Path]


def masked(**options: Any) -> Any:
    """Return the encoder with the head of a masked language model."""
    return of_library.Transformer(str(encoder("masked")), transformer_task="fill-mask", **options)


def splade(*pooling: str, **options: Any) -> Making:
    """Return a function that saves a sparse model."""

    def make(folder: Path) -> Path:
        modules = [masked(), sparse.SpladePooling(*pooling)]
        model = SparseEncoder(modules=modules, device="cpu", **options)
        model.save_pretrained(str(folder), create_model_card=False)
        return folder

    return make


def older(folder: Path) -> Path:
    """Save a model as releases before 5.4 write it."""
    splade("max")(folder)
    edit_json(folder / "sentence_bert_config.json")
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 9}')
    listed = json.loads((folder / "modules.json").read_text())
    for one, kind in zip(listed, ("MLMTransformer", "SpladePooling"), strict=True):
        one["type"] = f"sentence_transformers.sparse_encoder.models.{kind}"
    (folder / "modules.json").write_text(json.dumps(listed))
    settings = {"pooling_strategy": "sum", "word_embedding_dimension": 78}
    (folder / "1_SpladePooling" / "config.json").write_text(json.dumps(settings))
    return folder


def plain(folder: Path) -> Path:
    """Save a masked language model without files of sentence-transformers."""
    return Path(shutil.copytree(encoder("masked"), folder))


RIGHT: dict[str, Making] = {
    "max": splade("max", prompts=PROMPTS, default_prompt_name="document"),
    "sum": splade("sum", max_active_dims=7),
    "log1p": splade("max", "log1p_relu", similarity_fn_name="cosine"),
    "sum-log1p": splade("sum", "log1p_relu", prompts=PROMPTS),
    "older": older,
    "plain": plain,
}


def built(folder: Path, **options: Any) -> SparseEmbeddingSession:
    """Build a model and open the package."""
    given = {"task": "sparse-embedding"} if not (folder / "modules.json").exists() else {}
    sizes = {"seq_lens": (16, LONGEST), "batch_size": 2}
    package = qeff_zoo.build(folder, **{**sizes, "validate": False, **given, **options})
    session = open_session(package, threads=1)
    assert isinstance(session, SparseEmbeddingSession)
    return session


def of_witness(folder: Path) -> SparseEncoder:
    """Open a model by sentence-transformers."""
    return SparseEncoder(str(folder), device="cpu", local_files_only=True)


def compared(model: SparseEncoder, queries: torch.Tensor, documents: torch.Tensor) -> Any:
    """Return the library's similarities; sparse matrices would have warnings of torch."""
    return model.similarity(queries.to_dense(), documents.to_dense()).numpy()


def same(got: list[SparseEmbedding], expected: torch.Tensor) -> None:
    """Compare embeddings with a sparse matrix."""
    whole = expected.to_dense().numpy()
    np.testing.assert_allclose([one.dense() for one in got], whole, atol=3e-5, rtol=3e-5)
    for one, row in zip(got, whole, strict=True):
        assert one.indices.tolist() == np.flatnonzero(row).tolist()
        assert 0 < len(one.indices) < one.size


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.sampled(2)
def test_a_package_embeds_as_the_library(name: str, home: Path, tmp_path: Path) -> None:
    folder = RIGHT[name](tmp_path / "model")
    session, model = built(folder), of_witness(folder)
    options: list[dict[str, Any]] = [{}, {"prompt": "dog "}, {"max_active_dims": 4}]
    options += [{"prompt_name": name} for name in model.prompts if session.settings.prompts]
    for given in options:
        same(session.embed(TEXTS, **given), model.encode(TEXTS, **given))
    query, document = model.encode_query(TEXTS[:2]), model.encode_document(TEXTS)
    same(session.embed_query(TEXTS[:2]), query)
    same(session.embed_document(TEXTS), document)
    found = session.similarity(session.embed_query(TEXTS[:2]), session.embed_document(TEXTS))
    np.testing.assert_allclose(found, compared(model, query, document), rtol=1e-4)
    (one,) = session.embed(TEXTS[0])
    expected = model.decode(model.encode(TEXTS[0]), 5)
    got = session.weights(one, 5)
    assert [*got] == [token for token, _ in expected]
    np.testing.assert_allclose([*got.values()], [weight for _, weight in expected], rtol=1e-4)
    with pytest.raises(GenerationError, match="1 at least"):
        session.embed(TEXTS, max_active_dims=0)


@pytest.mark.parametrize("name", ["max", "plain"])
@pytest.mark.sampled(1)
def test_a_record_names_the_library(name: str, home: Path, tmp_path: Path) -> None:
    session = built(RIGHT[name](tmp_path / "model"), validate=True)
    checks = json.loads((session.folder / "manifest.json").read_text())["validation"]
    assert all(one["passed"] for one in checks)
    witness = f"sentence-transformers {version('sentence-transformers')}"
    assert witness in {one["against"].get("modules") for one in checks if one["stage"] != "text"}
    read = [one for one in checks if one["metric"] == "same_sentence_tokens"]
    assert [one["against"]["reference"] for one in read] == ["SparseEncoder"] * (name == "max")


@pytest.mark.parametrize("pooling", [(), ("sum",), ("max", "log1p_relu"), ("sum", "log1p_relu")])
def test_a_reference_without_the_library_computes_the_same(pooling: tuple[str, ...]) -> None:
    torch.manual_seed(2)
    mask = torch.tensor([[1] * 9, [1] * 4 + [0] * 5])
    given = {"token_embeddings": torch.randn(2, 9, 31), "attention_mask": mask}
    library = sparse.SpladePooling(*pooling).eval()
    own = sentence_modules.SpladePool(library.get_config_dict())
    expected = library({**given, "token_embeddings": given["token_embeddings"].clone()})
    np.testing.assert_allclose(
        own(given)["sentence_embedding"], expected["sentence_embedding"], atol=1e-6
    )


# --- what is refused -------------------------------------------------------------------------------


def autoencoder(folder: Path) -> Path:
    """Save a model whose dense embeddings become latents."""
    modules = [
        of_library.Transformer(str(encoder())),
        of_library.Pooling(32),
        sparse.SparseAutoEncoder(32, 64, 8),
    ]
    SparseEncoder(modules=modules, device="cpu").save_pretrained(
        str(folder), create_model_card=False
    )
    return folder


def other_pooling(folder: Path) -> Path:
    edit_json(splade("max")(folder) / "1_SpladePooling" / "config.json", pooling_strategy="median")
    return folder


def headless(folder: Path) -> Path:
    edit_json(splade("max")(folder) / "config.json", architectures=["BertModel"])
    return folder


def dense(folder: Path) -> Path:
    edit_json(
        splade("max")(folder) / "config_sentence_transformers.json",
        model_type="SentenceTransformer",
    )
    return folder


REFUSED: dict[str, tuple[Making, str]] = {
    "autoencoder": (autoencoder, r"SparseAutoEncoder; expected .*\(CSR\)"),
    "strategy": (other_pooling, "pooling_strategy to 'median'; expected max or sum"),
    "headless": (headless, "no head for 'sparse-embedding'.*BertForMaskedLM"),
    "dense": (dense, "describes a SentenceTransformer; expected a SparseEncoder"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_models_are_refused_by_name(name: str, tmp_path: Path) -> None:
    make, named = REFUSED[name]
    checkpoint = open_checkpoint(str(make(tmp_path / "model")))
    with pytest.raises((UnsupportedModelError, PlanError), match=named):
        check(checkpoint, Request())


def test_pooling_is_that_of_the_model(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(splade("max")(tmp_path / "model")))
    for option in ({"pooling": "mean"}, {"normalize": True}):
        with pytest.raises(PlanError, match="--pooling and --normalize are for others"):
            check(checkpoint, Request(**option))
    with pytest.raises((PlanError, UnsupportedModelError), match=r"SpladePooling .sparse"):
        check(checkpoint, Request(task="feature-extraction"))


def test_a_masked_language_model_is_sparse_on_request_alone(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(plain(tmp_path / "model")))
    assert check(checkpoint, Request()).spec["task"]["name"] == "fill-mask"


# --- server and command line ---------------------------------------------------------------------------


def test_a_server_embeds_as_the_library(home: Path, tmp_path: Path) -> None:
    folder = splade("max", prompts=PROMPTS)(tmp_path / "model")
    session, model = built(folder), of_witness(folder)
    query, document = model.encode_query(TEXTS[2]), model.encode_document(TEXTS)

    def send(path: str, **body: Any) -> Any:
        status, found = post(url, path, json.dumps(body).encode())
        assert status == 200, found
        return found

    with closing(EncoderQueue(session, max_waiting=8)) as queue, running(queue) as started:
        url = started.removesuffix("/v1")
        found = send("embed_sparse", inputs=TEXTS, prompt_name="document", truncate=True)
        for one, row in zip(found, document.to_dense(), strict=True):
            assert [each["index"] for each in one] == row.nonzero().flatten().tolist()
            np.testing.assert_allclose([each["value"] for each in one], row[row > 0], atol=3e-5)
        assert send("embed_sparse", inputs=TEXTS[0]) == send("embed_sparse", inputs=TEXTS[:1])
        scores = compared(model, query[None], document)[0]
        body = {"model": MODEL, "queries": TEXTS[2], "documents": TEXTS}
        got = [one["score"] for one in send("v1/score", **body)["data"]]
        np.testing.assert_allclose(got, scores, rtol=1e-4)
        ranked = send("v1/rerank", model=MODEL, query=TEXTS[2], documents=TEXTS)["results"]
        assert [one["index"] for one in ranked] == np.argsort(-scores).tolist()
        (pooled,) = send("v1/pooling", model=MODEL, input=TEXTS[0])["data"]
        np.testing.assert_allclose(pooled["data"], model.encode(TEXTS[0]).to_dense(), atol=3e-5)
        assert post(url, "v1/embeddings", b'{"input": "a"}')[0] == 404


def test_run_prints_weights(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = splade("max", prompts=PROMPTS)(tmp_path / "model")
    package, model = built(folder).folder, of_witness(folder)
    command = ["run", str(package), "--prompt", TEXTS[0], "--prompt-name", "query"]
    expected = model.encode_query(TEXTS[0])
    assert main([*command, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["outputs"]
    same([SparseEmbedding(size=len(expected), **_arrays(found))], expected[None])
    best = model.decode(expected)
    assert [*found["weights"]] == [token for token, _ in best]
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines()[-len(best) :][0].split()[0] == best[0][0]
    assert main([*command, "--prompt", TEXTS[1]]) == 0
    assert capsys.readouterr().out.split()[0] == "dot"


def _arrays(found: dict[str, Any]) -> dict[str, Any]:
    return {
        "indices": np.array(found["indices"]),
        "values": np.array(found["values"], np.float32),
    }
