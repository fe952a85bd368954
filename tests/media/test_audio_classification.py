# SPDX-License-Identifier: Apache-2.0
"""Audio classification: scores are Hugging Face's, whatever a recording is padded with and batched with."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import parity
import pytest
import soundfile
import torch
import transformers
from parity import Subject

import qeff_zoo
from qeff_zoo import contract, pipeline
from qeff_zoo.cli import main
from qeff_zoo.errors import GenerationError
from qeff_zoo.export.tracing.ctc_tracing import example
from qeff_zoo.plan.request import Request
from qeff_zoo.registry import find_recipe, list_recipes
from qeff_zoo.store import Store
from qeff_zoo.tasks.audio_classification.session import AudioClassificationSession
from qeff_zoo.tasks.audio_classification.task import NAME
from qeff_zoo.tasks.audio_classification.tracing import ClassifyAudio
from qeff_zoo.validation import tiny_models
from qeff_zoo.validation.trial.sample_audio import voice

pytestmark = pytest.mark.turns(3)

RECIPES = [recipe for recipe in list_recipes() if NAME in contract.tasks_of(recipe)]
#: Recipes that are compared in any case: norms over groups, squeezed frames, frames of features.
TRACED = ("wav2vec2", "sew", "sew-d", "wav2vec2-bert")
RATE = 16_000


def inputs_of(of: Subject) -> list[np.ndarray]:
    """Draw a long and a short input: samples, or frames of features."""
    if of.hf.main_input_name == "input_values":
        return [voice(length, RATE, length) for length in (4000, 1930)]
    random, bins = np.random.default_rng(0), example(of.transformed)[0].shape[2]
    return [random.standard_normal((length, bins)).astype(np.float32) for length in (61, 30)]


def alone(model: Any, inputs: list[np.ndarray]) -> np.ndarray:
    """Return Hugging Face's logits of each input by itself, without padding and without a mask."""
    given = [torch.from_numpy(one[None]).to(model.dtype) for one in inputs]
    with torch.no_grad():
        return np.concatenate([model(one).logits.double().numpy() for one in given])


@pytest.mark.parametrize("summed", [False, True], ids=["last", "summed"])
@pytest.mark.parametrize(
    "model_type",
    [one.model_type for one in RECIPES if parity.EVERY or one.model_type in TRACED],
)
def test_logits_are_hugging_faces_whatever_stands_behind_the_end(
    model_type: str, summed: bool
) -> None:
    """By the last layer's states, or by a weighted sum of those of all layers."""
    recipe = contract.for_task(find_recipe(model_type), NAME)
    config = tiny_models.config_of(recipe, recipe.tiny[0])
    of = Subject({**config, "use_weighted_layer_sum": summed}, recipe)
    inputs = inputs_of(of)
    wanted = alone(of.hf, inputs)
    noise = float(np.abs(wanted - alone(of.hf64, inputs)).max())
    width = len(inputs[0]) + 160
    recording = np.full((2, width, *inputs[0].shape[1:]), 3.0, np.float32)
    mask = np.zeros((2, width), np.int64)
    for row, one in enumerate(inputs):
        recording[row, : len(one)], mask[row, : len(one)] = one, 1
    with torch.no_grad():
        got = ClassifyAudio(of.transformed)(torch.from_numpy(recording), torch.from_numpy(mask))
    assert np.abs(got.numpy() - wanted).max() <= parity.TOLERANCE["torch"] * noise


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = contract.for_task(find_recipe("wav2vec2"), NAME)
    folder = tiny_models.make(recipe, recipe.tiny[0], tmp_path_factory.mktemp("audio") / "model")
    transformers.Wav2Vec2FeatureExtractor().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    names = {"id2label": {0: "yes", 1: "no", 2: "stop"}, "label2id": {"yes": 0, "no": 1, "stop": 2}}
    (folder / "config.json").write_text(json.dumps({**config, **names}))
    return folder


@pytest.fixture(scope="module")
def session(
    checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> AudioClassificationSession:
    """Open a package of the task that the checkpoint's class is made for."""
    request = Request(seq_lens=(4000, 16_000), batch_size=2)
    store = Store(tmp_path_factory.mktemp("store"))
    built = pipeline.build(str(checkpoint), request, validate=False, store=store)
    opened: AudioClassificationSession = qeff_zoo.load(built.package, threads=1)
    return opened


def test_scores_are_the_pipelines(session: AudioClassificationSession, checkpoint: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = transformers.pipeline(NAME, model=str(checkpoint), top_k=None)
    recordings = [voice(length, RATE, length) for length in (900, 15_999, 4000)]
    for recording, found in zip(recordings, session.classify(recordings), strict=True):
        wanted = reference(recording.copy())
        assert [one.label for one in found] == [one["label"] for one in wanted]
        scores = [one["score"] for one in wanted]
        np.testing.assert_allclose([one.score for one in found], scores, atol=1e-5)


def test_the_command_prints_scores(
    session: AudioClassificationSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(tmp_path / f"{number}.wav") for number in range(2)]
    for number, path in enumerate(paths):
        soundfile.write(path, voice(3000 + 500 * number, RATE, number), RATE)
    assert main(["run", str(session.folder), *paths]) == 0
    shown = capsys.readouterr().out
    assert all(shown.count(text) for text in (*paths, "yes", "no", "stop"))
    assert main(["run", str(session.folder), *paths, "--json"]) == 0
    outputs = json.loads(capsys.readouterr().out)["outputs"]
    assert [output["audio"] for output in outputs] == paths
    assert sum(score["score"] for score in outputs[0]["scores"]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["run", "PACKAGE", "--prompt", "a"], "--prompt does not apply to audio-classification"),
        (["run", "PACKAGE", "a.wav", "--timestamps"], "--timestamps does not apply"),
        (
            ["serve", "PACKAGE", "--port", "0"],
            "'audio-classification', which OpenAI's API does not",
        ),
        (["bench", "PACKAGE"], "is for task 'audio-classification'; expected 'text-generation'"),
    ],
    ids=" ".join,
)
def test_inputs_of_another_task_are_refused(
    argv: list[str],
    message: str,
    session: AudioClassificationSession,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([str(session.folder) if one == "PACKAGE" else one for one in argv]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("samples", [10, 16_001])
def test_a_recording_of_another_length_is_refused(
    samples: int, session: AudioClassificationSession
) -> None:
    with pytest.raises(GenerationError, match=r"expected 0.03 s to 1.00 s, since"):
        session.classify(voice(samples, RATE, 0))
