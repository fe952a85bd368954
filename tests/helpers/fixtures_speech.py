# SPDX-License-Identifier: Apache-2.0
"""What several tests of speech and others use."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from parity import Array, Subject

import qeff_zoo
from qeff_zoo.export.tracing.ctc_tracing import Listen, example
from qeff_zoo.registry import find_recipe
from qeff_zoo.sessions import CtcSession
from qeff_zoo.validation import tiny_models
from qeff_zoo.validation.trial.sample_audio import voice

RATE = 16_000


def recordings_for(of: Subject) -> list[Array]:
    """Draw a long and a short input: samples, or frames of features."""
    random = np.random.default_rng(0)
    if of.hf.main_input_name == "input_values":
        return [voice(length, RATE, length) for length in (4000, 1930)]
    bins = example(of.transformed)[0].shape[2]
    return [random.standard_normal((length, bins)).astype(np.float32) for length in (61, 30)]


def padded(recordings: list[Array], more: int, filling: float = 0.0) -> dict[str, Array]:
    width = max(map(len, recordings)) + more
    recording = np.full((len(recordings), width, *recordings[0].shape[1:]), filling, np.float32)
    mask = np.zeros(recording.shape[:2], np.int64)
    for row, one in enumerate(recordings):
        recording[row, : len(one)], mask[row, : len(one)] = one, 1
    return {"audio": recording, "attention_mask": mask}


def alone(model: Any, recordings: list[Array]) -> list[Array]:
    """Ask Hugging Face about each recording by itself, without padding and without a mask."""
    dtype = model.dtype
    with torch.no_grad():
        return [
            model(**{model.main_input_name: torch.from_numpy(recording[None]).to(dtype)})
            .logits[0]
            .double()
            .numpy()
            for recording in recordings
        ]


def send_request(of: Subject, how: str, feeds: Mapping[str, Array]) -> tuple[Array, Array]:
    if how == "torch":
        with torch.no_grad():
            given = {name: torch.from_numpy(value) for name, value in feeds.items()}
            logits, lengths = Listen(of.transformed)(**given)
        return logits.numpy(), lengths.numpy()
    session = of.portable() if how == "portable" else of.lowered(how)
    named = {of.hf.main_input_name: feeds["audio"], "attention_mask": feeds["attention_mask"]}
    logits, lengths = session.run(None, named)
    return logits, lengths


def distance(of: Subject, how: str, feeds: Mapping[str, Array], wanted: list[Array]) -> float:
    logits, lengths = send_request(of, how, feeds)
    assert lengths.tolist() == [len(one) for one in wanted]
    pairs = zip(logits, wanted, strict=True)
    return max(float(np.abs(row[: len(one)] - one).max()) for row, one in pairs)


def noise_of(of: Subject, recordings: list[Array]) -> float:
    pairs = zip(alone(of.hf, recordings), alone(of.hf64, recordings), strict=True)
    return max(float(np.abs(one - two).max()) for one, two in pairs)


def _zero(path: str) -> Callable[[Any], None]:
    return lambda model: model.get_parameter(path).zero_()


def _unshifted(model: Any) -> None:
    for layer in model.encoder.layers:
        layer.self_attn.relative_k_proj.weight.zero_()


def _narrow(model: Any) -> None:
    for layer in model.wav2vec2_bert.encoder.layers:
        layer.self_attn.left_max_position_embeddings = 2


FACTS: Mapping[str, tuple[str, Callable[[Any], None]]] = {
    "wav2vec2: positions": ("wav2vec2-base", _zero("wav2vec2.encoder.pos_conv_embed.conv.bias")),
    "hubert: norm before features are widened": (
        "hubert-base",
        _zero("hubert.feature_projection.layer_norm.weight"),
    ),
    "wavlm: gate of the bias": (
        "wavlm-base",
        _zero("wavlm.encoder.layers.1.attention.gru_rel_pos_linear.weight"),
    ),
    "data2vec: last convolution of positions": (
        "data2vec-audio-base",
        _zero("data2vec_audio.encoder.pos_conv_embed.layers.2.conv.weight"),
    ),
    "conformer: convolution": (
        "wav2vec2-conformer-base",
        _zero("wav2vec2_conformer.encoder.layers.0.conv_module.depthwise_conv.weight"),
    ),
    "parakeet: distances": ("parakeet_ctc-base", _unshifted),
    "lasr: convolution": (
        "lasr_ctc-base",
        _zero("encoder.layers.1.conv.depthwise_conv.weight"),
    ),
    "wav2vec2-bert: distances": ("wav2vec2-bert-base", _narrow),
    "unispeech: positions": (
        "unispeech-base",
        _zero("unispeech.encoder.pos_conv_embed.conv.bias"),
    ),
    "unispeech-sat: positions": (
        "unispeech-sat-base",
        _zero("unispeech_sat.encoder.pos_conv_embed.conv.bias"),
    ),
    "granite speech 5: labels of the middle": (
        "granite_speech5_ctc-base",
        _zero("encoder.out_mid.weight"),
    ),
    "sew: frames are stretched": ("sew-base", _zero("sew.encoder.upsample.projection.bias")),
    "sew-d: distances": ("sew-d-base", _zero("sew_d.encoder.encoder.rel_embeddings.weight")),
}


VOCAB = {
    character: label
    for label, character in enumerate(
        ["<pad>", "<s>", "</s>", "<unk>", "|", *"ETAONIHSRDLUMWCFGYPBVK'XJQZabcde"]
    )
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = find_recipe("wav2vec2")
    folder = tiny_models.make(
        recipe, recipe.tiny[0], tmp_path_factory.mktemp("speech") / "wav2vec2"
    )
    (folder / "vocab.json").write_text(json.dumps(VOCAB))
    transformers.Wav2Vec2CTCTokenizer(str(folder / "vocab.json")).save_pretrained(folder)
    transformers.Wav2Vec2FeatureExtractor().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(
    checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[qeff_zoo.QEFFAutoModelForCTC]:
    """Give a validated package, built as QEfficient's users would."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QEFF_HOME", str(tmp_path_factory.mktemp("store")))
        loaded = qeff_zoo.QEFFAutoModelForCTC.from_pretrained(checkpoint)
        loaded.compile(seq_len=[4000, 16_000], batch_size=2, num_cores=16, target="ort")
        yield loaded


@pytest.fixture(scope="module")
def package(model: qeff_zoo.QEFFAutoModelForCTC) -> Any:
    assert model.package is not None
    assert model.package.validated == "checkpoint"
    return model.package


@pytest.fixture(scope="module")
def session(package: Any) -> CtcSession:
    opened: CtcSession = qeff_zoo.load(package, threads=1)
    return opened
