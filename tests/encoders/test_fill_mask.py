# SPDX-License-Identifier: Apache-2.0
"""Masked language models: tokens for masks are those of transformers' pipeline, from a checkpoint and over HTTP."""

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sentence_models
import torch
from fixtures_serving import post, running
from huggingface_hub import InferenceClient
from runnable_package import edit_json, opened, package
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaForMaskedLM, pipeline

from qeff_zoo import cli
from qeff_zoo.errors import GenerationError
from qeff_zoo.package import Package
from qeff_zoo.sessions import Fill, FillMaskSession, open_session
from qeff_zoo.tasks.encoders.endpoints.encoder_queue import EncoderQueue

BERT, ROBERTA = "bert", "roberta"
#: Texts with masks: one, several, at the ends, beside spaces and punctuation.
TEXTS = {
    BERT: ["the [MASK]", "hello [MASK], [MASK] dog!", "[MASK] cat [MASK]", "a[MASK]b"],
    ROBERTA: ["the <mask>", "hello <mask>, <mask> dog!", "<mask> cat  <mask>", "a<mask>b"],
}
#: Words of the vocabulary, and others, which begin with a token of it.
TARGETS = {BERT: ["cat", "dog", "hellocat"], ROBERTA: ["t", "he", "zz"]}


def roberta(folder: Path) -> Path:
    """Write a RoBERTa with a byte-level tokenizer, whose mask takes the space before it."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["<s>", "<pad>", "</s>", "<unk>", *letters, "he", "th", "the", "<mask>"]
    merges = [("h", "e"), ("t", "h"), ("th", "e")]
    made = Tokenizer(models.BPE({word: at for at, word in enumerate(words)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token=AddedToken("<mask>", lstrip=True),
        model_max_length=48,
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=50,
        initializer_range=0.3,
    )
    RobertaForMaskedLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        BERT: sentence_models.encoder("masked"),
        ROBERTA: roberta(tmp_path_factory.mktemp("roberta")),
    }


@pytest.fixture(scope="module")
def built(
    checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Package]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QEFF_HOME", str(tmp_path_factory.mktemp("masks")))
        return {
            name: package(checkpoint, seq_lens=(16, 40), batch_size=3)
            for name, checkpoint in checkpoints.items()
        }


@pytest.fixture(scope="module")
def sessions(built: dict[str, Package]) -> dict[str, FillMaskSession]:
    opened = {name: open_session(value, threads=1) for name, value in built.items()}
    assert all(isinstance(value, FillMaskSession) for value in opened.values())
    return opened  # type: ignore[return-value]


def wanted(checkpoint: Path, texts: Any, **options: Any) -> list[list[list[dict[str, Any]]]]:
    """Return what transformers' pipeline does, with a list of masks for every text."""
    pipe = pipeline("fill-mask", str(checkpoint))
    found = [pipe(text, **options) for text in texts]
    return [one if isinstance(one[0], list) else [one] for one in found]


def described(fill: Fill) -> dict[str, Any]:
    return {
        "score": pytest.approx(fill.score, abs=2e-5),
        "token": fill.token,
        "token_str": fill.text,
        "sequence": fill.sequence,
    }


def test_the_architecture_selects_the_task(built: dict[str, Package]) -> None:
    for one in built.values():
        assert one.task == "fill-mask"
        assert one.manifest["why"]["task.name"] == "checkpoint: architectures"


@pytest.mark.parametrize("name", [BERT, ROBERTA])
@pytest.mark.parametrize("options", [{}, {"top_k": 1}, {"top_k": 30}, {"targets": True}], ids=str)
@pytest.mark.filterwarnings("ignore:The specified target token")
def test_tokens_are_those_of_transformers(
    sessions: dict[str, FillMaskSession],
    checkpoints: dict[str, Path],
    name: str,
    options: dict[str, Any],
) -> None:
    given = {"targets": TARGETS[name]} if options.get("targets") else options
    found = sessions[name].fill(TEXTS[name], **given)
    for masks, expected in zip(found, wanted(checkpoints[name], TEXTS[name], **given), strict=True):
        assert [[described(fill) for fill in fills] for fills in masks] == expected


