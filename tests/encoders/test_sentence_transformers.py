# SPDX-License-Identifier: Apache-2.0
"""Models that sentence-transformers made and saved: their packages embed as the library itself, or are refused."""

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
from sentence_models import (
    TEXTS,
    WIDTH,
    built,
    dense,
    encoder,
    normalize,
    of_library,
    of_witness,
    pooling,
    save,
)
from sentence_transformers import SentenceTransformer
from sentence_transformers.multi_vector_encoder import MultiVectorEncoder
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

import qeff_zoo
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.cli import main
from qeff_zoo.errors import GenerationError, PlanError, UnsupportedModelError
from qeff_zoo.plan.request import Request
from qeff_zoo.plan.resolve import check
from qeff_zoo.sessions import EmbeddingSession
from qeff_zoo.tasks.encoders.endpoints.encoder_queue import EncoderQueue
from qeff_zoo.validation.ladder import validate
from qeff_zoo.validation.reference import sentence_modules

pytestmark = pytest.mark.turns(3)

#: Stages that compare with the checkpoint's files.
_EXACT = ("text", "settings", "weights")
PROMPTS = {"query": "query: ", "document": "a text: ", "topic": "words of [SEP]"}
Making = Callable[[Path], Path]


def edited(file: str, *modules: Any, **content: Any) -> Making:
    """Return a function that saves a model, and changes one of its files as older versions or people write it."""

    def make(folder: Path) -> Path:
        save(folder, *modules)
        path = folder / file
        path.write_text(
            json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **content})
        )
        return folder

    return make


def renamed(folder: Path) -> Path:
    """Save a model whose length is in a file of an older name."""
    save(folder, pooling(), normalize())
    settings = json.loads((folder / "sentence_bert_config.json").read_text())
    (folder / "sentence_bert_config.json").unlink()
    content = json.dumps({**settings, "max_seq_length": 9, "do_lower_case": False})
    (folder / "sentence_xlm-roberta_config.json").write_text(content)
    return folder


def older_poolings(*names: str, **more: bool) -> Making:
    """Return a function that saves a model whose pooling has fields of versions before 5.3."""

    def make(folder: Path) -> Path:
        width = {"word_embedding_dimension": WIDTH, **more}
        modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "lasttoken")
        fields = {f"pooling_mode_{mode}": mode in names for mode in modes}
        (save(folder, pooling(), normalize()) / "1_Pooling" / "config.json").write_text(
            json.dumps({**width, **fields})
        )
        return folder

    return make


def saved(*modules: Callable[[], Any], **options: Any) -> Making:
    """Return a function that saves a model of modules that are made for it."""
    return lambda folder: save(folder, *(make() for make in modules), **options)


def left_out(mode: Any, *more: Callable[[], Any]) -> Making:
    """Return a function that saves a model whose pooling leaves prompts out."""
    pool = lambda: pooling(mode, include_prompt=False)  # noqa: E731
    return saved(pool, *more, prompts=PROMPTS, default_prompt_name="query")


def on(reads: str, writes: str | None = None, out: int = WIDTH, **more: Any) -> Callable[[], Any]:
    """Return a function that makes a dense layer of other features."""
    return lambda: dense(out, module_input_name=reads, module_output_name=writes, **more)


