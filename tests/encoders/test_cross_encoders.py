# SPDX-License-Identifier: Apache-2.0
"""CrossEncoders of sentence-transformers as they are saved: their scores are those that it predicts."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cross_encoders import (
    LONG,
    PAIRS,
    QUERY,
    assert_predicted,
    classifier,
    modular,
    predicted,
    ranker,
    rewrite,
    scores_of,
)
from fixtures_builds import Models
from fixtures_serving import MODEL, post, running
from runnable_package import package
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder
from sharing import WhenNeeded
from torch import nn

import qeff_zoo
from qeff_zoo import cli
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.errors import GenerationError, PlanError, UnsupportedModelError
from qeff_zoo.plan.request import Request
from qeff_zoo.plan.resolve import check
from qeff_zoo.runtime import activations
from qeff_zoo.sessions import open_session
from qeff_zoo.tasks.encoders.endpoints.encoder_queue import EncoderQueue

pytestmark = pytest.mark.turns(3)

PROMPTS = {"fox": "Judge by foxes: ", "dog": "Judge by dogs: "}
IDENTITY = "torch.nn.modules.linear.Identity"
LABELS = {0: "good", 1: "bad", 2: "ugly"}


@pytest.fixture(scope="session")
def sources(models: Models, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {
        "one": models.checkpoint("ce-one", "bert", task="text-classification", num_labels=1),
        "three": models.checkpoint("ce-three", "bert", task="text-classification", id2label=LABELS),
        "language": models.checkpoint("ce-language", "qwen3"),
        "bare": models.bert,
    }
    larger = ("language", "bare")
    return made | {one: enlarged(made[one], tmp_path_factory.mktemp(one)) for one in larger}


def enlarged(source: Path, folder: Path) -> Path:
    """Copy a checkpoint with larger weights, so that the last token depends on all others."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    tensors = load_file(source / "model.safetensors")
    large = {name: 3 * tensor if tensor.dim() > 1 else tensor for name, tensor in tensors.items()}
    save_file(large, folder / "model.safetensors", {"format": "pt"})
    return folder


def limited(tokens: int) -> dict[str, Any]:
    return {"processing_kwargs": {"text": {"max_length": tokens}}}


# name -> source, how it is saved, and further changes of its files
Save = Callable[[Path, Path], Path]
SAVED: Mapping[str, tuple[str, Save]] = {
    "one label": ("one", lambda source, to: classifier(source, to, max_length=40)),
    "identity, default prompt": (
        "one",
        lambda source, to: classifier(
            source, to, activation_fn=nn.Identity(), max_length=24, prompts=PROMPTS, default_prompt_name="fox"
        ),
    ),
    "three labels": ("three", lambda source, to: classifier(source, to, max_length=90)),
    "modules": ("bare", lambda source, to: modular(source, to, max_length=40)),
    "modules, prompts, three labels": (
        "bare",
        lambda source, to: modular(
            source, to, labels=3, max_length=90, prompts=PROMPTS, default_prompt_name="fox"
        ),
    ),
    "pairs": ("language", lambda source, to: ranker(source, to, **limited(60))),
    "one token, texts": (
        "language",
        lambda source, to: ranker(source, to, form="flat", false=None, activation_fn=nn.Identity(), **limited(60)),
    ),
    "parts, prompts, short": (
        "language",
        lambda source, to: ranker(
            source, to, form="structured", prompts=PROMPTS, default_prompt_name="dog",
            activation_fn=nn.LogSigmoid(), **limited(80),
        ),
    ),
}  # fmt: skip
#: Pairs, of which one is empty, and of which either text is longer than the model reads.
EVERY = [*PAIRS, (LONG, QUERY), (QUERY, LONG), (LONG * 20, LONG * 19)]


@pytest.fixture(scope="session")
def saved(sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> WhenNeeded[Path]:
    home = tmp_path_factory.mktemp("cross-encoders")

    def save(name: str) -> Path:
        source, saves = SAVED[name]
        return saves(sources[source], home / name.replace(" ", "-"))

    return WhenNeeded(save)


@pytest.fixture(scope="session")
def sessions(saved: WhenNeeded[Path], tmp_path_factory: pytest.TempPathFactory) -> WhenNeeded[Any]:
    home = tmp_path_factory.mktemp("cross-encoder-store")

    def opened(name: str) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("QEFF_HOME", str(home))
            return open_session(package(saved[name], seq_lens=(20, 96), batch_size=3), threads=1)

    return WhenNeeded(opened)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SAVED)
