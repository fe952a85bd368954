# SPDX-License-Identifier: Apache-2.0
"""Every published config and feature extractor of recordings: features, labels, prompts and logits are transformers'.

A file in `tests/published/audio/` is tested once it is there. Programs run in PyTorch, as in `test_published`.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import fixtures_media_recipes as media
import fixtures_speech as frames
import fixtures_speech_seq2seq as seq2seq
import numpy as np
import parity
import published_processors as published
import pytest
import torch
from transformers import AutoTokenizer

from qeff_zoo.checkpoint import processors
from qeff_zoo.checkpoint.files import PROCESSOR_SETTINGS
from qeff_zoo.errors import ParityError
from qeff_zoo.media.features import load_features
from qeff_zoo.recipe import Tiny
from qeff_zoo.registry import recipe_for
from qeff_zoo.tasks.speech import ctc_decoding
from qeff_zoo.validation.content import audio_arrays, image_arrays
from qeff_zoo.validation.trial.sample_audio import voice

RATE = 16_000
FACTS = {name: published.read(name) for name in published.names("audio")}
#: Feature extractors of transformers that need torchaudio, which is not installed; `test_audio_blocks` compares them.
NEED_TORCHAUDIO = "GraniteSpeechFeatureExtractor", "GraniteSpeech5FeatureExtractor"
#: Types whose logits are compared in any case: their published flags are no recipe's tiny model's.
SHAPED = "lasr_ctc", "moonshine", "qwen2_audio", "voxtral", "wav2vec2_bert", "wav2vec2_conformer"


@cache
def subject(name: str) -> parity.Subject:
    config = published.scaled(FACTS[name])
    return parity.Subject(config, recipe_for(config))


def session_of(name: str) -> Any:
    """Open what a package of a model that reads recordings among text would have."""
    of = subject(name)
    published.write(FACTS[name], of.folder / "checkpoint")
    processors.write(of.folder / "checkpoint", of.folder / "checkpoint")
    tiny = Tiny(config=published.scaled(FACTS[name]), ctx_len=1024)
    return media.session_of(parity.Case(recipe=of.recipe, tiny=tiny), of)


def saved(name: str, folder: Path) -> Path:
    """Write all files but weights, and the settings that a build writes."""
    (folder / "config.json").write_text(json.dumps(published.scaled(FACTS[name])))
    published.write(FACTS[name], folder)
    processors.write(folder, folder)
    return folder


@pytest.mark.parametrize("name", FACTS)
def test_features_are_those_of_the_published_extractor(name: str, tmp_path: Path) -> None:
    folder = saved(name, tmp_path)
    kind = FACTS[name]["preprocessor_config"].get("feature_extractor_type", "")
    processor = processors.load(folder)
    assert image_arrays.compare(folder, processor) == {}
    compared = audio_arrays.compare(folder, processor)
    if kind in NEED_TORCHAUDIO:
        assert compared == {}
        assert load_features(folder).rate == RATE
    else:
        assert f"2 recordings as transformers' {kind}" in compared["audio"]


@pytest.mark.parametrize("name", [name for name, fact in FACTS.items() if "vocab" in fact])
def test_labels_are_those_of_the_published_tokenizer(name: str, tmp_path: Path) -> None:
    folder = saved(name, tmp_path)
    reference, ours = AutoTokenizer.from_pretrained(folder), ctc_decoding.find(folder)
    assert ours is not None
    labels = np.random.default_rng(0).choice([0, 0, 3, 4, 5, 6, 31], 60).tolist()
    assert ours.read(labels)[0] == reference.decode(labels).strip()


@pytest.mark.parametrize("name", [name for name, fact in FACTS.items() if fact.get("prompts")])
def test_prompts_and_audio_equal_the_published_processor(name: str) -> None:
    session, facts = session_of(name), FACTS[name]
    reference = processors.load(subject(name).folder / "checkpoint")
    for prompt in facts["prompts"]:
        recordings = [voice(samples, RATE, samples) for samples in (31_001, 9_000)]
        recordings = recordings[: prompt.count(facts["marker"])]
        right = reference(text=prompt, audio=recordings, sampling_rate=RATE, return_tensors="pt")
        made = session.request(prompt, audio=recordings, generation_len=1)
        assert list(made.prompt) == right["input_ids"][0].tolist()


def labelled(of: parity.Subject) -> tuple[float, float]:
    """Return how far labels of two recordings are from transformers', and its own rounding."""
    recordings = frames.recordings_for(of)
    wanted, feeds = frames.alone(of.hf, recordings), frames.padded(recordings, 77)
    return frames.distance(of, "torch", feeds, wanted), frames.noise_of(of, recordings)


def written(of: parity.Subject) -> tuple[float, float]:
    """Return how far logits of answers to two recordings are from transformers', and its own rounding."""
    recordings = seq2seq.recordings_for(of)
    tokens = torch.randint(3, 200, (2, 7), generator=torch.Generator().manual_seed(2))
    wanted, wide = (seq2seq.expected_of(one, recordings, tokens) for one in (of.hf, of.hf64))
    got = seq2seq.steps_of(of.transformed, recordings, tokens)
    return np.abs(got - wanted[:, seq2seq.ENDS]).max(), np.abs(wanted - wide).max()


@pytest.mark.parametrize("name", [name for name in FACTS if parity.EVERY or name.endswith(SHAPED)])
def test_logits_are_those_of_the_published_model(name: str) -> None:
    of = subject(name)
    kinds = {"automatic-speech-recognition": labelled, "speech-seq2seq": written}
    if of.recipe.task not in kinds:
        media.check(session_of(name), of)
        return
    distance, noise = kinds[of.recipe.task](of)
    assert distance <= parity.TOLERANCE["torch"] * noise


def test_a_package_whose_features_differ_is_refused(tmp_path: Path) -> None:
    folder = saved("audio/whisper", tmp_path)
    held = json.loads((folder / PROCESSOR_SETTINGS).read_text())
    held["feature_extractor"]["hop_length"] = 200
    (folder / PROCESSOR_SETTINGS).write_text(json.dumps(held))
    with pytest.raises(ParityError, match=r"other features than by transformers' WhisperFeature"):
        audio_arrays.compare(folder, processors.load(folder))


def test_features_of_short_windows_are_compared(tmp_path: Path) -> None:
    """Windows of less than a second, beyond which transformers cuts a recording."""
    folder = saved("audio/whisper", tmp_path)
    named = folder / "preprocessor_config.json"
    named.write_text(json.dumps(json.loads(named.read_text()) | {"chunk_length": 1}))
    processors.write(folder, folder)
    assert audio_arrays.compare(folder, processors.load(folder))["audio"].startswith("2 recordings")


def test_an_extractor_without_a_name_is_that_of_the_model(tmp_path: Path) -> None:
    """As old files of Speech to Text have none; they were taken for plain samples."""
    folder = saved("audio/speech_to_text", tmp_path)
    assert load_features(folder).name == "input_features"