TOKENS, SENTENCE = "token_embeddings", "sentence_embedding"
RIGHT: dict[str, Making] = {
    **{mode: saved(lambda mode=mode: pooling(mode)) for mode in of_library.Pooling.POOLING_MODES},
    "normalized": saved(pooling, normalize),
    "several": saved(lambda: pooling(("mean", "lasttoken", "mean_sqrt_len_tokens")), normalize),
    "several-dense": saved(lambda: pooling(("max", "cls")), lambda: dense(20, 2 * WIDTH)),
    "older-two": older_poolings("mean_tokens", "cls_token"),
    "older-none": older_poolings(),
    "older-sqrt": older_poolings("mean_sqrt_len_tokens"),
    "dense": saved(pooling, dense, normalize),
    "dense-plain": saved(pooling, lambda: dense(bias=False, activation_function=None)),
    "dense-gelu": saved(pooling, lambda: dense(activation_function=torch.nn.GELU()), normalize),
    "dense-softplus": saved(pooling, lambda: dense(activation_function=torch.nn.Softplus())),
    "residual": saved(pooling, lambda: dense(WIDTH, use_residual=True), normalize),
    "residual-matrix": saved(pooling, lambda: dense(40, use_residual=True)),
    "normalized-before": saved(pooling, normalize, dense),
    "normalized-twice": saved(pooling, normalize, dense, normalize),
    "dense-twice": saved(pooling, lambda: dense(48), lambda: dense(24, 48), normalize),
    "layer-norm": saved(pooling, lambda: of_library.LayerNorm(WIDTH), dense),
    "dropout": saved(pooling, of_library.Dropout, dense, normalize, of_library.Dropout),
    "dense-of-tokens": saved(on(TOKENS, out=24), lambda: of_library.Pooling(24, "max"), normalize),
    "dense-of-tokens-after": saved(on(TOKENS, use_residual=True), pooling, normalize),
    "dense-aside": saved(pooling, on(SENTENCE, TOKENS), normalize),
    "default-prompt": saved(pooling, normalize, prompts=PROMPTS, default_prompt_name="topic"),
    "prompts": saved(pooling, normalize, prompts=PROMPTS),
    "prompts-passage": saved(pooling, prompts={"query": "query: ", "passage": "dog "}),
    **{f"left-out-{mode}": left_out(mode) for mode in ("mean", "weightedmean", "cls", "max")},
    "left-out-several": left_out(
        ("lasttoken", "mean_sqrt_len_tokens"), lambda: dense(9, 2 * WIDTH)
    ),
    "dot": saved(pooling, similarity_fn_name="dot"),
    "euclidean": saved(pooling, dense, similarity_fn_name="euclidean"),
    "manhattan": saved(pooling, similarity_fn_name="manhattan"),
    "truncated": saved(pooling, normalize, truncate_dim=12),
    "max-length-of-call": saved(
        pooling, first={"processing_kwargs": {"text": {"max_length": 7, "truncation": True}}}
    ),
    "max-length-of-tokenizer": saved(pooling, first={"processor_kwargs": {"model_max_length": 11}}),
    "lengths-by-kind": saved(pooling, first={"query_length": 6, "document_length": 13}),
    "max-seq-length": edited("sentence_bert_config.json", pooling(), max_seq_length=8),
    "older-name": renamed,
    "tokenizer-args": edited(
        "sentence_bert_config.json",
        pooling(),
        max_seq_length=30,
        tokenizer_args={"model_max_length": 10},
    ),
    "lower-case": edited("sentence_bert_config.json", pooling(), do_lower_case=True),
}


def compare(session: EmbeddingSession, model: SentenceTransformer) -> None:
    """Compare every way to embed, and similarities."""
    ways = (
        (session.embed, model.encode),
        (session.embed_query, model.encode_query),
        (session.embed_document, model.encode_document),
    )
    names: list[dict[str, Any]] = [{}, {"prompt": "cat: "}, {"prompt": ""}]
    names += [{"prompt_name": name} for name in model.prompts]
    for embed, encode in ways:
        for options in names:
            expected = encode(TEXTS, **options)
            np.testing.assert_allclose(embed(TEXTS, **options), expected, atol=3e-5, rtol=3e-5)
            assert np.abs(expected[0] - expected[1]).max() > 1e-2
    got, more = session.embed(TEXTS), session.embed_query(TEXTS[:2])
    similar = model.similarity(model.encode(TEXTS), model.encode_query(TEXTS[:2])).numpy()
    np.testing.assert_allclose(session.similarity(got, more), similar, atol=1e-3, rtol=1e-4)
    expected = model.encode(TEXTS, truncate_dim=5, normalize_embeddings=True)
    np.testing.assert_allclose(
        session.embed(TEXTS, dimensions=5, normalize=True), expected, atol=3e-5
    )


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.sampled(3)
def test_a_package_embeds_as_the_library(name: str, home: Path, tmp_path: Path) -> None:
    folder = RIGHT[name](tmp_path / "model")
    compare(built(folder), of_witness(folder))


# --- late interaction ------------------------------------------------------------------------------