def test_scores_are_those_of_sentence_transformers(
    saved: WhenNeeded[Path], sessions: WhenNeeded[Any], name: str
) -> None:
    session, folder = sessions[name], saved[name]
    tasks = {"language": "text-ranking", "bare": "encoder-ranking"}
    assert session.task == tasks.get(SAVED[name][0], "text-classification")
    model = CrossEncoder(str(folder), device="cpu")
    read = [model.preprocess([pair], prompt=model._resolve_prompt(None, None)) for pair in EVERY]
    assert session.encode(EVERY) == [one["input_ids"][0].tolist() for one in read]
    wanted = assert_predicted(scores_of(session, session.classify(EVERY)), folder, EVERY)
    assert wanted.std(axis=0).min() > 1e-3


@pytest.mark.parametrize("name", ["identity, default prompt", "parts, prompts, short"])
@pytest.mark.parametrize(
    "chosen",
    [{"prompt_name": "dog"}, {"prompt_name": "fox"}, {"prompt": "Other: "}, {"prompt": ""}],
    ids=str,
)
def test_prompts_are_selected_by_name(
    saved: WhenNeeded[Path], sessions: WhenNeeded[Any], name: str, chosen: dict[str, str]
) -> None:
    got = scores_of(sessions[name], sessions[name].classify(PAIRS, **chosen))
    assert_predicted(got, saved[name], PAIRS, **chosen)
    with pytest.raises(GenerationError, match="prompt 'cat' is not of this model; expected one of"):
        sessions[name].classify(PAIRS, prompt_name="cat")


@pytest.mark.parametrize("name", ["one token, texts", "three labels"])
def test_texts_alone_are_read_as_well(
    saved: WhenNeeded[Path], sessions: WhenNeeded[Any], name: str
) -> None:
    model = CrossEncoder(str(saved[name]), device="cpu")
    texts = ["the quick fox", "ähnlich 你好"]
    wanted = [model.preprocess([text])["input_ids"][0].tolist() for text in texts]
    assert sessions[name].encode(texts) == wanted


# --- activations ---------------------------------------------------------------------------------
LOGITS = np.float32([[1.5, -2, 0.25], [30, -30, 0], [-0.4, 0.4, 4]])
#: Classes that need arguments, or whose result is drawn, has other sizes, or is of images.
NOT_COMPUTED = {"Threshold", "MultiheadAttention", "RReLU", "GLU", "Softmax2d"}


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
def test_activations_are_those_of_torch() -> None:
    classes = {"Identity", *nn.modules.activation.__all__}
    assert classes - NOT_COMPUTED == activations.BY_CLASS.keys()
    for name in classes - NOT_COMPUTED:
        wanted = getattr(nn, name)()(torch.tensor(LOGITS)).detach().numpy()
        np.testing.assert_allclose(
            activations.BY_CLASS[name](LOGITS), wanted, atol=2e-6, rtol=2e-6, err_msg=name
        )


