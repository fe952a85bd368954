# SPDX-License-Identifier: Apache-2.0
"""Perplexity of the trained tiny model: Hugging Face's, the graph's and the packages' on one text."""

import json
import math
import os
import random
import re
import runpy
import shutil
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from checkout import ROOT
from runnable_package import package
from transformers import AutoModelForCausalLM

import qeff_zoo
from qeff_zoo import cli, targets
from qeff_zoo.errors import GenerationError
from qeff_zoo.package import Package
from qeff_zoo.pipeline import comparison
from qeff_zoo.targets.qaic.cards import DEVICES_ENV
from qeff_zoo.validation import perplexity
from qeff_zoo.validation.perplexity import PerplexityComparison, Scoring, Window

pytestmark = pytest.mark.turns(2)

TINY = ROOT / "examples" / "tiny-llama"
TEXT = (TINY / "held_out.txt").read_text(encoding="utf-8")[:2400]
SHAPE = {"ctx_len": 128, "prefill_seq_len": 16, "batch_size": 3}
WINDOW, STRIDE = 96, 40
#: Much more than either costs on this text, and much less than a mistake does.
MOST = {"int8": 1.01, "int4": 1.15, "w8a8": 1.02}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make the store one of this module's own."""
    folder = tmp_path_factory.mktemp("perplexity")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QEFF_HOME", str(folder))
        yield folder


@pytest.fixture(scope="module")
def packages(home: Path) -> dict[str, Package]:
    """Give packages of the trained model by how they store weights."""
    return {name: package(TINY, weights=name, **SHAPE) for name in ("fp32", *MOST)}


@pytest.fixture(scope="module")
def compared(packages: dict[str, Package]) -> PerplexityComparison:
    """Compare all of them, and the graph."""
    scoring = perplexity.prepare(packages["fp32"], TEXT, window=WINDOW, stride=STRIDE, batch_size=2)
    return comparison.compare(packages, scoring, graph=True)


def decoder(found: Package) -> Any:
    """Open a package."""
    session: Any = qeff_zoo.load(found, threads=1)
    return session.decoder


def score(found: Package, scoring: Scoring) -> float:
    """Give a package's mean loss."""
    return perplexity.score(scoring, decoder(found), lambda _: None).nats_per_token


# --- windows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 7, 8, 9, 40])
@pytest.mark.parametrize(("window", "stride"), [(2, 1), (8, 1), (8, 3), (8, 7), (8, 4), (64, 32)])
def test_every_token_but_the_first_is_scored_once(count: int, window: int, stride: int) -> None:
    windows = Scoring(tokens=range(count), window=window, stride=stride).windows

    targets = [number for one in windows for number in range(one.first, one.stop)]
    assert targets == list(range(1, count))
    assert all(0 < one.first - one.start < one.stop - one.start <= window for one in windows)
    assert all(later.start - one.start == stride for one, later in pairwise(windows))
    # What is left of the window before a target is its context.
    assert all(one.first - one.start >= window - stride for one in windows[1:])


def test_windows_that_do_not_overlap_leave_out_their_first_tokens() -> None:
    windows = Scoring(tokens=range(9), window=4, stride=4).windows

    assert windows == [Window(0, 1, 4), Window(4, 5, 8)]  # the ninth has no token before it


def test_tokens_before_the_first_that_is_scored_are_context() -> None:
    whole = Scoring(tokens=range(9), window=9, stride=4, first=5)
    parts = Scoring(tokens=range(20), window=8, stride=4, first=9)

    assert whole.windows == [Window(0, 5, 9)]
    assert parts.windows == [Window(4, 9, 12), Window(8, 12, 16), Window(12, 16, 20)]
    assert parts.targets == list(range(9, 20))


# --- scores ---------------------------------------------------------------------------------------


def test_hugging_face_is_scored_as_it_is(compared: PerplexityComparison) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    tokens, losses = torch.tensor(compared.scoring.tokens), []
    recorded = 1
    for start in range(0, len(tokens), STRIDE):  # as transformers' guide to perplexity does
        part = tokens[start : start + WINDOW][None]
        labels = part.clone()
        labels[:, : recorded - start] = -100
        with torch.no_grad():
            mean = float(model(part, labels=labels).loss)
        stop = start + part.shape[1]
        losses.append(mean * (stop - recorded))
        if (recorded := stop) == len(tokens):
            break

    reference = compared.scores["hugging-face"]
    assert reference.targets == len(tokens) - 1 > 500
    assert reference.nats_per_token == pytest.approx(sum(losses) / reference.targets, rel=1e-5)
    assert reference.perplexity == math.exp(reference.nats_per_token)
    assert (
        10 < reference.perplexity < 40
    )  # it has learnt: of 2,048 tokens one is as likely as another