def several(folder: Path, *, first: dict[str, Any], mask: dict[str, Any], **options: Any) -> Path:
    """Save a model with an embedding for each token."""
    start = of_library.Transformer(str(encoder()), **first)
    projection = dense(16, bias=False, activation_function=None, module_input_name=TOKENS)
    modules = [start, projection, MultiVectorMask(**mask), normalize(module_input_name=TOKENS)]
    model = MultiVectorEncoder(modules=modules, device="cpu", **options)
    model.save_pretrained(str(folder), create_model_card=False)
    return folder


SEVERAL: dict[str, dict[str, Any]] = {
    "plain": {"first": {}, "mask": {}},
    "expanded": {
        "first": {
            "query_expansion": {"strategy": "fixed", "length": 14},
            "document_length": 20,
        },
        "mask": {"skiplist_words": [*".,?!", "unknown"]},
        "prompts": {"query": "query: ", "document": "a text: "},
    },
    "attended": {
        "first": {
            "query_expansion": {"strategy": "min", "length": 12, "attend": True, "token": "cat"},
            "query_length": 15,
        },
        "mask": {"skiplist_words": ["dog"], "skiplist_tasks": ["query", "document"]},
    },
}


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.sampled(1)
def test_late_interaction_is_that_of_the_library(name: str, home: Path, tmp_path: Path) -> None:
    folder = several(tmp_path / "model", **SEVERAL[name])
    session, model = built(folder, validate=True), MultiVectorEncoder(str(folder), device="cpu")
    ways = {"query": model.encode_query, "document": model.encode_document, None: model.encode}
    for kind, encode in ways.items():
        for got, expected in zip(session.states(TEXTS, kind=kind), encode(TEXTS), strict=True):
            np.testing.assert_allclose(got, expected, atol=2e-6)
    scores = model.similarity(model.encode_query(TEXTS), model.encode_document(TEXTS)).numpy()
    states = [session.states(TEXTS, kind=kind) for kind in ("query", "document")]
    np.testing.assert_allclose(session.similarity(*states), scores, atol=1e-4)
    with closing(EncoderQueue(session, max_waiting=8)) as queue, running(queue) as url:
        for path, results, body in (
            ("score", "data", {"queries": TEXTS[2], "documents": TEXTS}),
            ("rerank", "results", {"query": TEXTS[2], "documents": TEXTS}),
        ):
            status, found = post(url, path, json.dumps({"model": MODEL, **body}).encode())
            assert status == 200, found
            by_place = {one["index"]: one for one in found[results]}
            got = [
                by_place[place].get("score", by_place[place].get("relevance_score"))
                for place in range(len(TEXTS))
            ]
            np.testing.assert_allclose(got, scores[2], atol=1e-4)


# --- what is refused -------------------------------------------------------------------------------


def named(folder: Path, place: int, kind: str) -> Path:
    """Let one module be of another class."""
    listed = json.loads((folder / "modules.json").read_text())
    listed[place]["type"] = kind
    (folder / "modules.json").write_text(json.dumps(listed))
    return folder


def other(place: int, kind: str) -> Making:
    return lambda folder: named(save(folder, pooling(), normalize()), place, kind)


def routed(folder: Path) -> Path:
    """Save a model with two ways for two kinds of text."""
    router = of_library.Router.for_query_document([pooling()], [pooling("cls")])
    return save(folder, router)


def weighted(folder: Path) -> Path:
    """Save a model that averages its layers."""
    return save(folder, of_library.WeightedLayerPooling(WIDTH, 2, 1), pooling())


def in_folder(folder: Path) -> Path:
    """Save a model as old releases do: the encoder in a folder too."""
    save(folder, pooling(), normalize())
    listed = json.loads((folder / "modules.json").read_text())
    listed[0]["path"] = "0_Transformer"
    (folder / "0_Transformer").mkdir()
    for file in [path for path in folder.iterdir() if path.is_file()]:
        file.rename(folder / "0_Transformer" / file.name)
    (folder / "modules.json").write_text(json.dumps(listed))
    return folder


def chatting(folder: Path) -> Path:
    """Save a model whose tokenizer renders every text as a chat."""
    template = "{% for one in messages %}{{ one['content'] }}{% endfor %}"
    copied = folder.parent / "encoder"
    shutil.copytree(encoder(), copied)
    (copied / "chat_template.jinja").write_text(template)
    start = of_library.Transformer(str(copied))
    SentenceTransformer(modules=[start, pooling()], device="cpu").save_pretrained(
        str(folder), create_model_card=False
    )
    return folder


