# SPDX-License-Identifier: Apache-2.0
"""Speech token by token: logits, tokens, text and times are those of Hugging Face's models and of their `generate`."""

import copy
import json
import re
import runpy
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import cache
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openai
import parity
import pytest
import requests
import selection
import soundfile
import tokenizers
import torch
import transformers
from checkout import ROOT
from compressed import recording_in
from fixtures_qaic_runtime import rt
from fixtures_qaic_whole import compiled, emulated
from fixtures_serving import MODEL, connect, running
from fixtures_speech_seq2seq import (
    ENDS,
    ENGLISH,
    EOS,
    GERMAN,
    NO_TIMES,
    PREVIOUS,
    START,
    TOKENS,
    TRANSCRIBE,
    TRANSLATE,
    audio_model,
    checkpoint,
    expected_of,
    model,
    recordings_for,
    session,
    steps_of,
    whole,
)
from parity import Array, Subject
from transformers.models.whisper import generation_whisper, tokenization_whisper

import qeff_zoo
from qeff_zoo import bench, pipeline
from qeff_zoo.bench import case as bench_case
from qeff_zoo.cli import main
from qeff_zoo.errors import GenerationError, MediaError, PlanError
from qeff_zoo.export import companions
from qeff_zoo.media import features
from qeff_zoo.package import Package
from qeff_zoo.package.prepared import SCRIPT
from qeff_zoo.pipeline import make_plan
from qeff_zoo.plan.request import Request
from qeff_zoo.registry import list_recipes
from qeff_zoo.runtime.decoding import sampling
from qeff_zoo.runtime.program import Observed
from qeff_zoo.runtime.text import languages
from qeff_zoo.runtime.text.tokenizer import Tokenizer
from qeff_zoo.sessions import (
    TEMPERATURE_FALLBACK,
    SpeechSeq2SeqSession,
    Transcription,
    TranscriptionOptions,
    open_session,
)
from qeff_zoo.store import Store
from qeff_zoo.store.adoption import adopt
from qeff_zoo.tasks.speech import speech_windows
from qeff_zoo.tasks.speech import word_timestamps as speech_words
from qeff_zoo.tasks.speech.endpoints import SpeechQueue
from qeff_zoo.tasks.speech.speech_tokens import SpeechTokens
from qeff_zoo.tasks.speech.speech_windows import Recording
from qeff_zoo.validation import tiny_models
from qeff_zoo.validation.trial.sample_audio import voice

pytestmark = pytest.mark.turns(3)

__all__ = ["checkpoint", "model", "rt", "session", "whole"]
RATE = 16_000
RECIPES = [recipe for recipe in list_recipes() if recipe.task == "speech-seq2seq"]
CASES = {
    f"{recipe.model_type}-{tiny.name}": (recipe, tiny) for recipe in RECIPES for tiny in recipe.tiny
}


@pytest.fixture(scope="module")
def reference_output(checkpoint: Path) -> Any:
    return transformers.WhisperForConditionalGeneration.from_pretrained(
        checkpoint, attn_implementation="eager"
    ).eval()


def audio_encoded(checkpoint: Path, recording: Array) -> torch.Tensor:
    extract = transformers.WhisperFeatureExtractor.from_pretrained(checkpoint)
    made = extract(
        recording,
        sampling_rate=RATE,
        truncation=False,
        padding="max_length" if len(recording) <= RATE else "longest",
        return_tensors="pt",
    )
    features: torch.Tensor = made["input_features"]
    return features


def assert_same(found: Transcription, answer: Mapping[str, Any]) -> None:
    """Compare text and segments with what `generate` returned, whose times may lie outside the recording."""
    segments = answer["segments"][0]
    spoken, behind = segments[: len(found.segments)], segments[len(found.segments) :]
    assert all(one["start"] >= found.seconds for one in behind)
    tokens = [one["tokens"].tolist() for one in spoken]
    assert [list(segment.tokens) for segment in found.segments] == tokens
    assert found.text.split() == [f"w{token}" for part in tokens for token in part if token < EOS]
    ends = [
        min(max(float(one[end]), 0.0), found.seconds) for one in spoken for end in ("start", "end")
    ]
    assert [
        at for segment in found.segments for at in (segment.start, segment.end)
    ] == pytest.approx(ends)


SHORT, LONG = 14_000, 70_000
REQUESTED: Mapping[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "language told": (SHORT, {"language": "de"}, {"language": "de"}),
    "language detected": (SHORT, {"task": "transcribe"}, {"task": "transcribe"}),
    "translated": (
        SHORT,
        {"task": "translate", "language": "German"},
        {"task": "translate", "language": "german"},
    ),
    "with times": (
        SHORT,
        {"language": "en", "timestamps": True},
        {"language": "en", "return_timestamps": True},
    ),
    "long": (LONG, {"language": "en"}, {"language": "en", "return_timestamps": True}),
    "long, conditioned": (
        LONG,
        {"language": "en", "condition_on_previous": True},
        {"language": "en", "return_timestamps": True, "condition_on_prev_tokens": True},
    ),
    "long, few tokens": (
        LONG,
        {"language": "en", "generation_len": 7},
        {"language": "en", "return_timestamps": True, "max_new_tokens": 7},
    ),
    "prompted": (
        LONG,
        {"language": "en", "prompt": "w5 w6 w9"},
        {"language": "en", "return_timestamps": True},
    ),
}


@pytest.mark.parametrize("asked", REQUESTED)
@pytest.mark.sampled(3)
def test_text_and_times_are_those_of_generate(
    asked: str, session: SpeechSeq2SeqSession, reference_output: Any, checkpoint: Path
) -> None:
    """QEfficient begins without a language and a task, and suppresses nothing."""
    length, ours, given = REQUESTED[asked]
    recording = voice(length, RATE, length)
    if asked == "prompted":
        given = {**given, "prompt_ids": torch.tensor([PREVIOUS, 5, 6, 9])}
    with torch.no_grad():
        wanted = copy.deepcopy(reference_output).generate(
            audio_encoded(checkpoint, recording), return_segments=True, do_sample=False, **given
        )
    (found,) = session.transcribe(recording, **ours)
    assert_same(found, wanted)
    assert len(found.segments) > (3 if length == LONG else 0)