@pytest.mark.parametrize("name", ["fp32", "graph"])
def test_float32_agrees_with_hugging_face(compared: PerplexityComparison, name: str) -> None:
    assert compared.ratio(name) == pytest.approx(1, abs=1e-5)
    assert compared.scores[name].targets == compared.scores["hugging-face"].targets


@pytest.mark.parametrize("name", MOST)
def test_quantization_costs_little(compared: PerplexityComparison, name: str) -> None:
    assert abs(compared.ratio(name) - 1) > 1e-5  # it is another model
    assert 1 / MOST[name] < compared.ratio(name) < MOST[name]


def test_more_context_predicts_better(packages: dict[str, Package]) -> None:
    scores = [
        score(packages["fp32"], perplexity.prepare(packages["fp32"], TEXT, window=n, stride=4))
        for n in (8, 64)
    ]
    assert scores[1] < scores[0] - 0.1


def test_shuffled_words_are_hard_to_predict(
    packages: dict[str, Package], compared: PerplexityComparison
) -> None:
    words = TEXT.split(" ")
    random.Random(0).shuffle(words)
    scoring = perplexity.prepare(packages["fp32"], " ".join(words), window=WINDOW, stride=STRIDE)

    assert score(packages["fp32"], scoring) > compared.scores["fp32"].nats_per_token + 0.5


@pytest.mark.parametrize(
    "shape",
    [{"batch_size": 1}, {"full_batch_size": 4}, {"batch_size": 2, "num_speculative_tokens": (1,)}],
)
def test_rows_change_nothing(
    home: Path, compared: PerplexityComparison, shape: dict[str, Any]
) -> None:
    found = package(TINY, **{**SHAPE, "batch_size": None, "prefill_seq_len": 7, **shape})

    assert score(found, compared.scoring) == pytest.approx(
        compared.scores["fp32"].nats_per_token, abs=1e-5
    )


# --- what has no perplexity -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "choices", "message"),
    [
        ("", {}, "A text of 0 characters .* at least two tokens"),
        (TEXT, {"window": 16, "stride": 17}, "a stride of 17; .* at most 16. Change --stride"),
        (TEXT, {"stride": 0}, "a stride of 0"),
        (TEXT, {"window": 129}, "a window of 129; .* at least 2 and at most 128"),
        (TEXT, {"window": 1}, "a window of 1"),
        (TEXT, {"batch_size": 0}, "a batch-size of 0; expected at least 1. Change --batch-size"),
    ],
)
def test_what_cannot_be_scored_is_refused(
    packages: dict[str, Package], text: str, choices: dict[str, int], message: str
) -> None:
    with pytest.raises(GenerationError, match=message):
        perplexity.prepare(packages["fp32"], text, **choices)


