# SPDX-License-Identifier: Apache-2.0
"""Classifiers, rerankers, token classifiers and decoders that embed: from a checkpoint to what transformers says."""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from fixtures_builds import Models
from fixtures_serving import post, running
from huggingface_hub import InferenceClient
from runnable_package import edit_json, opened, package
from sharing import WhenNeeded
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForTokenClassification,
    AutoTokenizer,
    TokenClassificationPipeline,
    pipeline,
)
from transformers.pipelines.token_classification import AggregationStrategy

import qeff_zoo
from qeff_zoo import cli
from qeff_zoo.errors import GenerationError
from qeff_zoo.package import Package
from qeff_zoo.runtime import activations, labels
from qeff_zoo.runtime.activations import softmax
from qeff_zoo.sessions import (
    EmbeddingSession,
    TextClassificationSession,
    TokenClassificationSession,
    open_session,
)
from qeff_zoo.tasks.encoders.endpoints.encoder_queue import EncoderQueue
from qeff_zoo.tasks.encoders.entities import entities_of, parts_of

pytestmark = pytest.mark.turns(2)

TEXTS = ["the lazy dog", "fox", "a text of words that are there twice", "ähnlich 你好"]
PAIRS = [
    ("the fox", "a lazy dog"),
    ("fox", "dog"),
    ("a text of words", "the fox"),
    ("or", "thrice"),
]
LONG = "the quick brown fox jumps over " * 9
LABELS = {0: "good", 1: "bad", 2: "ugly"}
# name -> what is built: model_type, task, changes of the config
MODELS: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "classifier": ("bert", "text-classification", {"id2label": LABELS}),
    "reranker": ("xlm-roberta", "text-classification", {"num_labels": 1}),
    "decoder": ("qwen3", "text-classification", {"id2label": LABELS}),
    "tokens": ("roberta", "token-classification", {"id2label": LABELS}),
    "embedder": ("qwen3", "feature-extraction", {}),
}
POOLING = {
    "modules.json": [
        {"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ],
    "1_Pooling/config.json": {"pooling_mode_lasttoken": True},
}


@pytest.fixture(scope="session")
def checkpoints(models: Models) -> dict[str, Path]:
    made = {
        name: models.checkpoint(name, model_type, task=task, **config)
        for name, (model_type, task, config) in MODELS.items()
    }
    (made["embedder"] / "1_Pooling").mkdir(exist_ok=True)
    for name, content in POOLING.items():
        (made["embedder"] / name).write_text(json.dumps(content))
    return made


@pytest.fixture(scope="session")
def built(
    checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> WhenNeeded[Package]:
    home = tmp_path_factory.mktemp("classification")

    def build(name: str) -> Package:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("QEFF_HOME", str(home))
            return package(checkpoints[name], seq_lens=(16, 40), batch_size=3)

    return WhenNeeded(build)


@pytest.fixture(scope="session")
def sessions(built: WhenNeeded[Package]) -> WhenNeeded[Any]:
    return WhenNeeded(lambda name: open_session(built[name], threads=1))


def expected(checkpoint: Path, inputs: Any, **options: Any) -> list[dict[str, float]]:
    """What transformers' own pipeline says: a score per label."""
    pipe = pipeline("text-classification", str(checkpoint))
    found = pipe(inputs, top_k=None, **options)
    return [{score["label"]: score["score"] for score in scores} for scores in found]


def scores_of(found: Any) -> list[dict[str, float]]:
    return [{score.label: score.score for score in one.scores} for one in found]


def assert_same(got: list[dict[str, float]], wanted: list[dict[str, float]]) -> None:
    assert [sorted(one) for one in got] == [sorted(one) for one in wanted]
    for one, other in zip(got, wanted, strict=True):
        for label, score in one.items():
            assert score == pytest.approx(other[label], abs=2e-5)


# --- texts and pairs -----------------------------------------------------------------------------
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.sampled(3)
def test_the_checkpoint_selects_the_task(name: str, built: WhenNeeded[Package]) -> None:
    assert built[name].task == MODELS[name][1]


def test_files_beside_a_checkpoint_select_the_pooling(built: WhenNeeded[Package]) -> None:
    assert built["embedder"].manifest["spec"]["task"]["pooling"] == "lasttoken"
    assert built["embedder"].manifest["why"]["task.name"] == "checkpoint: modules.json"


@pytest.mark.parametrize("name", ["classifier", "reranker", "decoder"])
def test_labels_and_scores_are_those_of_transformers(
    sessions: dict[str, Any], checkpoints: dict[str, Path], name: str
) -> None:
    """Four texts of different lengths take two calls of three rows, of which two are to spare."""
    session = sessions[name]
    assert isinstance(session, TextClassificationSession)
    found = session.classify(TEXTS)
    assert [one.text for one in found] == TEXTS
    assert_same(scores_of(found), expected(checkpoints[name], TEXTS))
    for one in found:
        ranked = [score.score for score in one.scores]
        assert ranked == sorted(ranked, reverse=True)
        assert (one.label, one.score) == (one.scores[0].label, ranked[0])
    assert len({one.score for one in found}) == len(TEXTS)


@pytest.mark.parametrize("name", ["classifier", "reranker", "decoder"])
def test_pairs_are_read_as_transformers_reads_them(
    sessions: dict[str, Any], checkpoints: dict[str, Path], name: str
) -> None:
    found = sessions[name].classify(PAIRS)
    assert [(one.text, one.pair) for one in found] == PAIRS
    requested = [{"text": text, "text_pair": pair} for text, pair in PAIRS]
    assert_same(scores_of(found), expected(checkpoints[name], requested))
    assert sessions[name].classify(PAIRS[0]) == sessions[name].classify(PAIRS[:1])


def test_the_second_text_of_a_pair_has_its_own_token_type(sessions: dict[str, Any]) -> None:
    session = sessions["classifier"]
    assert session.has_token_types
    assert not sessions["reranker"].has_token_types
    (encoded,) = session.read(PAIRS[:1])
    assert set(encoded.type_ids) == {0, 1}
    settings, untold = (
        session.run([encoded.ids], types=types) for types in ([encoded.type_ids], None)
    )
    assert np.abs(settings - untold).max() > 1e-2


@pytest.mark.parametrize("pair", [(LONG, "the fox"), ("fox", LONG), (LONG, LONG)])
def test_the_longer_text_of_a_pair_is_cut(
    sessions: dict[str, Any], checkpoints: dict[str, Path], pair: tuple[str, str]
) -> None:
    session = sessions["classifier"]
    tokens = AutoTokenizer.from_pretrained(checkpoints["classifier"])(
        *pair, truncation=True, max_length=40
    )
    assert session.encode([pair]) == [tokens["input_ids"]]
    assert session.read([pair])[0].type_ids == tokens["token_type_ids"]
    cut = expected(checkpoints["classifier"], [LONG], truncation=True, max_length=40)
    assert_same(scores_of(session.classify([LONG])), cut)


def test_a_limit_of_the_package_is_reported_once(
    built: WhenNeeded[Package], caplog: pytest.LogCaptureFixture
) -> None:
    session = TextClassificationSession(built["classifier"].path, opened(built["classifier"]))
    session.read([LONG], max_length=20)
    session.read(["fox"])
    assert caplog.text == ""
    session.read([LONG])
    session.read([LONG])
    assert caplog.text.count("truncates texts to 40 tokens, the largest of its seq_lens") == 1


def test_an_empty_second_text_is_one(
    sessions: dict[str, Any], checkpoints: dict[str, Path]
) -> None:
    """As in a batch of pairs; transformers takes an empty `text_pair` of a single text for none."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoints["classifier"])
    (wanted,) = tokenizer([("fox", "")])["input_ids"]
    assert sessions["classifier"].encode([("fox", "")]) == [wanted]
    assert len(wanted) == len(tokenizer("fox")["input_ids"]) + 1


def test_a_tokenizer_without_token_types_is_accepted(
    built: WhenNeeded[Package], checkpoints: dict[str, Path], models: Models, tmp_path: Path
) -> None:
    folder = models.copy(built["classifier"].path, tmp_path / "package")
    edit_json(folder / "tokenizer_config.json", model_input_names=["input_ids", "attention_mask"])
    session = TextClassificationSession(folder, opened(built["classifier"]))
    assert set(session.read(PAIRS[:1])[0].type_ids) == {0}
    copied = models.copy(checkpoints["classifier"], tmp_path / "checkpoint")
    edit_json(copied / "tokenizer_config.json", model_input_names=["input_ids", "attention_mask"])
    requested = [{"text": text, "text_pair": pair} for text, pair in PAIRS]
    assert_same(scores_of(session.classify(PAIRS)), expected(copied, requested))


@pytest.mark.parametrize("side", ["left", "right"])
def test_texts_are_cut_on_the_tokenizers_side(
    built: WhenNeeded[Package], models: Models, tmp_path: Path, side: str
) -> None:
    folder = models.copy(built["classifier"].path, tmp_path / "package")
    edit_json(folder / "tokenizer_config.json", truncation_side=side)
    session = TextClassificationSession(folder, opened(built["classifier"]))
    text = LONG + "thrice"
    tokens = AutoTokenizer.from_pretrained(folder)(text, truncation=True, max_length=40)
    assert session.encode([text]) == [tokens["input_ids"]]


def test_a_decoder_pools_the_last_token_that_is_not_padding(
    sessions: dict[str, Any], checkpoints: dict[str, Path]
) -> None:
    """By its id, as transformers does: tokens of padding's id at the end of a text are passed over."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        checkpoints["decoder"]
    ).eval()
    padding = model.config.pad_token_id
    rows = [[7, 8, 9, 10], [7, 8, 9, 10, padding, padding], [7, padding, 9], [11] * 20]
    answers = []
    for row in rows:
        with torch.no_grad():
            answers.append(model(torch.tensor([row])).logits[0].softmax(-1).numpy())
    found = sessions["decoder"].classify(rows)
    got = [[scores[label] for label in LABELS.values()] for scores in scores_of(found)]
    np.testing.assert_allclose(got, answers, atol=2e-5)
    np.testing.assert_allclose(got[0], got[1], atol=2e-6)
    assert (found[0].text, found[0].pair) == ("", None)


# --- what logits mean ----------------------------------------------------------------------------
ACTIVATIONS: Mapping[str, tuple[dict[str, Any], int, Callable[[Any], Any]]] = {
    "one label": ({}, 1, activations.sigmoid),
    "labels": ({}, 3, activations.softmax),
    "single label": ({"problem_type": "single_label_classification"}, 2, activations.softmax),
    "several labels": ({"problem_type": "multi_label_classification"}, 3, activations.sigmoid),
    "regression": ({"problem_type": "regression"}, 1, activations.unchanged),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_of_scores_follows_the_config(name: str) -> None:
    config, count, function = ACTIVATIONS[name]
    assert labels.activation_of(config, count) is function


def test_scores_are_those_of_torch() -> None:
    logits = np.float32([[1.5, -2, 0.25], [200, -200, 0]])
    for ours, reference in ((activations.softmax, torch.softmax), (activations.sigmoid, None)):
        wanted = (
            reference(torch.tensor(logits), -1)
            if reference
            else torch.sigmoid(torch.tensor(logits))
        )
        np.testing.assert_allclose(ours(logits), wanted.numpy(), atol=1e-6)


@pytest.mark.parametrize("problem_type", ["multi_label_classification", "regression"])
def test_the_kind_of_problem_is_the_checkpoints(
    built: WhenNeeded[Package],
    checkpoints: dict[str, Path],
    models: Models,
    tmp_path: Path,
    problem_type: str,
) -> None:
    folder = models.copy(built["classifier"].path, tmp_path / "package")
    copied = models.copy(checkpoints["classifier"], tmp_path / "checkpoint")
    for config in (folder / "config.json", copied / "config.json"):
        edit_json(config, problem_type=problem_type)
    session = TextClassificationSession(folder, opened(built["classifier"]))
    assert_same(scores_of(session.classify(TEXTS)), expected(copied, TEXTS))


# --- tokens --------------------------------------------------------------------------------------
def test_tokens_are_labelled_as_transformers_does(
    sessions: dict[str, Any], checkpoints: dict[str, Path]
) -> None:
    session = sessions["tokens"]
    assert isinstance(session, TokenClassificationSession)
    pipe = pipeline("token-classification", str(checkpoints["tokens"]), ignore_labels=[])
    for text, tokens in zip(TEXTS, session.classify(TEXTS), strict=True):
        wanted = pipe(text)
        assert [token.label for token in tokens] == [one["entity"] for one in wanted]
        assert [(token.start, token.end) for token in tokens] == [
            (one["start"], one["end"]) for one in wanted
        ]
        for token, one in zip(tokens, wanted, strict=True):
            assert token.score == pytest.approx(float(one["score"]), abs=2e-5)
            assert token.text == text[token.start : token.end]
    assert session.classify(TEXTS[0]) == session.classify(TEXTS[:1])
    ids = session.encode(TEXTS[:1])[0]
    assert [token.start for token in session.classify([ids])[0]] == list(range(len(ids)))


BIO = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC"]
AGGREGATIONS = ["none", "simple", "first", "average", "max"]


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("name", ["classifier", "tokens"])  # words by WordPiece, and by spaces
def test_entities_are_aggregated_as_transformers_does(
    sessions: dict[str, Any], checkpoints: dict[str, Path], name: str, aggregation: Any
) -> None:
    reference = AutoTokenizer.from_pretrained(checkpoints[name])
    config = AutoConfig.from_pretrained(checkpoints["tokens"], id2label=dict(enumerate(BIO)))
    model = AutoModelForTokenClassification.from_config(config)
    pipe = TokenClassificationPipeline(model=model, tokenizer=reference)
    strategy = AggregationStrategy(aggregation)
    text = "the lazy dog sat, and unaffable foxes over Zürich's lazily-jumping cats; the dogs"
    (read,) = sessions[name].tokenizer.encode_all([text], 80, "right")
    merged = 0
    for seed in range(12):
        drawn = np.random.default_rng(seed).normal(scale=2, size=(len(read.ids), len(BIO)))
        shares = softmax(drawn.astype(np.float32))
        before = pipe.gather_pre_entities(
            text, np.array(read.ids), shares, read.offsets, np.array(read.special), strategy
        )
        wanted = [
            one
            for one in pipe.aggregate(before, strategy)
            if "O" not in (one.get("entity"), one.get("entity_group"))
        ]
        tokens = parts_of(text, read, shares, sessions[name].tokenizer)
        found = entities_of(text, tokens, BIO, aggregation)
        assert [(one.label, one.start, one.end) for one in found] == [
            (one.get("entity_group", one.get("entity")), one["start"], one["end"]) for one in wanted
        ]
        scores = [float(one["score"]) for one in wanted]
        assert [one.score for one in found] == pytest.approx(scores, abs=1e-6)
        assert all(one.text == text[one.start : one.end] for one in found)
        merged += len(found) < len(tokens)
    assert merged


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
def test_entities_of_a_package_and_of_a_server(
    models: Models,
    built: WhenNeeded[Package],
    checkpoints: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = models.copy(built["tokens"].path, tmp_path / "package")
    copied = models.copy(checkpoints["tokens"], tmp_path / "checkpoint")
    count = len(json.loads((copied / "config.json").read_bytes())["id2label"])
    labels = {str(place): BIO[place] for place in range(count)}
    for config in (folder / "config.json", copied / "config.json"):
        edit_json(config, id2label=labels, label2id={})
    session = TokenClassificationSession(folder, opened(built["tokens"]))
    for aggregation in AGGREGATIONS[1:]:
        pipe = pipeline(
            "token-classification", str(copied), aggregation_strategy=aggregation, ignore_labels=[]
        )
        for text, found in zip(
            TEXTS, session.entities(TEXTS, aggregation, ignored=()), strict=True
        ):
            wanted = pipe(text)
            assert [(one.label, one.start, one.end) for one in found] == [
                (one["entity_group"], one["start"], one["end"]) for one in wanted
            ]
            for one, other in zip(found, wanted, strict=True):
                assert one.score == pytest.approx(float(other["score"]), abs=2e-5)
    with closing(EncoderQueue(session, max_waiting=8)) as queue, running(queue) as url:
        client = InferenceClient(model=url.removesuffix("/v1") + "/predict", timeout=60)
        options: dict[str, Any] = {"aggregation_strategy": "max", "ignore_labels": []}
        served = client.token_classification(TEXTS[0], **options)
        status, several = post(
            url.removesuffix("/v1"), "predict", json.dumps({"inputs": TEXTS}).encode()
        )
        wrong = {"inputs": "a", "parameters": {"aggregation_strategy": "most"}}
        refused, _ = post(url.removesuffix("/v1"), "predict", json.dumps(wrong).encode())
    (expected_there,) = session.entities(TEXTS[:1], "max", ignored=())
    assert [(one.entity_group, one.word, one.start, one.end) for one in served] == [
        (one.label, one.text, one.start, one.end) for one in expected_there
    ]
    assert (status, len(several), refused) == (200, len(TEXTS), 400)
    with pytest.raises(GenerationError, match="aggregate the labels"):
        session.entities("a", "most")  # type: ignore[arg-type]
    with pytest.raises(GenerationError, match="token ids"):
        session.entities([[5, 6]])  # type: ignore[list-item]
    command = ["run", str(built["tokens"].path), "--prompt", TEXTS[0], "--aggregation", "first"]
    assert cli.main([*command, "--json"]) == 0
    (output,) = json.loads(capsys.readouterr().out)["outputs"]
    assert output["entities"][0].keys() == {"text", "start", "end", "label", "score"}
    assert cli.main(command) == 0
    assert "entity" in capsys.readouterr().out


# --- decoders that embed -------------------------------------------------------------------------
def test_a_decoder_embeds_by_its_last_token(
    sessions: dict[str, Any], checkpoints: dict[str, Path]
) -> None:
    session = sessions["embedder"]
    assert isinstance(session, EmbeddingSession)
    model = AutoModel.from_pretrained(checkpoints["embedder"]).eval()
    tokenizer = AutoTokenizer.from_pretrained(checkpoints["embedder"])
    wanted = []
    for text in TEXTS:
        with torch.no_grad():
            states = model(torch.tensor([tokenizer(text)["input_ids"]])).last_hidden_state[0]
        wanted.append((states[-1] / states[-1].norm()).numpy())
    np.testing.assert_allclose(session.embed(TEXTS), wanted, atol=2e-5)


# --- builds that are validated -------------------------------------------------------------------
@pytest.mark.parametrize(("name", "weights"), [("reranker", "int8"), ("embedder", "fp32")])
def test_a_validated_build(
    checkpoints: dict[str, Path], built: WhenNeeded[Package], name: str, weights: str, home: Path
) -> None:
    one = qeff_zoo.build(
        checkpoints[name], weights=weights, seq_lens=(16,), batch_size=2, validate=True
    )
    assert one.validated == "checkpoint"
    checks = one.manifest["validation"]
    stages = {check["stage"] for check in checks}
    exact = {"text", "settings", "weights"}
    assert stages == {"seq_len_16", "padded_batch", *exact}
    for stage in stages:
        assert any("canary" in check for check in checks if check["stage"] == stage)
    metrics = {check["metric"] for check in checks if check["stage"] not in exact}
    # One label has no rival, so there is nothing that could agree.
    assert metrics == (
        {"max_relative_error"} | ({"max_cosine_distance"} if weights == "fp32" else set())
    )


# --- bad input -----------------------------------------------------------------------------------
REFUSALS: Mapping[str, tuple[str, Callable[[Any], Any], str]] = {
    "pair to an embedder": ("embedder", lambda s: s.embed([PAIRS[0]]), "one text at a time"),
    "pair to a token classifier": (
        "tokens",
        lambda s: s.classify([PAIRS[0]]),
        "cannot be read together; expected one text at a time",
    ),
    "three texts": (
        "classifier",
        lambda s: s.classify([("a", "b", "c")]),
        "expected one text or two at a time",
    ),
    "nothing": ("classifier", lambda s: s.classify([]), "nothing to read"),
    "no tokens": ("classifier", lambda s: s.classify([[]]), "0 tokens; expected 1 to 40"),
    "too many tokens": ("classifier", lambda s: s.classify([[5] * 41]), "41 tokens; expected 1 to"),
    "foreign token": ("classifier", lambda s: s.classify([[999]]), "Token id 999"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_invalid_inputs_of_classifiers_are_refused(sessions: dict[str, Any], case: str) -> None:
    name, act, message = REFUSALS[case]
    with pytest.raises(GenerationError, match=message):
        act(sessions[name])


def test_an_empty_text_is_its_special_tokens(
    sessions: dict[str, Any], checkpoints: dict[str, Path]
) -> None:
    found = sessions["classifier"].classify("")
    assert_same(scores_of(found), expected(checkpoints["classifier"], [""]))


def test_labels_that_are_not_the_graphs(
    built: WhenNeeded[Package], models: Models, tmp_path: Path
) -> None:
    folder = models.copy(built["classifier"].path, tmp_path / "package")
    program = opened(built["classifier"])
    edit_json(folder / "config.json", id2label=None)
    assert TextClassificationSession(folder, program).labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    edit_json(folder / "config.json", id2label={"0": "a", "1": "b"})
    with pytest.raises(GenerationError, match=r"names the labels \[0, 1\], but the graph has 3"):
        TextClassificationSession(folder, program)
    other = built["reranker"]
    folder = models.copy(other.path, tmp_path / "reranker")
    edit_json(folder / "config.json", sentence_transformers={"activation_fn": "torch.nn.Dropout"})
    with pytest.raises(GenerationError, match=r"'torch\.nn\.Dropout'; expected a class"):
        TextClassificationSession(folder, opened(other))
    with pytest.raises(GenerationError, match="not one for feature-extraction"):
        EmbeddingSession(folder, opened(other))


# --- the command line ----------------------------------------------------------------------------
def answer(argv: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    capsys.readouterr()
    assert cli.main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_prompt_is_ranked_against_texts(
    built: WhenNeeded[Package], sessions: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["run", str(built["reranker"].path), "--prompt", "the fox"]
    argv += ["--pair", "a lazy dog", "--pair", "or"]
    found = sessions["reranker"].classify([("the fox", "a lazy dog"), ("the fox", "or")])
    assert answer(argv, capsys) == {
        "outputs": [
            {
                "text": "the fox",
                "pair": one.pair,
                "scores": [{"label": "LABEL_0", "score": pytest.approx(one.score, abs=1e-6)}],
            }
            for one in found
        ]
    }
    assert cli.main(argv) == 0
    assert re.search(
        r"text +pair +label +score\n[- ]+\n.*a lazy dog +LABEL_0", capsys.readouterr().out
    )
    assert cli.main([*argv, "--prompt", "b", "--prompt", "c"]) == 1
    assert "3 prompts and 2 texts" in capsys.readouterr().err


def test_labels_on_the_command_line(
    built: WhenNeeded[Package], capsys: pytest.CaptureFixture[str]
) -> None:
    (output,) = answer(["run", str(built["classifier"].path), "--prompt", "fox"], capsys)["outputs"]
    assert (output["text"], output["pair"]) == ("fox", None)
    assert {score["label"] for score in output["scores"]} == set(LABELS.values())
    argv = ["run", str(built["tokens"].path), "--prompt", "the fox"]
    (output,) = answer(argv, capsys)["outputs"]
    assert output["text"] == "the fox"
    assert set(output["tokens"][0]) == {"text", "start", "end", "label", "score"}
    assert cli.main(argv) == 0
    assert re.search(r"token +at +label +score\n", capsys.readouterr().out)