_LIBRARY = "sentence_transformers.models"
REFUSED: dict[str, tuple[Making, str]] = {
    "router": (routed, "Router"),
    "layers": (weighted, "WeightedLayerPooling"),
    "chat": (chatting, "modality_config.*message"),
    "folder": (in_folder, "in the folder '0_Transformer'.*save it again"),
    "code": (other(2, "custom_module.Normalize"), "custom_module.Normalize.*never run"),
    **{
        kind: (other(place, f"{_LIBRARY}.{kind}"), kind)
        for kind, place in (
            *(("WordEmbeddings", 0), ("BoW", 0), ("CLIPModel", 0)),
            *(("CNN", 1), ("LSTM", 1), ("WordWeights", 2), ("Asym", 2)),
        )
    },
    "prelu": (saved(pooling, lambda: dense(activation_function=torch.nn.PReLU())), "PReLU"),
    "custom-activation": (
        edited("2_Dense/config.json", pooling(), dense(), activation_function="mine.Swish"),
        "mine.Swish",
    ),
    "no-special-tokens": (
        saved(pooling, first={"processing_kwargs": {"text": {"add_special_tokens": False}}}),
        "add_special_tokens",
    ),
    "uncut": (
        saved(pooling, first={"processing_kwargs": {"text": {"truncation": False}}}),
        "truncation",
    ),
    "pooling-of-several": (
        lambda folder: several(folder, first={}, mask={"keep_only_token_ids": [5]}),
        "keep_only_token_ids",
    ),
    "expansion-of-one": (
        saved(pooling, first={"query_expansion": {"strategy": "fixed", "length": 9}}),
        "query_expansion",
    ),
    "sparse": (
        lambda folder: named(save(folder, pooling()), 1, f"{_LIBRARY}.SpladePooling"),
        "SpladePooling .sparse",
    ),
    "pylate": (
        lambda folder: named(save(folder, dense()), 1, "pylate.models.Dense.Dense"),
        "pylate.models.Dense.Dense.*never run",
    ),
    "side": (
        edited("sentence_bert_config.json", pooling(), tokenizer_args={"truncation_side": "left"}),
        "tokenizer_args.truncation_side",
    ),
    "unknown-pooling": (
        edited("1_Pooling/config.json", pooling(), pooling_mode="median"),
        "median",
    ),
    "unknown-prompt": (
        edited("config_sentence_transformers.json", pooling(), default_prompt_name="x"),
        "default_prompt_name",
    ),
    "similarity": (
        edited("config_sentence_transformers.json", pooling(), similarity_fn_name="maxsim"),
        "similarity_fn_name",
    ),
    "arguments": (
        lambda folder: _with_arguments(save(folder, pooling())),
        "Pooling the arguments task",
    ),
}


def _with_arguments(folder: Path) -> Path:
    listed = json.loads((folder / "modules.json").read_text())
    listed[1]["kwargs"] = ["task"]
    (folder / "modules.json").write_text(json.dumps(listed))
    return folder


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.sampled(12)
def test_unsupported_modules_are_refused_by_name(name: str, tmp_path: Path) -> None:
    make, named = REFUSED[name]
    folder = make(tmp_path / "model")
    with pytest.raises((UnsupportedModelError, PlanError), match=named) as refused:
        check(open_checkpoint(str(folder)), Request(task="feature-extraction"))
    assert "remove modules.json" not in str(refused.value)


# --- options of a build ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "modes", "ends"),
    [
        ({"pooling": "mean"}, ("mean",), False),
        ({"pooling": "cls+weightedmean", "normalize": True}, ("cls", "weightedmean"), True),
    ],
)
@pytest.mark.sampled(1)
def test_a_pooling_of_the_user_replaces_any(
    options: dict[str, Any], modes: tuple[str, ...], ends: bool, home: Path, tmp_path: Path
) -> None:
    folder = edited("1_Pooling/config.json", pooling(), pooling_mode="median")(tmp_path / "model")
    session = built(folder, validate=True, **options)
    edit_json(folder / "1_Pooling" / "config.json", pooling_mode=[*modes])
    expected = of_witness(folder).encode(TEXTS, normalize_embeddings=ends)
    np.testing.assert_allclose(session.embed(TEXTS), expected, atol=3e-5)