def test_a_single_token_is_refused(
    packages: dict[str, Package], monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = perplexity.Tokenizer.encode
    monkeypatch.setattr(
        perplexity.Tokenizer, "encode", lambda *them, **how: encode(*them, **how)[1:]
    )  # no BOS

    with pytest.raises(GenerationError, match="1 characters and 1 tokens"):
        perplexity.prepare(packages["fp32"], "a")


def test_packages_without_words_are_refused(
    packages: dict[str, Package], built: dict[str, Package], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        GenerationError, match=r"'feature-extraction' .* expected 'text-generation'"
    ):
        perplexity.prepare(built["encoder"], TEXT)
    monkeypatch.setattr(perplexity.Tokenizer, "find", lambda _: None)
    with pytest.raises(GenerationError, match=r"has no tokenizer\.json"):
        perplexity.prepare(packages["fp32"], TEXT)


# --- the commands ---------------------------------------------------------------------------------


def test_validate_prints_perplexities(
    packages: dict[str, Package], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "text.txt"
    file.write_text(TEXT[:300])
    argv = ["validate", str(packages["fp32"].path), "--perplexity", str(file), "--json"]

    assert cli.main([*argv, "--window", "32", "--stride", "32"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["name"], found["window"], found["stride"]) == ("tiny-llama", 32, 32)
    assert list(found["scores"]) == ["hugging-face", "package"]
    ours = found["scores"]["package"]
    assert ours["ratio"] == pytest.approx(1, abs=1e-5)
    assert ours["perplexity"] == pytest.approx(math.exp(ours["nats_per_token"]))
    assert ours["targets"] == found["tokens"] - -(-found["tokens"] // 32)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--perplexity", "/nowhere/text.txt"], "Cannot read '/nowhere/text.txt'"),
        (["--perplexity", "{text}", "--record"], "--record .* Leave it out"),
        (["--perplexity", "{text}", "--window", "1"], "a window of 1"),
        (["--window", "8"], "--window .* --perplexity"),
        (["--graph"], "--graph .* --perplexity"),
    ],
)
def test_validate_refuses_before_it_scores(
    packages: dict[str, Package],
    options: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(comparison, "compare", lambda *_, **__: pytest.fail("scored"))
    (tmp_path / "text.txt").write_text(TEXT)
    given = [option.format(text=tmp_path / "text.txt") for option in options]

    assert cli.main(["validate", str(packages["fp32"].path), *given]) == 1
    assert re.search(message, capsys.readouterr().err)


def test_the_script_prints_every_package(
    packages: dict[str, Package],
    compared: PerplexityComparison,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    requested: list[dict[str, Any]] = []
    monkeypatch.setattr(
        qeff_zoo,
        "build",
        lambda model, **choices: requested.append(choices) or packages[choices["weights"]],
    )
    monkeypatch.setattr(
        comparison, "compare", lambda given, scoring, **_: PerplexityComparison(name="it", scoring=scoring, scores={
            name: compared.scores[name] for name in ("hugging-face", *given)
        })
    )  # fmt: skip
    script = str(ROOT / "scripts" / "perplexity.py")
    argv = [script, str(TINY), str(file), "--weights", "fp32", "int4", "--ctx-len", "128"]
    monkeypatch.setattr(sys, "argv", argv)

    with pytest.raises(SystemExit) as ended:
        runpy.run_path(script, run_name="__main__")

    assert not ended.value.code
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines()[4:]] == ["hugging-face", "fp32", "int4"]
    assert f"{compared.scores['int4'].perplexity:.4f}" in shown
    assert [choices["weights"] for choices in requested] == ["fp32", "int4"]
    assert {choices["ctx_len"] for choices in requested} == {128}

    requested.clear()  # the same by QEfficient's flags
    log = tmp_path / "results.log"
    reference = ["--model_name", str(TINY), "--dataset_name", str(file), "--model_type", "onnx"]
    sizes = ["--ctx_len", "128", "--prompt_len", "1", "--batch_size", "2", "--num_samples", "2"]
    monkeypatch.setattr(sys, "argv", [script, *reference, *sizes, "--log_file", str(log)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(script, run_name="__main__")
    assert not ended.value.code
    assert requested == [{"weights": "fp32", "ctx_len": 128, "batch_size": 2}]
    assert log.read_text() == capsys.readouterr().out
    assert f"it: {128 + 64} tokens in windows of 128 every 64" in log.read_text()


def cached(folder: Path, name: str, config: str, texts: list[str]) -> None:
    """Write a data set where `datasets` keeps those that it has downloaded."""
    (folder / "rows.json").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    files = {"test": str(folder / "rows.json")}
    datasets.load_dataset("json", data_files=files, cache_dir=str(folder / "made"))
    [made] = (path.parent for path in (folder / "made" / "json").glob("*/*/*/dataset_info.json"))
    place = folder / name.replace("/", "___") / config / "0.0.0" / "hash"
    shutil.copytree(made, place)
    (place / "json-test.arrow").rename(place / f"{name.rpartition('/')[2]}-test.arrow")
    info = json.loads((place / "dataset_info.json").read_text())
    (place / "dataset_info.json").write_text(json.dumps(info | {"config_name": config}))


@pytest.mark.parametrize(
    ("given", "name", "config"),
    [
        ("wikitext-2-raw-v1", "Salesforce/wikitext", "wikitext-2-raw-v1"),
        ("owner/name:part", "owner/name", "part"),
        ("owner/name", "owner/name", "default"),
    ],
)
def test_the_script_reads_data_sets_that_were_downloaded_before(
    given: str, name: str, config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached(tmp_path, name, config, ["first", "", "last"])
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path))
    script = runpy.run_path(str(ROOT / "scripts" / "perplexity.py"))
    assert script["_data_set"](given) == "first\n\n\n\nlast"


def test_the_script_runs_on_the_cards_that_are_named(
    packages: dict[str, Package],
    compared: PerplexityComparison,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded = []
    monkeypatch.setattr(qeff_zoo, "find_package", lambda _: packages["fp32"])
    monkeypatch.setattr(targets, "on_cards", lambda: ("ort",))
    monkeypatch.setattr(
        comparison, "compare", lambda *_, **__: recorded.append(os.environ[DEVICES_ENV]) or compared
    )  # fmt: skip
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    words = ["--model_path", "x", "--dataset_name", str(file), "--qpc_device_id", "[2,3]"]
    monkeypatch.setattr(sys, "argv", [str(ROOT / "scripts" / "perplexity.py"), *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(sys.argv[0], run_name="__main__")
    assert (ended.value.code, recorded) == (0, ["2,3"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--dataset_name", "owner/absent:part"],
            "load_dataset('owner/absent', 'part', split='test')",
        ),
        (["--dataset_name", str(ROOT / "README.md")], "There is no model"),
    ],
)
def test_the_script_refuses_by_name(
    words: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = str(ROOT / "scripts" / "perplexity.py")
    monkeypatch.setattr(sys, "argv", [script, *words])
    with pytest.raises(SystemExit, match="1"):
        runpy.run_path(script, run_name="__main__")
    assert message in capsys.readouterr().err