TWO_WINDOWS = 24_000
#: Files of older and of edited checkpoints: changes of config.json, and of generation_config.json, None for none.
OLD_CONFIG = {
    "forced_decoder_ids": [[1, ENGLISH], [2, TRANSCRIBE], [3, NO_TIMES]],
    "suppress_tokens": [3, 4],
    "begin_suppress_tokens": [11],
    "max_length": 30,
}
INCOMPLETE: Mapping[str, tuple[dict[str, Any], dict[str, Any] | None, int]] = {
    "no file": (OLD_CONFIG, None, SHORT),
    "no file and no length": ({}, None, SHORT),
    "no languages": ({}, {"lang_to_id": None, "task_to_id": None}, SHORT),
    "no first time": ({}, {"no_timestamps_token_id": None, "max_length": 24}, SHORT),
    "no length": ({}, {"max_length": None}, SHORT),
    "tokens beyond the vocabulary": (
        {},
        {"suppress_tokens": [-1, 3, 9999], "begin_suppress_tokens": [300, 11]},
        TWO_WINDOWS,
    ),
    "settings of config.json beside the file": (OLD_CONFIG, {"suppress_tokens": None}, SHORT),
    "neither language nor task": ({}, {}, SHORT),
    "a language and a task": ({}, {"language": "german", "task": "translate"}, SHORT),
    "times": ({}, {"return_timestamps": True, "condition_on_prev_tokens": True}, TWO_WINDOWS),
    "new tokens": ({}, {"max_new_tokens": 9}, TWO_WINDOWS),
    "processors": (
        {},
        {"no_repeat_ngram_size": 1, "bad_words_ids": [[8], [9, 10]], "forced_eos_token_id": EOS, "max_length": 20},
        SHORT,
    ),
    "penalties": (
        {},
        {"repetition_penalty": 1.6, "min_new_tokens": 7, "exponential_decay_length_penalty": [9, 2.0]},
        TWO_WINDOWS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("files", INCOMPLETE)
@pytest.mark.sampled(3)
def test_incomplete_files_are_read_as_by_generate(
    files: str,
    session: SpeechSeq2SeqSession,
    reference_output: Any,
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed, generation, length = INCOMPLETE[files]
    config = json.loads((checkpoint / "config.json").read_text()) | changed
    (tmp_path / "config.json").write_text(json.dumps(config))
    name, more = "config.json", {"_from_model_config": True}
    if generation is not None:
        name, more = "generation_config.json", {}
        known = {key: value for key, value in {**TOKENS, **generation}.items() if value is not None}
        (tmp_path / name).write_text(json.dumps(known))
    tokens = SpeechTokens.read(tmp_path, vocab_size=session.decoder.vocab_size)
    monkeypatch.setattr(session, "tokens", tokens)
    model = copy.deepcopy(reference_output)
    model.generation_config = transformers.GenerationConfig.from_pretrained(tmp_path, name, **more)
    model.config.forced_decoder_ids = changed.get("forced_decoder_ids")
    recording = voice(length, RATE, length)
    given = {"return_timestamps": True} if length > RATE else {}
    with torch.no_grad():
        wanted = model.generate(
            audio_encoded(checkpoint, recording), return_segments=True, pad_token_id=EOS, **given
        )
    (found,) = session.transcribe(recording)
    segments = wanted["segments"][0][: len(found.segments)]
    assert [[*segment.tokens] for segment in found.segments] == [
        segment["tokens"].tolist() for segment in segments
    ]
    words = [one for part in segments for one in part["tokens"].tolist() if one < EOS]
    assert found.text.split() == [f"w{word}" for word in words]


WRONG: Mapping[str, tuple[dict[str, Any], str]] = {
    "no end": ({"eos_token_id": None, "bos_token_id": 1}, "eos_token_id None"),
    "two ends": ({"eos_token_id": [EOS, 4]}, "eos_token_id \\[200, 4\\]"),
    "a gap": ({"forced_decoder_ids": [[1, None], [3, 5]]}, "tokens of all positions"),
    "a language without tokens": ({"language": "de", "lang_to_id": None}, "which it lacks"),
    "an unknown task": ({"task": "sing"}, "a task of its task_to_id"),
    "no list": ({"suppress_tokens": 4}, "suppress_tokens is 4; "),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_files_are_refused_by_the_plan(what: str, checkpoint: Path, tmp_path: Path) -> None:
    settings, message = WRONG[what]
    folder = shutil.copytree(checkpoint, tmp_path / "whisper")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": None}))
    known = {key: value for key, value in {**TOKENS, **settings}.items() if value is not None}
    (folder / "generation_config.json").write_text(json.dumps(known))
    with pytest.raises(PlanError, match=message):
        make_plan(str(folder), Request())


# --- on Cloud AI 100 --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def carded(session: SpeechSeq2SeqSession, checkpoint: Path, tmp_path_factory: Any) -> Path:
    """Prepare, with graphs that are traced already, and compile by the stub."""
    folder: Path = tmp_path_factory.mktemp("cards") / "prepared"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QEFF_HOME", str(session.folder.parents[3]))
        request = Request(target="qaic", batch_size=2, prefill_seq_len=8)
        pipeline.prepare(str(checkpoint), folder, request=request)
    compiled(folder, folder.parent)
    return folder


@pytest.mark.full
def test_programs_for_cards_have_the_names_of_qefficient(carded: Path) -> None:
    decoder, encoder, alignment = emulated(carded)["programs"]
    names = [f"past_{what}_{whose}.0" for whose in ("self", "cross") for what in ("key", "value")]
    assert {
        state["name"]: state["dtype"] for state in decoder["states"] if state["layer"] == 0
    } == dict.fromkeys(names, "float16")
    assert [one["name"] for one in encoder["inputs"]] == ["input_features"]
    assert [output["name"] for output in encoder["outputs"]][:2] == names[2:]
    assert [one["name"] for one in alignment["inputs"]][:3] == ["input_ids", *names[2:]]
    assert "-split-retained-state-io" in (carded / SCRIPT).read_text()
    halves = (carded / "encoder.custom_io.yaml").read_text()
    assert halves.count("Precision: float16") == len(encoder["outputs"])


@pytest.mark.full
def test_cards_write_what_generate_does(
    carded: Path,
    checkpoint: Path,
    session: SpeechSeq2SeqSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    """Three share two rows; of the decoder's states cards are given those alone that an encoder has made."""
    package = adopt(carded, carded / "qpc", Store(tmp_path))
    on_cards = open_session(package)
    assert isinstance(on_cards, SpeechSeq2SeqSession)
    recordings = [voice(length, RATE, length) for length in (SHORT, LONG, 30_000)]
    for requested in ({}, {"language": "de"}, {"timestamps": True}, {"word_timestamps": True}):
        choices = {**requested, "generation_len": 12}
        found, wanted = (one.transcribe(recordings, **choices) for one in (on_cards, session))
        for ours, reference in zip(found, wanted, strict=True):
            assert (ours.text, ours.words, ours.language) == (
                reference.text,
                reference.words,
                reference.language,
            )
            tokens = ([part.tokens for part in one.segments] for one in (ours, reference))
            assert [*next(tokens)] == [*next(tokens)]
    ends = [[part.end for part in one.stream(recordings[1])] for one in (on_cards, session)]
    assert ends[0] == ends[1]
    model = object.__new__(qeff_zoo.QEFFAutoModelForSpeechSeq2Seq)
    monkeypatch.setattr(type(model), "_opened", lambda *_: on_cards)
    (wanted,) = session.transcribe(recordings[0], generation_len=12)
    given = {"input_features": audio_encoded(checkpoint, recordings[0])}
    assert model.generate(given, generation_len=12).generated_texts == [wanted.text]
    path = tmp_path / "speech.wav"
    soundfile.write(path, recordings[0], RATE, subtype="FLOAT")
    (wanted,) = on_cards.transcribe(path, **TEMPERATURE_FALLBACK, seed=0)
    with (
        closing(SpeechQueue(on_cards, max_waiting=4)) as queue,
        running(queue) as served,
        connect(served) as client,
    ):
        settings = {"model": MODEL, "file": ("speech.wav", path.read_bytes())}
        assert client.audio.transcriptions.create(**settings).text == wanted.text
    assert main(["serve-args", str(package.path)]) == 1
    assert "all that vllm-qaic runs of such models" in capsys.readouterr().err


# --- times of words --------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [SHORT, LONG])
def test_times_of_tokens_are_those_of_generate(
    length: int,
    session: SpeechSeq2SeqSession,
    reference_output: Any,
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported: list[float] = []
    end = Recording.end

    def note(self: Any, window: Any, times: Any = ()) -> Any:
        offset = self._at * self._step
        found = end(self, window, times)
        taken = sum(len(one.tokens) for one in found)  # what was begun and not ended is not
        reported.extend([offset + one for one in (*times, *times[-1:])][:taken])
        return found

    monkeypatch.setattr(Recording, "end", note)
    recording = voice(length, RATE, length)
    (found,) = session.transcribe(recording, language="en", generation_len=12, word_timestamps=True)
    made = transformers.WhisperFeatureExtractor.from_pretrained(checkpoint)(
        recording,
        sampling_rate=RATE,
        truncation=False,
        padding="max_length" if length <= RATE else "longest",
        return_attention_mask=True,
        return_tensors="pt",
    )
    with torch.no_grad():
        answer = copy.deepcopy(reference_output).generate(
            **made,
            language="en",
            max_new_tokens=12,
            return_timestamps=True,
            return_token_timestamps=True,
            return_segments=True,
        )
    spoken = answer["segments"][0][: len(found.segments)]
    wanted = [at for one in spoken for at in one["token_timestamps"].tolist()]
    assert reported == pytest.approx(wanted, abs=1e-3)
    assert len({*wanted}) > len(wanted) / 4
    (plain,) = session.transcribe(recording, language="en", generation_len=12, timestamps=True)
    assert (plain.words, plain.segments) == ((), found.segments)
    assert " ".join(word.text for word in found.words).replace(" ", "") == found.text.replace(
        " ", ""
    )
    assert all(0 <= word.start <= word.end <= found.seconds for word in found.words)


def test_the_path_through_weights_is_that_of_transformers() -> None:
    random = np.random.default_rng(0)
    for rows, columns in ((1, 1), (1, 9), (7, 40), (40, 7), (30, 300)):
        costs = random.standard_normal((rows, columns)).round(1)  # some are equal
        wanted = generation_whisper._dynamic_time_warping(costs)
        for ours, one in zip(speech_words._warp(costs), wanted, strict=True):
            assert ours.tolist() == one.tolist()
    values = random.standard_normal((2, 3, 20)).astype(np.float32)
    smooth = generation_whisper._median_filter(torch.from_numpy(values)[None], 7)[0]
    assert np.array_equal(speech_words._smooth(values, 7), smooth.numpy())
    assert speech_words.times_of(np.ones((2, 1, 5), np.float32), 7) == [0.0]


@pytest.mark.parametrize(
    ("code", "language"), [("en", "english"), ("ja", "japanese"), (None, None)]
)
def test_words_are_cut_as_by_transformers(code: str | None, language: str | None) -> None:
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    bytewise = tokenizers.Tokenizer(
        tokenizers.models.BPE({one: at for at, one in enumerate(alphabet)}, [])
    )
    bytewise.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = tokenizers.decoders.ByteLevel()
    shown = SimpleNamespace(
        language=None, eos_token_id=999, decode=lambda ids, **_: bytewise.decode(ids)
    )
    for text in (' He said: "Well, (now)... don\'t!" - na\u00efve', " \u65e5\u672c\u3002 ok", " a"):
        tokens = bytewise.encode(text).ids
        words, _, places = tokenization_whisper._combine_tokens_into_words(shown, tokens, language)
        found = speech_words.words_of(
            tokens, [(at, at + 1) for at in range(len(tokens))], bytewise.decode, code
        )
        assert [(one.text, one.start, one.end) for one in found] == [
            (word.strip(), at[0], at[-1] + 1) for word, at in zip(words, places, strict=True)
        ]


# --- falling back to other temperatures -------------------------------------------------------------


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let both draw the likeliest token, so that what was drawn can be compared."""
    monkeypatch.setattr(torch, "multinomial", lambda shares, **_: shares.argmax(-1, keepdim=True))
    monkeypatch.setattr(sampling, "_reach", lambda shares, _: int(shares.argmax()))


@pytest.fixture
def judged(reference_output: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, ...]]:
    """Note of each attempt of `generate` its temperature, and what it is judged by."""
    noted: list[tuple[float, ...]] = []
    judge = type(reference_output)._need_fallback

    def note(self: Any, tokens: Any, outputs: Any, *given: Any) -> Any:
        *_, detectors, _, _, temperature = given
        mean = self._retrieve_avg_logprobs(outputs[0]["scores"], tokens, temperature)
        silence = next(
            detector for detector in detectors if hasattr(detector, "no_speech_prob")
        ).no_speech_prob
        noted.append((temperature, float(mean), float(silence[0])))
        return judge(self, tokens, outputs, *given)

    monkeypatch.setattr(type(reference_output), "_need_fallback", note)
    return noted


TEMPERATURES = (0.0, 0.3, 0.6)
JUDGED: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "doubted": ({}, {}),
    "repeated": ({"compression_ratio_threshold": 1.45}, {"compression_ratio_threshold": 1.45}),
    "conditioned": ({"condition_on_previous": True}, {"condition_on_prev_tokens": True}),
}


@pytest.mark.usefixtures("steady")
@pytest.mark.parametrize("how", JUDGED)
def test_temperature_fallback_and_silence_are_those_of_generate(
    how: str,
    session: SpeechSeq2SeqSession,
    reference_output: Any,
    checkpoint: Path,
    judged: list[tuple[float, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recording, (ours, given) = voice(LONG, RATE, LONG), JUDGED[how]
    limits = {"logprob_threshold": -1.8, "no_speech_threshold": 0.004}
    tried: list[tuple[float, ...]] = []
    again = Recording.again

    def note(self: Any, window: Any) -> bool:
        temperature = TEMPERATURES[window.attempt]
        tried.append((temperature, window.avg_logprob, window.no_speech_prob))
        return again(self, window)

    monkeypatch.setattr(Recording, "again", note)
    (found,) = session.transcribe(
        recording, language="en", generation_len=12, temperature=TEMPERATURES, **limits, **ours
    )
    with torch.no_grad():
        wanted = copy.deepcopy(reference_output).generate(
            audio_encoded(checkpoint, recording),
            return_segments=True,
            return_timestamps=True,
            language="en",
            max_new_tokens=12,
            temperature=TEMPERATURES,
            top_k=0,
            **limits,
            **given,
        )
    assert_same(found, wanted)
    assert np.array(tried) == pytest.approx(np.array(judged[: len(tried)]), abs=1e-4)
    assert {one for one, _, _ in tried} == {*TEMPERATURES}
    left_out = [one for one in tried if one[1] < -1.8 and one[2] > 0.004]
    assert 0 < len(left_out) < len(tried)


def test_temperature_fallback_repeats_with_a_seed(session: SpeechSeq2SeqSession) -> None:
    recording, choices = (
        voice(30_000, RATE, 1),
        {"language": "en", **TEMPERATURE_FALLBACK, "no_speech_threshold": None},
    )
    one, same, other = (
        session.transcribe(recording, seed=seed, **choices)[0] for seed in (1, 1, 2)
    )
    assert one == same != other
    assert {part.temperature for part in one.segments} == {
        1.0
    }  # of a model that doubts all it says


# --- the model, in PyTorch: where this fails, a transform or a seam is wrong, not the trace ---------


@cache
def subject(name: str) -> Subject:
    recipe, tiny = CASES[name]
    return Subject(tiny_models.config_of(recipe, tiny), recipe)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(4, kept=selection.first_tinies())
def test_what_is_traced_agrees_with_hugging_face(name: str) -> None:
    of = subject(name)
    recordings = recordings_for(of)
    tokens = torch.randint(3, 200, (2, 7), generator=torch.Generator().manual_seed(2))
    wanted = expected_of(of.hf, recordings, tokens)
    noise = np.abs(wanted - expected_of(of.hf64, recordings, tokens)).max()
    got = steps_of(of.transformed, recordings, tokens)
    assert np.abs(got - wanted[:, ENDS]).max() <= parity.TOLERANCE["torch"] * noise


def _silent(model: Any) -> None:
    for layer in model.get_decoder().layers:
        layer.encoder_attn.out_proj.weight.zero_()


def _unheard(model: Any) -> None:
    for layer in model.get_decoder().layers:
        layer.encoder_attn.o_proj.weight.zero_()


def _unplaced(model: Any) -> None:
    model.get_decoder().embed_positions.weight.zero_()


def _unscaled(model: Any) -> None:
    model.get_decoder().layers[0].encoder_attn.scaling = 1.0


def _unrotated(model: Any) -> None:
    model.get_encoder().rotary_emb.inv_freq.zero_()


def _unplaced_audio(model: Any) -> None:
    model.get_encoder().embed_positions.weights.zero_()


FACTS: Mapping[str, tuple[str, Callable[[Any], None]]] = {
    "what was heard": ("whisper-base", _silent),
    "positions of tokens": ("whisper-base", _unplaced),
    "scale of cross-attention": ("whisper-base", _unscaled),
    "moonshine: what was heard": ("moonshine-padded", _unheard),
    "moonshine: positions of sound": ("moonshine-base", _unrotated),
    "speech_to_text: positions of sound": ("speech_to_text-base", _unplaced_audio),
}


@pytest.mark.parametrize("fact", FACTS)
def test_dropped_fact_shows(fact: str) -> None:
    name, change = FACTS[fact]
    of = subject(name)
    other = copy.deepcopy(of.hf)
    with torch.no_grad():
        change(other)
    recordings = recordings_for(of)
    tokens = torch.randint(3, 200, (2, 7), generator=torch.Generator().manual_seed(2))
    wanted = expected_of(of.hf, recordings, tokens)
    noise = np.abs(wanted - expected_of(of.hf64, recordings, tokens)).max()
    moved = np.abs(expected_of(other, recordings, tokens) - wanted).max()
    assert moved > parity.DROPPED * parity.TOLERANCE["torch"] * noise


# --- recordings ------------------------------------------------------------------------------------


def test_several_of_different_lengths_are_each_as_alone(session: SpeechSeq2SeqSession) -> None:
    """More than there are rows, so that windows of one join while others go on.

    QEfficient ends all rows where the first has ended.
    """
    recordings = [voice(length, RATE, length) for length in (40_000, 9000, 23_000)]
    audio_of: list[tuple[int, str]] = []
    together = session.transcribe(
        recordings, timestamps=True, listen=lambda number, one: audio_of.append((number, one.text))
    )
    for number, (recording, one) in enumerate(zip(recordings, together, strict=True)):
        (alone,) = session.transcribe(recording, timestamps=True)
        assert (alone.text, alone.language, alone.seconds) == (one.text, one.language, one.seconds)
        assert [part.tokens for part in alone.segments] == [part.tokens for part in one.segments]
        settings = [text for which, text in audio_of if which == number]
        assert settings == [part.text for part in one.segments]


def test_no_token_is_run_twice(
    session: SpeechSeq2SeqSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """QEfficient runs the first one a second time."""
    ran: list[int] = []

    def note(inputs: Mapping[str, Array], *_: object) -> None:
        ran.extend(inputs["position_ids"][inputs["position_ids"] >= 0].tolist())

    monkeypatch.setattr(session.decoder, "program", Observed(session.decoder.program, note))
    (found,) = session.transcribe(voice(SHORT, RATE, SHORT), language="en")
    assert len(ran) > len(found.segments[0].tokens)
    assert ran == [*range(len(ran))]


def test_segments_are_given_as_they_end(session: SpeechSeq2SeqSession) -> None:
    recording = voice(50_000, RATE, 5)
    (whole,) = session.transcribe(recording, language="en")
    stream = session.stream(recording, language="en")
    assert next(stream) == whole.segments[0]
    stream.close()
    assert tuple(session.stream(recording, language="en")) == whole.segments  # it is free again


def test_drawn_tokens_repeat_with_a_seed(session: SpeechSeq2SeqSession) -> None:
    recording, choices = voice(9000, RATE, 1), TranscriptionOptions(language="en", temperature=1.0)
    one, same, other = (
        session.transcribe(recording, choices=choices, seed=seed)[0] for seed in (1, 1, 2)
    )
    assert one == same != other
    assert one.segments[0].temperature == 1.0
    never = {*TOKENS["suppress_tokens"]} - {NO_TIMES}
    assert not never & {*one.segments[0].tokens, *other.segments[0].tokens}


def test_silence_and_a_click_are_written_down_without_harm(session: SpeechSeq2SeqSession) -> None:
    for recording in (np.zeros(8000, np.float32), np.ones(5, np.float32)):
        (found,) = session.transcribe(recording, language="en")
        assert all(0 <= segment.start <= segment.end <= found.seconds for segment in found.segments)


REFUSED: Mapping[str, tuple[dict[str, Any], str]] = {
    "a language that it does not know": ({"language": "fr"}, "expected one of de, en"),
    "a task that there is none of": ({"task": "sing"}, "transcribe or translate"),
    "a translation into another than English": ({"target_language": "de"}, "into which alone"),
    "a translation that is none": (
        {"task": "transcribe", "target_language": "en"},
        "expected one of the two",
    ),
    "no tokens": ({"generation_len": 0}, "at least 1"),
    "a temperature below 0": ({"temperature": -1.0}, "0 to 1,000,000"),
    "a temperature beyond all": ({"temperature": 1e300}, "0 to 1,000,000"),
    "words without times": ({"timestamps": False, "word_timestamps": True}, "expected both"),
    "no temperature": ({"temperature": ()}, "at least one number"),
    "temperatures that nothing asks for": ({"temperature": (0.0, 1.0)}, "nothing says when"),
    "silence that nothing doubts": ({"no_speech_threshold": 0.6}, "without logprob_threshold"),
    "a threshold that is no number": ({"logprob_threshold": float("nan")}, "expected a number"),
    "a long one without times": ({"timestamps": False}, "at most 1 without timestamps"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals(what: str, session: SpeechSeq2SeqSession) -> None:
    given, message = REFUSED[what]
    with pytest.raises(GenerationError, match=message):
        session.transcribe(voice(LONG, RATE, 0), **given)


def test_what_cannot_be_read_is_refused(session: SpeechSeq2SeqSession) -> None:
    with pytest.raises(MediaError, match="0 samples"):
        session.transcribe(np.zeros(0, np.float32))


def test_a_model_of_one_language_takes_english_and_no_other(
    session: SpeechSeq2SeqSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = replace(session.tokens, languages={}, tasks={}, forced=[NO_TIMES])
    monkeypatch.setattr(session, "tokens", alone)
    recording = voice(SHORT, RATE, 0)
    assert session.transcribe(recording, language="English")[0].language is None
    with pytest.raises(GenerationError, match="knows one language only"):
        session.transcribe(recording, language="de")
    with pytest.raises(GenerationError, match="only writes down"):
        session.transcribe(recording, task="translate")
    assert alone.beginning(None, None, times=False) == (START, NO_TIMES)
    assert alone.beginning(None, None, times=True) == (START,)


def test_older_packages_have_the_begin_tokens(checkpoint: Path, tmp_path: Path) -> None:
    settings = {**TOKENS, "forced_decoder_ids": [[1, None], [2, TRANSCRIBE], [3, NO_TIMES]]}
    del settings["prev_sot_token_id"]
    (tmp_path / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    tokens = SpeechTokens.read(tmp_path)
    assert tokens.needs_language(None, None)
    assert tokens.beginning(GERMAN, None, times=True) == (START, GERMAN, TRANSCRIBE)
    assert tokens.beginning(GERMAN, None, times=False) == (START, GERMAN, TRANSCRIBE, NO_TIMES)
    assert tokens.beginning(GERMAN, "translate", times=True) == (START, GERMAN, TRANSLATE)
    assert tokens.before == TOKENS["suppress_tokens"][-2]


def test_the_command_writes_text_times_and_json(
    session: SpeechSeq2SeqSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, package = str(tmp_path / "speech.wav"), str(session.folder)
    soundfile.write(path, voice(40_000, RATE, 3), RATE)
    (wanted,) = session.transcribe(path, language="de")
    assert main(["run", package, path, "--language", "de"]) == 0
    assert capsys.readouterr().out.strip() == wanted.text
    assert main(["run", package, path, "--language", "german", "--timestamps"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(wanted.segments) + 2
    assert main(["run", package, path, "--generation-len", "6", "--word-timestamps"]) == 0
    assert "word" in capsys.readouterr().out
    (again,) = session.transcribe(
        path, language="de", **TEMPERATURE_FALLBACK, seed=3, generation_len=6
    )
    given = ["--language", "de", "--temperature-fallback", "--seed", "3", "--generation-len", "6"]
    assert main(["run", package, path, *given]) == 0
    assert capsys.readouterr().out.strip() == again.text
    assert main(["run", package, path, "--temperature-fallback", "--temperature", "0.5"]) == 1
    assert "does not go with --temperature-fallback" in capsys.readouterr().err
    assert main(["run", package, path, "--target-language", "de"]) == 1
    assert "into which alone" in capsys.readouterr().err
    assert main(["run", package, path, "--target-language", "en", "--json"]) == 0
    into_english = json.loads(capsys.readouterr().out)
    assert main(["run", package, path, "--translate", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["segments"][0]["tokens"]
    assert found == into_english
    assert found["language"] in ("en", "de")


def test_bench_measures_a_recording_or_noise(
    session: SpeechSeq2SeqSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package, path = Package.open(session.folder), tmp_path / "speech.wav"
    soundfile.write(path, voice(LONG, RATE, LONG), RATE)
    command = ["bench", str(session.folder), "--threads", "1", "--repeat", "1", "-q"]
    assert main([*command, "--language", "en", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["batch_size"], one["audio_s"]) for one in found] == [(1, 1.0), (2, 1.0)]
    assert all(0 < one["ttft_s"] < one["total_s"] for one in found)

    (case,) = bench.plan_speech(package, batch_sizes=[2], generation_len=7, audio=[str(path)])
    run = bench_case.transcribe_once(session, case, 0)
    (wanted,) = session.transcribe(path, generation_len=7)
    assert run["audio_s"] == LONG / RATE
    assert run["generated_tokens"] == 2 * session.timings.decode_tokens
    assert run["generated_tokens"] >= 2 * sum(len(segment.tokens) for segment in wanted.segments)
    assert run["total_s"] == pytest.approx(2 * LONG / RATE * run["real_time_factor"])
    decoding = run["generated_tokens"] / run["decode_tokens_per_s"]
    assert 0 < run["ttft_s"] < run["total_s"] > decoding


def test_bench_refuses_before_it_measures(
    session: SpeechSeq2SeqSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench, "run", lambda *_, **__: pytest.fail("measured"))
    (tmp_path / "damaged.wav").write_bytes(b"RIFF")
    with pytest.raises(GenerationError, match="Use plan_speech"):
        bench.plan(Package.open(session.folder))
    for given, output in (
        (["--prompt-len", "4"], "--prompt-len does not apply to speech-seq2seq"),
        (["--image", "a.png"], "--image does not apply"),
        (["--draft", "lookup"], "--draft does not apply"),
        (["--plot", "plot.png"], "--plot does not apply"),
        (["--batch-size", "3"], "A batch of 3 is more than the package has rows"),
        (["--generation-len", "0"], "generation_len 0; expected at least 1"),
        (["--audio", "a.wav", "--audio", "b.wav"], "There are 2 recordings"),
        (["--audio", str(tmp_path / "damaged.wav")], "damaged.wav"),
    ):
        assert main(["bench", str(session.folder), *given]) == 1
        assert output in capsys.readouterr().err


@pytest.mark.parametrize("bins", [80, 128])
def test_features_are_those_of_transformers(bins: int) -> None:
    extract = transformers.WhisperFeatureExtractor(feature_size=bins)
    ours = features.find(json.loads(extract.to_json_string()))
    recording = voice(500_123, RATE, bins)
    wanted = extract._np_extract_fbank_features(recording[None], "cpu")[0]
    assert np.abs(ours.compute(recording).T - wanted).max() < 2e-5  # its torch path is 4e-5 away


def test_languages_are_those_of_whisper() -> None:
    from transformers.models.whisper.tokenization_whisper import LANGUAGES, TO_LANGUAGE_CODE

    assert {code: languages.name_of(code) for code in LANGUAGES} == LANGUAGES
    assert {name: languages.code_of(name) for name in TO_LANGUAGE_CODE} == TO_LANGUAGE_CODE


# --- sounds of any length --------------------------------------------------------------------------


@pytest.mark.full
def test_text_of_kaldis_features_is_that_of_generate(tmp_path: Path) -> None:
    """Two of different lengths run together; each has the text that it has alone."""
    extract = transformers.Speech2TextFeatureExtractor(feature_size=16, num_mel_bins=16)
    session, reference = audio_model(
        tmp_path / "speech", "speech_to_text-unscaled", extract, tmp_path / "store", 100, 200
    )
    recordings = [voice(length, RATE, length) for length in (31_999, 9000)]
    texts = []
    for recording, one in zip(recordings, session.transcribe(recordings), strict=True):
        audio = extract(recording, sampling_rate=RATE, return_tensors="pt")
        with torch.no_grad():
            answer = reference.generate(**audio, do_sample=False)[0, 1:]
        tokens = [token for part in one.segments for token in part.tokens]
        assert tokens == [token for token in answer.tolist() if token != 2]
        assert one.text.split() == [f"w{token}" for token in tokens]
        texts.append(one.text)
    assert all(texts)
    assert texts[0] != texts[1]
    with pytest.raises(GenerationError, match="expected at most 2"):
        session.transcribe(voice(40 * RATE, RATE, 1))
    case = bench.SpeechCase(batch_size=2, generation_len=4, threads=1)
    assert 1.9 < bench_case.transcribe_once(session, case, 0)["audio_s"] < 2.1


def test_text_of_audio_of_any_length_equals_generate(whole: Any) -> None:
    """Three share two rows; each has the text that it has alone."""
    session, reference = whole
    recordings = [voice(length, RATE, length) for length in (31_999, 5000, 17_123)]
    found = session.transcribe(recordings)
    for recording, one in zip(recordings, found, strict=True):
        with torch.no_grad():
            answer = reference.generate(torch.from_numpy(recording[None]), do_sample=False)[0, 1:]
        tokens = [token for part in one.segments for token in part.tokens]
        assert tokens == [token for token in answer.tolist() if token != 2]
        assert one.text.split() == [f"w{token}" for token in tokens]
        assert [(part.start, part.end) for part in one.segments] == [
            (0.0, pytest.approx(one.seconds))
        ]


def test_audio_of_any_length_has_an_end(whole: Any) -> None:
    session, _ = whole
    for recording in (np.zeros(8000, np.float32), np.ones(5, np.float32)):
        (found,) = session.transcribe(recording)
        assert found.seconds == len(recording) / RATE
    stereo = np.stack([voice(9000, RATE, 1)] * 2, 1)
    assert session.transcribe(stereo)[0].text == session.transcribe(stereo[:, 0])[0].text
    with pytest.raises(GenerationError, match=r"40.0 seconds; expected at most 2.0"):
        session.transcribe(voice(40 * RATE, RATE, 1))
    with pytest.raises(MediaError, match="0 samples"):
        session.transcribe(np.zeros(0, np.float32))
    with pytest.raises(GenerationError, match="returns no times"):
        session.transcribe(stereo, timestamps=True)
    with pytest.raises(GenerationError, match="knows one language only"):
        session.transcribe(stereo, language="de")


def test_the_command_and_the_server_take_audio_of_any_length(
    whole: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session, _ = whole
    path, package = tmp_path / "speech.wav", str(session.folder)
    soundfile.write(path, voice(20_000, RATE, 3), RATE)
    (wanted,) = session.transcribe(path)
    assert main(["run", package, str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == wanted.text
    case = bench.SpeechCase(batch_size=2, generation_len=4, threads=1)
    assert bench_case.transcribe_once(session, case, 0)["audio_s"] == 2.0
    with (
        closing(SpeechQueue(session, max_waiting=4)) as queue,
        running(queue) as served,
        connect(served) as client,
    ):
        given = {"model": MODEL, "file": ("speech.wav", path.read_bytes())}
        answer = client.audio.transcriptions.create(**given, response_format="verbose_json")
        assert [(segment.start, segment.end, segment.text) for segment in answer.segments] == [
            (0.0, 1.25, wanted.text)
        ]
        assert client.audio.transcriptions.create(**given).text == wanted.text
        samples, _ = soundfile.read(path)
        phone = ("memo.m4a", recording_in(samples, RATE, "ipod", "alac"))
        made = client.audio.transcriptions.create(model=MODEL, file=phone, chunking_strategy="auto")
        assert made.text == wanted.text
        words = {"response_format": "verbose_json", "timestamp_granularities": ["word"]}
        with pytest.raises(openai.BadRequestError, match="asks for words"):
            client.audio.transcriptions.create(**given, **words)
    with pytest.raises(GenerationError, match="returns no times of words"):
        session.transcribe(path, word_timestamps=True)


def test_qefficients_class_cuts_what_a_processor_padded(whole: Any) -> None:
    session, _ = whole
    model = object.__new__(qeff_zoo.QEFFAutoModelForSpeechSeq2Seq)
    recordings = [voice(9000, RATE, 1), voice(4000, RATE, 2)]
    extract = transformers.Wav2Vec2FeatureExtractor(do_normalize=False, return_attention_mask=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(model), "_opened", lambda *_: session)
        given = extract(recordings, sampling_rate=RATE, padding=True, return_tensors="pt")
        info = model.generate(given)
    assert info.generated_texts == [one.text for one in session.transcribe(recordings)]


def test_pieces_are_text_again(tmp_path: Path) -> None:
    """A tokenizer of SentencePiece's pieces needs no library to be read."""
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "\u2581so", "me", "\u2581thing", "<lang:de>"]
    (tmp_path / "vocab.json").write_text(json.dumps({piece: at for at, piece in enumerate(pieces)}))
    companions._convert_pieces(tmp_path)
    found = Tokenizer.find(tmp_path)
    assert found is not None
    assert found.decode([7, 4, 5, 6, 2]) == "some thing"


# --- QEfficient's class, and OpenAI's API --------------------------------------------------------


def test_qefficients_class_takes_what_a_processor_returns(
    model: qeff_zoo.QEFFAutoModelForSpeechSeq2Seq, checkpoint: Path, session: SpeechSeq2SeqSession
) -> None:
    recording, choices = voice(SHORT, RATE, SHORT), TranscriptionOptions(language="en")
    (wanted,) = session.transcribe(recording, choices=choices)
    info = model.generate({"input_features": audio_encoded(checkpoint, recording)}, choices=choices)
    assert info.generated_texts == [wanted.text]
    assert info.generated_ids == [
        [token for segment in wanted.segments for token in segment.tokens]
    ]
    assert info.perf_metrics.total_time > info.perf_metrics.prefill_time > 0
    few = model.generate([recording, recording], generation_len=3, choices=choices)
    assert [len(ids) for ids in few.generated_ids] == [3, 3]
    with pytest.raises(GenerationError, match="expected input_features"):
        model.generate({"input_ids": np.zeros((1, 4))})


def test_qefficients_class_compiles_for_windows_of_the_models_length(
    model: qeff_zoo.QEFFAutoModelForSpeechSeq2Seq, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[Any] = []
    monkeypatch.setattr(model, "_compile", lambda *given: requested.append(given) or "")
    model.compile(batch_size=1, encoder_ctx_len=50, ctx_len=25, num_cores=16)
    assert requested[0][2]["ctx_len"] == 25
    with pytest.raises(PlanError, match="50 positions"):
        model.compile(encoder_ctx_len=1500)


@pytest.fixture(scope="module")
def url(session: SpeechSeq2SeqSession) -> Iterator[str]:
    with closing(SpeechQueue(session, max_waiting=4)) as queue, running(queue) as served:
        yield served


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with connect(url) as opened:
        yield opened


@pytest.fixture(scope="module")
def wave() -> bytes:
    file = BytesIO()
    soundfile.write(file, voice(18_000, RATE, 3), RATE, format="WAV")
    return file.getvalue()


def test_a_short_recording_is_transcribed_between_windows_of_a_long_one(
    client: openai.OpenAI,
    session: SpeechSeq2SeqSession,
    wave: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And each says what it does alone."""
    file = BytesIO()
    soundfile.write(file, voice(12 * RATE, RATE, 4), RATE, format="FLAC")
    alone = send_request(client, wave).text
    ends = list[int]()
    end = Recording.end

    def note(self: Any, *given: Any) -> Any:
        ends.append(len(self))
        return end(self, *given)

    monkeypatch.setattr(Recording, "end", note)
    with ThreadPoolExecutor() as clients:
        long = clients.submit(send_request, client, file.getvalue())
        while not ends:
            time.sleep(0.001)
        assert send_request(client, wave).text == alone
        assert not long.done()
        long.result()
    longest = max(ends)
    (first, *_) = (place for place, length in enumerate(ends) if length < longest)
    assert ends[first:].count(longest) > 4  # most of the long one came later


def send_request(client: openai.OpenAI, wave: bytes, **choices: Any) -> Any:
    return client.audio.transcriptions.create(
        model=MODEL, file=("speech.wav", wave), **{"language": "en", **choices}
    )


@pytest.mark.filterwarnings("ignore:deprecated")  # by its author, of translations
def test_every_form_of_a_transcription(
    client: openai.OpenAI, wave: bytes, session: SpeechSeq2SeqSession
) -> None:
    (greedy,) = session.transcribe(wave, language="en", timestamps=True)
    drawn = {**TEMPERATURE_FALLBACK, "seed": 0}  # as OpenAI does where no temperature is given
    (wanted,) = session.transcribe(wave, language="en", **drawn)
    assert wanted.text != greedy.text
    assert (
        send_request(client, wave).text
        == send_request(client, wave, temperature=0).text
        == wanted.text
    )
    assert send_request(client, wave, response_format="text").strip() == wanted.text
    whole = send_request(client, wave, response_format="verbose_json")
    assert (whole.language, whole.duration) == ("english", 1.125)
    assert [(one.start, one.end, one.text) for one in whole.segments] == [
        (one.start, one.end, one.text) for one in wanted.segments
    ]
    judged = ("avg_logprob", "compression_ratio", "no_speech_prob", "temperature")
    for segment, same in zip(whole.segments, wanted.segments, strict=True):
        assert [getattr(segment, name) for name in judged] == [
            getattr(same, name) for name in judged
        ]
    both = send_request(
        client, wave, response_format="verbose_json", timestamp_granularities=["word", "segment"]
    )
    (timed,) = session.transcribe(wave, language="en", word_timestamps=True, **drawn)
    assert [(word.word, word.start, word.end) for word in both.words] == [
        (word.text, word.start, word.end) for word in timed.words
    ]
    assert len(both.segments) == len(timed.segments)
    first = wanted.segments[0]
    srt = send_request(client, wave, response_format="srt")
    assert srt.startswith(f"1\n00:00:00,{round(first.start * 1000):03} --> 00:00:")
    assert srt.count(" --> ") == len(wanted.segments)
    vtt = send_request(client, wave, response_format="vtt")
    assert vtt.startswith("WEBVTT\n\n00:00:00.")
    events = list(send_request(client, wave, stream=True))
    deltas = [event.delta for event in events if event.type == "transcript.text.delta"]
    assert " ".join("".join(deltas).split()) == " ".join(
        " ".join(one.text for one in wanted.segments).split()
    )
    assert events[-1].text == wanted.text
    translated = client.audio.translations.create(
        model=MODEL, file=("speech.wav", wave), response_format="verbose_json"
    )
    (english,) = session.transcribe(wave, task="translate", timestamps=True, **drawn)
    assert (translated.text, translated.language) == (english.text, "english")
    with pytest.raises(openai.BadRequestError, match="is for translations"):
        send_request(client, wave, extra_body={"target_language": "en"})
    with pytest.raises(openai.BadRequestError, match="into which alone"):
        client.audio.translations.create(
            model=MODEL, file=("a.wav", wave), extra_body={"to_language": "de"}
        )
    few = {"seed": 3, "max_completion_tokens": 4}
    (cut,) = session.transcribe(wave, language="en", temperature=1.0, seed=3, generation_len=4)
    assert cut.text != wanted.text
    assert send_request(client, wave, temperature=1.0, extra_body=few).text == cut.text
    again = send_request(client, wave, extra_body=few).text
    (cut,) = session.transcribe(wave, language="en", **{**drawn, "seed": 3}, generation_len=4)
    assert again == cut.text


BAD: Mapping[str, tuple[dict[str, Any], str]] = {
    "another model": ({"model": "other"}, "There is no model"),
    "half a token": ({"extra_body": {"max_completion_tokens": "0.5"}}, "a whole number from 1"),
    "a form that there is none of": ({"response_format": "xml"}, "response_format"),
    "a language that it does not know": ({"language": "fr"}, "expected one of de, en"),
    "no recording": ({"file": ("a.wav", b"no sound")}, "The recording cannot be read"),
    "an empty file": ({"file": ("a.wav", b"")}, "The recording is empty"),
    "a temperature beyond OpenAI's": ({"temperature": 1.5}, "expected a number from 0 to 1"),
    "a temperature that is no number": (
        {"temperature": float("nan")},
        "'temperature' is 'nan'; expected a number",
    ),
    "times of what has none": (
        {"timestamp_granularities": ["word"]},
        r"is \['word'\]; expected segment or word, with response_format verbose_json. Change it",
    ),
    "subtitles as a stream": ({"response_format": "srt", "stream": True}, "stream"),
    "chunks of another rule": ({"extra_body": {"chunking_strategy": "mine"}}, "expected 'auto'"),
    "what is not known": ({"extra_body": {"beams": 5}}, "beams"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_request_that_is_refused(what: str, client: openai.OpenAI, wave: bytes) -> None:
    given, message = BAD[what]
    requested = {"model": MODEL, "file": ("speech.wav", wave), **given}
    with pytest.raises(openai.APIStatusError, match=message) as caught:
        client.audio.transcriptions.create(**requested)
    assert caught.value.status_code in (400, 404)
    if "language" in given:
        assert caught.value.param == "language"


def test_an_error_of_a_form_has_one_advice(client: openai.OpenAI, wave: bytes) -> None:
    """What to do next is one thing, and sentences end once."""

    def settings(**form: Any) -> str:
        url = f"{client.base_url}audio/transcriptions"
        answer = requests.post(url, timeout=60, **form)
        assert answer.status_code == 400
        return str(answer.json()["error"]["message"])

    file = {"file": ("a.wav", wave)}
    assert settings(data={"model": MODEL}).endswith("as multipart/form-data. Add it.")
    assert settings(files=file).endswith("the name of this server's. Add it.")
    two = settings(
        files=[("file", ("a.wav", wave)), ("file", ("b.wav", wave))], data={"model": MODEL}
    )
    assert two == "Too many files. Maximum number of files is 1. Correct the request."


def test_the_guides_snippet_runs(
    checkpoint: Path,
    session: SpeechSeq2SeqSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With a package that is there already, and a processor that has this tokenizer."""
    guide = (ROOT / "docs" / "from-qefficient.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"```diff\n(-[^`]*ForSpeechSeq2Seq.*?)```", guide, re.DOTALL)
    lines = [line[1:] for line in snippet.splitlines() if line[:1] in ("+", " ")]
    (tmp_path / "openai").mkdir()
    (tmp_path / "openai" / "whisper-tiny").symlink_to(checkpoint)
    monkeypatch.chdir(tmp_path)
    extract = transformers.WhisperFeatureExtractor.from_pretrained(checkpoint)
    extract.batch_decode = lambda ids: [" ".join(map(str, token)) for token in ids]
    monkeypatch.setattr(transformers.AutoProcessor, "from_pretrained", lambda _: extract)

    def compiled(self: Any, *_: Any) -> str:
        self.package = qeff_zoo.find_package(str(session.folder))
        return str(session.folder)

    monkeypatch.setattr(qeff_zoo.QEFFAutoModelForSpeechSeq2Seq, "_compile", compiled)
    exec("\n".join(lines), {"samples": voice(SHORT, RATE, SHORT)})
    (wanted,) = session.transcribe(voice(SHORT, RATE, SHORT))
    tokens = [token for segment in wanted.segments for token in segment.tokens]
    assert capsys.readouterr().out.split() == [str(token) for token in tokens]


def test_the_example_prints_its_input(
    session: SpeechSeq2SeqSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = ROOT / "examples" / "speech.py"
    monkeypatch.setattr(qeff_zoo, "build", lambda _: qeff_zoo.find_package(str(session.folder)))
    monkeypatch.setattr("sys.argv", [str(path), "a checkpoint"])
    runpy.run_path(str(path), run_name="__main__")
    assert "speech.wav, 7.0 s:" in capsys.readouterr().out


def test_lengths_of_what_reads_windows_are_refused(checkpoint: Path) -> None:
    with pytest.raises(
        PlanError, match=r"--seq-lens is \[1000\].*reads recordings in windows of one"
    ):
        pipeline.make_plan(str(checkpoint), Request(seq_lens=(1000,)))


def test_choices_of_text_alone_are_refused(checkpoint: Path) -> None:
    requested = Request(num_speculative_tokens=(3,), comp_ctx_lengths_decode=(16, 32))
    with pytest.raises(
        PlanError, match=r"(?s)--comp-ctx-lengths-decode is.*--num-speculative-tokens is"
    ):
        pipeline.make_plan(str(checkpoint), requested)


def test_a_window_is_cut_as_by_transformers() -> None:
    """Random tokens, timestamps among them; only there may a segment start before its window."""
    first, ticks, frames = 50, 150, 300
    draw, early = np.random.default_rng(0), 0
    for _ in range(300):
        answer = draw.choice([7, 9, *range(first, first + 40)], draw.integers(1, 12)).tolist()
        expected, forward = generation_whisper.WhisperGenerationMixin._retrieve_segment(
            seek_sequence=torch.tensor(answer),
            seek_outputs=[{}],
            time_offset=torch.zeros(1, dtype=torch.float64),
            timestamp_begin=first,
            seek_num_frames=torch.tensor([frames]),
            time_precision=1,
            time_precision_features=ticks / frames,
            input_stride=2,
            prev_idx=0,
            idx=0,
            return_token_timestamps=False,
            decoder_input_ids=torch.zeros(1, 3),
        )
        found, more = speech_windows.cut(answer, first=first, ticks=ticks, frames=frames, stride=2)
        assert more == int(forward)
        for (start, end, tokens), one in zip(found, expected, strict=True):
            assert [*tokens] == one["tokens"].tolist()
            assert (start, end) == (max(0, int(one["start"])), int(one["end"]))
            early += int(one["start"]) < 0
    assert early