def test_what_cannot_be_filled_is_refused(
    sessions: dict[str, FillMaskSession], built: dict[str, Package], tmp_path: Path
) -> None:
    session = sessions[BERT]
    with pytest.raises(GenerationError, match=r"Text 2 has no mask; expected '\[MASK\]'"):
        session.fill(["a [MASK]", "a cat"])
    with pytest.raises(GenerationError, match=r"no mask within its first 40 tokens"):
        session.fill("cat " * 60 + "[MASK]")
    for top_k in (0, session.width + 1):
        with pytest.raises(GenerationError, match=f"`top_k` is {top_k}; expected 1 to"):
            session.fill("a [MASK]", top_k)
    with pytest.raises(GenerationError, match="Target '' has no token"):
        session.fill("a [MASK]", targets=[""])
    folder = tmp_path / "package"
    shutil.copytree(built[BERT].path, folder)
    edit_json(folder / "tokenizer_config.json", mask_token=None)
    with pytest.raises(GenerationError, match="no tokenizer with a `mask_token`"):
        FillMaskSession(folder, opened(built[BERT])).fill("a [MASK]")


def test_run_prints_tokens(
    built: dict[str, Package], capsys: pytest.CaptureFixture[str], sessions: dict[str, Any]
) -> None:
    text = TEXTS[BERT][1]
    command = ["run", str(built[BERT].path), "--prompt", text, "--top-k", "2"]
    assert cli.main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["mask", "token", "score", "text"]
    assert len(lines) == 2 + 4
    assert cli.main([*command, "--json", "--targets", "cat"]) == 0
    (output,) = json.loads(capsys.readouterr().out)["outputs"]
    assert [[fill["text"] for fill in fills] for fills in output["masks"]] == [["cat"], ["cat"]]


@pytest.fixture(scope="module")
def url(built: dict[str, Package]) -> Iterator[str]:
    with (
        closing(EncoderQueue(open_session(built[BERT], threads=1), max_waiting=8)) as queue,  # type: ignore[arg-type]
        running(queue) as address,
    ):
        yield address.removesuffix("/v1")


def test_a_server_answers_as_the_pipeline(url: str, checkpoints: dict[str, Path]) -> None:
    client = InferenceClient(f"{url}/predict", timeout=60)
    for text in TEXTS[BERT]:
        (expected,) = wanted(checkpoints[BERT], [text], top_k=3)
        status, found = post(
            url, "predict", json.dumps({"inputs": text, "parameters": {"top_k": 3}}).encode()
        )
        assert status == 200
        assert [found] if len(expected) == 1 else found == [[*map(near, one)] for one in expected]
        if len(expected) == 1:
            same = client.fill_mask(text, top_k=3)
            assert [[one.token_str for one in same]] == [[one["token_str"] for one in expected[0]]]
    status, found = post(url, "predict", json.dumps({"inputs": TEXTS[BERT]}).encode())
    assert [len(one) for one in found] == [5, 2, 2, 5]


def near(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "score": pytest.approx(one["score"], abs=2e-5)}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"inputs": "a cat"}, "inputs"),
        ({"inputs": "a [MASK]", "parameters": {"top_k": 10_000}}, "parameters.top_k"),
        ({"inputs": "a [MASK]", "parameters": {"targets": [""]}}, "parameters.targets"),
        ({"inputs": ["[MASK] " * 14] * 2048, "parameters": {"top_k": 40}}, "inputs"),
    ],
    ids=["no mask", "top_k", "target", "many"],
)
def test_a_server_refuses_what_it_cannot_fill(url: str, body: dict[str, Any], param: str) -> None:
    status, answer = post(url, "predict", json.dumps(body).encode())
    assert (status, answer["error"]["param"]) == (400, param), answer