# Files -> what `CrossEncoder` of the folder predicts; `labels` of the source
WRITTEN: Mapping[str, tuple[str, dict[str, Any], dict[str, Any], bool]] = {
    "config.json": ("one", {"sentence_transformers": {"activation_fn": IDENTITY}}, {}, False),
    "older": ("one", {"sbert_ce_default_activation_function": IDENTITY}, {}, False),
    "older, labels": ("three", {"sbert_ce_default_activation_function": IDENTITY}, {}, False),
    "version alone": ("three", {"sentence_transformers": {"version": "4.1.0"}}, {}, False),
    "regression": ("one", {"problem_type": "regression"}, {"activation_fn": IDENTITY}, True),
    "regression by default": ("one", {"problem_type": "regression"}, {"activation_fn": None}, True),
    "softmax": ("three", {}, {"activation_fn": "torch.nn.modules.activation.Softmax"}, True),
    "multi-label": ("three", {"problem_type": "multi_label_classification"}, {}, True),
    "both": (
        "one",
        {"sentence_transformers": {"activation_fn": IDENTITY}},
        {"activation_fn": "torch.nn.modules.activation.Tanh"},
        True,
    ),
    "one of a user": (
        "one",
        {"sentence_transformers": {"activation_fn": IDENTITY}},
        {"activation_fn": "mine.Activation"},
        True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
def test_activations_count_wherever_they_are_saved(
    sources: dict[str, Path], sessions: WhenNeeded[Any], models: Models, tmp_path: Path, name: str
) -> None:
    source, config, own, whole = WRITTEN[name]
    folder = models.copy(sources[source], tmp_path / "checkpoint")
    if whole:
        classifier(sources[source], tmp_path / "saved")
        folder = tmp_path / "saved"
        rewrite(folder / "config_sentence_transformers.json", **own)
    rewrite(folder / "config.json", **config)
    base = sessions["one label" if source == "one" else "three labels"]
    copied = models.copy(base.folder, tmp_path / "package")
    for file in copied.glob("*.json"):
        file.unlink()
    for file in folder.glob("*.json"):
        (copied / file.name).write_bytes(file.read_bytes())
    session = type(base)(copied, base._program)
    got = scores_of(session, session.classify(PAIRS))
    assert_predicted(got, folder, PAIRS)


# --- what is refused -----------------------------------------------------------------------------
def with_module(folder: Path, *kinds: str, **config: Any) -> None:
    listed = json.loads((folder / "modules.json").read_text())[:1]
    for number, kind in enumerate(kinds, 1):
        (folder / f"{number}_{kind}").mkdir(exist_ok=True)
        (folder / f"{number}_{kind}" / "config.json").write_text(json.dumps(config))
        kind_of = f"sentence_transformers.cross_encoder.modules.{kind}"
        listed.append({"idx": number, "path": f"{number}_{kind}", "type": kind_of})
    (folder / "modules.json").write_text(json.dumps(listed))


REFUSED: Mapping[str, tuple[str, Callable[[Path], None], str]] = {
    "drawn activation": (
        "one label",
        lambda one: rewrite(
            one / "config_sentence_transformers.json", activation_fn="torch.nn.modules.dropout.Dropout"
        ),
        "computes scores with 'torch.nn.modules.dropout.Dropout'; expected a class of torch.nn",
    ),
    "other modules": (
        "one label",
        lambda one: with_module(one, "Router"),
        "lists ['Transformer', 'Router']; expected ['Transformer'], ['Transformer', 'LogitScore'], or",
    ),
    "token outside": (
        "pairs",
        lambda one: with_module(one, "LogitScore", true_token_id=10**6, false_token_id=1),
        "expected `true_token_id`, and perhaps `false_token_id`, of 0 to",
    ),
    "images": (
        "pairs",
        lambda one: rewrite(one / "sentence_bert_config.json", transformer_task="any-to-any"),
        "`transformer_task` of its CrossEncoder is 'any-to-any'; expected 'text-generation'",
    ),
    "prompt": (
        "pairs",
        lambda one: rewrite(one / "config_sentence_transformers.json", default_prompt_name="no"),
        "`default_prompt_name` of its CrossEncoder is 'no'; expected one of",
    ),
    "one text truncated": (
        "pairs",
        lambda one: rewrite(
            one / "sentence_bert_config.json", processing_kwargs={"text": {"truncation": "only_second"}}
        ),
        "sets text.truncation to 'only_second', which is not computed",
    ),
    "an encoder": (
        "one label",
        lambda one: rewrite(one / "config.json", architectures=["BertModel"]),
        "whose scores 'feature-extraction' (checkpoint: modules.json) does not compute",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_cross_encoder_is_refused(
    saved: WhenNeeded[Path], models: Models, tmp_path: Path, name: str
) -> None:
    source, change, expected = REFUSED[name]
    folder = models.copy(saved[source], tmp_path / "checkpoint")
    change(folder)
    with pytest.raises((PlanError, UnsupportedModelError)) as error:
        check(open_checkpoint(str(folder)), Request())
    assert expected in str(error.value)


def test_ranking_needs_the_tokens_of_its_score(sources: dict[str, Path]) -> None:
    with pytest.raises(PlanError, match="has no LogitScore of sentence-transformers"):
        check(open_checkpoint(str(sources["language"])), Request(task="text-ranking"))


def test_a_template_that_drops_a_text_is_refused(
    sessions: WhenNeeded[Any], models: Models, tmp_path: Path
) -> None:
    base = sessions["one token, texts"]
    copied = models.copy(base.folder, tmp_path / "package")
    (copied / "chat_template.jinja").write_text(
        "{% for one in messages if one.role == 'user' %}{{ one.content }}{% endfor %}"
    )
    with pytest.raises(
        GenerationError, match=r"does not write both texts\. Expected a template for messages"
    ):
        type(base)(copied, base._program)


# --- commands and validation ---------------------------------------------------------------------
def test_pairs_on_the_command_line(
    saved: WhenNeeded[Path], sessions: WhenNeeded[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    name = "parts, prompts, short"
    argv = ["run", str(sessions[name].folder), "--json", "--prompt", QUERY, "--prompt-name", "fox"]
    for _, document in PAIRS:
        argv += ["--pair", document]
    assert cli.main(argv) == 0
    outputs = json.loads(capsys.readouterr().out)["outputs"]
    found = [[output["scores"][0]["score"]] for output in outputs]
    np.testing.assert_allclose(found, predicted(saved[name], PAIRS, prompt_name="fox"), atol=2e-5)


@pytest.mark.parametrize(
    ("name", "task"), [("one token, texts", "text-ranking"), ("modules", "encoder-ranking")]
)
def test_a_ranking_package_is_validated(
    name: str, task: str, saved: WhenNeeded[Path], home: Path
) -> None:
    built = qeff_zoo.build(saved[name], weights="int8", seq_lens=(64,), batch_size=2, validate=True)
    assert (built.task, built.validated) == (task, "checkpoint")
    checks = {check["metric"]: check for check in built.manifest["validation"]}
    for metric in ("same_sentence_tokens", "same_scores"):
        check = checks[metric]
        assert check["against"]["reference"] == "CrossEncoder"
        assert check["positions"] >= 5
        assert check["canary"]["failed"]


# --- a server ------------------------------------------------------------------------------------
def test_a_server_scores_as_sentence_transformers(
    saved: WhenNeeded[Path], sessions: WhenNeeded[Any]
) -> None:
    name = "parts, prompts, short"
    wanted = predicted(saved[name], PAIRS)[:, 0]
    documents = [document for _, document in PAIRS]
    with served(sessions[name]) as send:
        scored = send("v1/score", queries=QUERY, documents=documents)["data"]
        assert [one["score"] for one in scored] == pytest.approx(wanted, abs=2e-5)
        ranked = send("v1/rerank", query=QUERY, documents=documents)["results"]
        found = {one["index"]: one["relevance_score"] for one in ranked}
        assert [found[number] for number in range(len(found))] == pytest.approx(wanted, abs=2e-5)
        other = predicted(saved[name], PAIRS, prompt_name="fox")[:, 0]
        scored = send("score", queries=QUERY, documents=documents, prompt_name="fox")["data"]
        assert [one["score"] for one in scored] == pytest.approx(other, abs=2e-5)
        raw = send("predict", inputs=[*map(list, PAIRS)], raw_scores=True)
        logits = predicted(saved[name], PAIRS, activation_fn=nn.Identity())[:, 0]
        assert [one[0]["score"] for one in raw] == pytest.approx(logits, abs=2e-4)
        assert send("predict", inputs=[*PAIRS[0]])[0]["score"] == pytest.approx(wanted[0], abs=2e-5)
        assert send("v1/score", queries=QUERY, documents=documents, prompt_name="cat")["error"]
        # A shortened document, without the template's text.
        few = send("rerank", query=QUERY, documents=[LONG], max_tokens_per_doc=9)["results"]
        text = few[0]["document"]["text"]
        ids = sessions[name].tokenizer.encode(LONG, special_tokens=False)[:9]
        shorter = [(QUERY, sessions[name].tokenizer.decode(ids))]
        assert text == LONG
        assert few[0]["relevance_score"] == pytest.approx(
            predicted(saved[name], shorter)[0, 0], abs=2e-5
        )


@pytest.mark.parametrize("name", ["identity, default prompt", "modules"])
def test_a_server_ranks_as_sentence_transformers(
    saved: WhenNeeded[Path], sessions: WhenNeeded[Any], name: str
) -> None:
    documents = [*(document for _, document in PAIRS), LONG]
    ranked = CrossEncoder(str(saved[name]), device="cpu").rank(QUERY, documents)
    raw = predicted(
        saved[name], [(QUERY, document) for document in documents], activation_fn=nn.Identity()
    )
    with served(sessions[name]) as send:
        found = send("v1/rerank", query=QUERY, documents=documents)["results"]
        scored = send("score", queries=QUERY, documents=documents, use_activation=False)["data"]
    assert [one["index"] for one in found] == [one["corpus_id"] for one in ranked]
    wanted = [float(one["score"]) for one in ranked]
    assert [one["relevance_score"] for one in found] == pytest.approx(wanted, abs=2e-5)
    assert [one["score"] for one in scored] == pytest.approx(raw[:, 0], abs=2e-4)


def test_a_server_predicts_every_label(saved: WhenNeeded[Path], sessions: WhenNeeded[Any]) -> None:
    wanted = predicted(saved["three labels"], PAIRS)
    with served(sessions["three labels"]) as send:
        found = send("predict", inputs=[*map(list, PAIRS)])
    got = [{score["label"]: score["score"] for score in scores} for scores in found]
    np.testing.assert_allclose(
        [[one[label] for label in LABELS.values()] for one in got], wanted, atol=2e-5
    )


@contextmanager
def served(session: Any) -> Iterator[Callable[..., Any]]:
    with closing(EncoderQueue(session, max_waiting=8)) as queue, running(queue) as url:
        place = url.removesuffix("/v1")
        yield lambda path, **body: post(place, path, json.dumps({"model": MODEL, **body}).encode())[
            1
        ]