def test_a_record_names_the_library(home: Path, tmp_path: Path) -> None:
    folder = save(
        tmp_path / "model",
        pooling("weightedmean", include_prompt=False),
        dense(use_residual=True),
        of_library.LayerNorm(24),
        of_library.Dropout(),
        normalize(),
        prompts=PROMPTS,
    )
    session = built(folder, validate=True)
    checks = json.loads((session.folder / "manifest.json").read_text())["validation"]
    (read,) = (one for one in checks if one["metric"] == "same_sentence_tokens")
    assert read["passed"]
    assert read["canary"]["failed"]
    witnesses = {one["against"].get("modules") for one in checks if one["stage"] not in _EXACT}
    assert witnesses == {f"sentence-transformers {version('sentence-transformers')}"}
    compare(session, of_witness(folder))


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.sampled(8)
def test_a_reference_without_the_library_computes_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RIGHT[name](tmp_path / "model")
    torch.manual_seed(2)
    given = {
        "token_embeddings": torch.randn(1, 9, WIDTH),
        "attention_mask": torch.ones(1, 9, dtype=torch.long),
        "prompt_length": 4,
    }
    found = []
    for _ in range(2):
        modules = sentence_modules.load_modules(folder, {})
        with torch.no_grad():
            found.append(
                (sentence_modules.run(modules, dict(given)), sentence_modules.witness(modules))
            )
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (expected, library), (got, own) = found
    np.testing.assert_allclose(got, expected, atol=1e-5, rtol=1e-5)
    assert library == f"sentence-transformers {version('sentence-transformers')}"
    assert own is not None
    assert "not installed" in own


def test_prompts_that_are_not_there(home: Path, tmp_path: Path) -> None:
    session = built(save(tmp_path / "model", pooling(), prompts=PROMPTS))
    with pytest.raises(GenerationError, match=r"'subject' is not of this model.*'topic'"):
        session.embed(TEXTS, prompt_name="subject")
    for dimensions in (0, WIDTH + 1):
        with pytest.raises(GenerationError, match=f"1 to {WIDTH}"):
            session.embed(TEXTS, dimensions=dimensions)


def test_a_mean_that_nothing_names_is_mentioned(home: Path) -> None:
    with pytest.warns(UserWarning, match=r"no modules.json, so pooling `mean`"):
        session = built(encoder())
    assert session.embed("a").shape == (1, WIDTH)


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}),
        ("config_sentence_transformers.json", {"prompts": {"query": "query : "}}),
        ("sentence_bert_config.json", {"max_seq_length": 12}),
        ("sentence_bert_config.json", {"do_lower_case": True}),
    ],
)
@pytest.mark.sampled(1)
def test_validation_notices_other_settings(
    file: str, change: dict[str, Any], home: Path, tmp_path: Path
) -> None:
    folder = save(tmp_path / "model", pooling(), prompts=PROMPTS)
    package = qeff_zoo.build(folder, seq_lens=(16, 48), validate=False)
    edit_json(package.path / file, **change)
    record = validate(package, open_checkpoint(str(folder)))
    failed = {check["metric"] for check in record.checks if not check["passed"]}
    assert failed == {"same_sentence_tokens", "same_settings"}


# --- server and command line ---------------------------------------------------------------------------


def test_a_server_embeds_as_the_library(home: Path, tmp_path: Path) -> None:
    prompts = {**PROMPTS, "passage": "a passage: "}
    folder = save(
        tmp_path / "model",
        pooling(include_prompt=False),
        dense(),
        prompts=prompts,
        default_prompt_name="topic",
        similarity_fn_name="dot",
    )
    session, model = built(folder), of_witness(folder)
    texts = TEXTS[:3]

    def send(path: str, **body: Any) -> Any:
        status, found = post(url, path, json.dumps(body).encode())
        assert status == 200, found
        return found

    def openai(**body: Any) -> Any:
        found = send("v1/embeddings", model=MODEL, input=texts, **body)["data"]
        return [one["embedding"] for one in found]

    def cohere(**body: Any) -> Any:
        return send("v2/embed", model=MODEL, texts=texts, **body)["embeddings"]["float"]

    def inference(**body: Any) -> Any:
        return send("embed", inputs=texts, normalize=False, **body)

    query, document = model.encode_query(texts), model.encode_document(texts)
    ways = {
        **dict.fromkeys(["", "task=clustering"], model.encode(texts)),
        **dict.fromkeys(["input_type=query", "task=retrieval.query"], query),
        "input_type=search_query": query,
        "input_type=document": document,
        "input_type=search_document": document,
        "input_type=passage": model.encode(texts, prompt_name="passage"),
        "prompt_name=topic": model.encode(texts, prompt_name="topic"),
        "prompt=": model.encode(texts, prompt=""),
        "prompt=cat ": model.encode(texts, prompt="cat "),
    }
    with closing(EncoderQueue(session, max_waiting=8)) as queue, running(queue) as started:
        url = started.removesuffix("/v1")
        for way, expected in ways.items():
            name, _, value = way.partition("=")
            for embed in (openai, cohere, inference):
                found = embed(**({name: value} if name else {}))
                np.testing.assert_allclose(found, expected, atol=3e-5, err_msg=way)
        unit = model.encode(texts, normalize_embeddings=True)
        np.testing.assert_allclose(openai(normalized=True), unit, atol=3e-5)
        short = model.encode(texts, truncate_dim=7, normalize_embeddings=True)
        np.testing.assert_allclose(openai(dimensions=7), short, atol=3e-5)
        np.testing.assert_allclose(cohere(output_dimension=7), short, atol=3e-5)
        of_pairs = model.similarity_pairwise(query, document)
        found = send("v1/score", model=MODEL, queries=texts, documents=texts)["data"]
        np.testing.assert_allclose([one["score"] for one in found], of_pairs, rtol=1e-4)
        np.testing.assert_allclose(send("embed", inputs=texts), unit, atol=3e-5)
        np.testing.assert_allclose(
            [one["data"] for one in send("v1/pooling", model=MODEL, input=texts)["data"]],
            model.encode(texts),
            atol=3e-5,
        )
        scores = model.similarity(query[:1], document).numpy()[0]
        found = send("v1/score", model=MODEL, queries=texts[0], documents=texts)["data"]
        np.testing.assert_allclose([one["score"] for one in found], scores, rtol=1e-4)
        inputs = {"source_sentence": texts[0], "sentences": texts}
        alike = model.encode_query(texts)
        similar = send("similarity", inputs=inputs, parameters={"prompt_name": "query"})
        np.testing.assert_allclose(similar, model.similarity(alike[:1], alike)[0], rtol=1e-4)
        for wrong in (
            {"prompt_name": "x"}, {"input_type": "x"}, {"task": "x"}, {"prompt": "a", "prompt_name": "topic"},
        ):  # fmt: skip
            for path, given in (
                ("v1/embeddings", "input"),
                ("v2/embed", "texts"),
                ("embed", "inputs"),
            ):
                status, _ = post(url, path, json.dumps({given: texts, **wrong}).encode())
                assert status == 400, (path, wrong)


def test_run_selects_prompts(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save(tmp_path / "model", pooling(), prompts=PROMPTS, similarity_fn_name="manhattan")
    package, model = built(folder).folder, of_witness(folder)
    for options, expected in (
        (["--prompt-name", "topic"], model.encode(TEXTS[0], prompt_name="topic")),
        (["--prompt-prefix", "cat "], model.encode(TEXTS[0], prompt="cat ")),
        (["--dimensions", "7"], model.encode(TEXTS[0], truncate_dim=7)),
    ):
        assert main(["run", str(package), "--prompt", TEXTS[0], *options, "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)["outputs"]
        np.testing.assert_allclose(found["embedding"], expected, atol=3e-5)
    assert main(["run", str(package), "--prompt", TEXTS[0], "--prompt", TEXTS[1]]) == 0
    assert capsys.readouterr().out.split()[0] == "manhattan"
    assert main(["run", str(package), "--prompt", "a", "--prompt-name", "x"]) == 1
