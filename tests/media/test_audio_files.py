# SPDX-License-Identifier: Apache-2.0
"""Recordings: what is read is what was written, what is wrong is said, and features are Hugging Face's."""

import io
import struct
import wave
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import soundfile
import transformers

from qeff_zoo.errors import MediaError, PackageError
from qeff_zoo.media import features
from qeff_zoo.media.audio import AudioLimits, read_audio
from qeff_zoo.validation.trial.sample_audio import voice

RATE = 16_000
AUDIO = voice(4000, RATE, 1)


def wav(samples: Any = AUDIO, rate: int = RATE, kind: str = "PCM_16") -> bytes:
    """Write by libsndfile, which is not what reads."""
    made = io.BytesIO()
    soundfile.write(made, samples, rate, format="WAV", subtype=kind)
    return made.getvalue()


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("PCM_U8", 1 / 128), ("PCM_16", 2**-15), ("PCM_24", 2**-23), ("PCM_32", 2**-24), ("FLOAT", 0), ("DOUBLE", 0),
    ],
)  # fmt: skip
def test_every_form_of_wav_is_read_as_it_was_written(kind: str, step: float) -> None:
    data = wav(kind=kind)
    with mock.patch.dict("sys.modules", {"soundfile": None}):  # read here, by nobody else
        found = read_audio(data, RATE)
    assert found.dtype == np.float32
    assert np.abs(found - AUDIO).max() <= step
    np.testing.assert_array_equal(found, soundfile.read(io.BytesIO(data), dtype="float32")[0])


def test_the_standard_library_writes_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes((AUDIO * 32767).astype("<i2").tobytes())
    assert np.abs(read_audio(path, RATE) - AUDIO).max() < 1e-4


def test_flac_is_read_by_soundfile_and_missed_with_a_way_out() -> None:
    made = io.BytesIO()
    soundfile.write(made, AUDIO, RATE, format="FLAC")
    assert np.abs(read_audio(made.getvalue(), RATE) - AUDIO).max() < 1e-4
    with (
        mock.patch.dict("sys.modules", {"soundfile": None}),
        pytest.raises(MediaError, match="pip install 'qeff-zoo"),
    ):
        read_audio(made.getvalue(), RATE)


def test_stereo_is_its_mean_and_not_twice_as_long() -> None:
    both = np.stack([AUDIO, 0.5 * AUDIO], 1)
    found = read_audio(wav(both, kind="FLOAT"), RATE)
    np.testing.assert_allclose(found, 0.75 * AUDIO, atol=1e-7)
    np.testing.assert_allclose(read_audio(both, RATE), found, atol=1e-7)


def test_another_rate_is_converted_and_a_tone_keeps_its_pitch() -> None:
    time = np.arange(44_100) / 44_100
    tone = (0.5 * np.sin(2 * np.pi * 440 * time)).astype(np.float32)
    found = read_audio(wav(tone, rate=44_100), RATE)
    assert abs(len(found) - RATE) <= 1
    spectrum = np.abs(np.fft.rfft(found[:RATE]))
    assert spectrum.argmax() == 440
    with (
        mock.patch.dict("sys.modules", {"soxr": None}),
        pytest.raises(MediaError, match=r"44,100 samples a second.*soxr"),
    ):
        read_audio(wav(tone, rate=44_100), RATE)


def test_integers_are_of_the_whole_range_of_their_type() -> None:
    whole = np.array([0, 16384, -32768], np.int16)
    np.testing.assert_array_equal(read_audio(whole, RATE), np.array([0, 0.5, -1], np.float32))
    unsigned = np.array([128, 255, 0], np.uint8)
    assert read_audio(unsigned, RATE).tolist() == [0, 127 / 128, -1]


def test_a_size_that_was_not_known_when_the_file_began() -> None:
    data = bytearray(wav())
    data[40:44] = struct.pack("<I", 0xFFFFFFFF)  # as from `ffmpeg -f wav -`
    assert len(read_audio(bytes(data), RATE)) == len(AUDIO)


WRONG: dict[str, tuple[Any, str]] = {
    "nothing": (b"", "The recording is empty; expected"),
    "text": (b"hello, this is no sound at all", "^The recording cannot be read: "),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(50), "^The recording cannot be read: "),
    "a folder": (str(Path(__file__).parent), "Is a directory"),
    "no source": (None, "of type NoneType; expected a path"),
    "a list of numbers": ([0.0, 0.1], "of type list; expected a path"),
    "integers of 64 bits": (np.zeros(9, np.int64), "integers of 64 bits"),
    "integers as floats": (np.array([0, 1200.0], np.float32), "up to 1,200; expected"),
    "a file of such": (wav(AUDIO * 1e20, kind="FLOAT"), "expected floats from -1 to 1"),
    "more than float32 holds": (AUDIO.astype(float) * 1e300, "no numbers"),
    "no samples": (wav(AUDIO[:0]), "0 samples, expected at least 1"),
    "no samples in an array": (AUDIO[:0], "0 samples"),
    "cut off": (wav()[:2000], "it was cut off"),
    "header alone": (wav()[:30], "WAV file without"),
    "not a number": (np.array([0, np.nan], np.float32), "no numbers"),
    "channels first": (np.zeros((2, 500), np.float32), "transpose"),
    "three axes": (np.zeros((1, 2, 3), np.float32), "shape"),
    "words": (np.array(["a"]), "type <U1"),
    "rate of 0": (wav()[:24] + struct.pack("<I", 0) + wav()[28:], "0 samples a second"),
    "missing": ("no/such/file.wav", "No such file"),
}


@pytest.mark.parametrize("what", WRONG)
def test_errors_are_reported(what: str) -> None:
    source, message = WRONG[what]
    with pytest.raises(MediaError, match=message):
        read_audio(source, RATE)


@pytest.mark.parametrize("rate", [0, -5, "16000", 900, float("nan")])
def test_a_rate_that_cannot_be_is_refused(rate: Any) -> None:
    with pytest.raises(MediaError, match="samples a second; expected 1,000 to 768,000"):
        read_audio(AUDIO, RATE, given_rate=rate)


def test_floats_a_little_above_one_are_valid() -> None:
    """As a codec leaves them, or a recorder that does not cut off."""
    np.testing.assert_array_equal(read_audio(wav(AUDIO * 9, kind="FLOAT"), RATE), AUDIO * 9)


def test_three_hours_are_refused_before_they_are_decoded() -> None:
    data = bytearray(wav(AUDIO[:8]))
    data[40:44] = struct.pack("<I", 3 * 3600 * RATE * 2)
    limits = AudioLimits(seconds=60)
    with pytest.raises(MediaError, match="cut off"):  # it does not have them
        read_audio(bytes(data), RATE, limits=limits)
    with pytest.raises(MediaError, match="10,800 seconds of audio, expected at most 60"):
        read_audio(np.broadcast_to(np.float32(0), 3 * 3600 * RATE), RATE, limits=limits)
    with pytest.raises(MediaError, match=r"bytes, expected at most 100"):
        read_audio(wav(), RATE, limits=AudioLimits(file_bytes=100))


# --- features ----------------------------------------------------------------------------------

#: Extractor and how far numpy may be from it.
EXTRACTORS = {
    "Wav2Vec2FeatureExtractor": ({}, 0),
    "SeamlessM4TFeatureExtractor": ({}, 2e-7),
    "Speech2TextFeatureExtractor": ({}, 0),
    # Its own transform in float32 is 9e-5 away from that in float64, ours 7e-5.
    "ParakeetFeatureExtractor": ({}, 1e-4),
    "LasrFeatureExtractor": ({}, 1e-6),
}


@pytest.mark.parametrize("name", EXTRACTORS)
@pytest.mark.parametrize("samples", [1601, 12_345, 40_000])
def test_features_are_those_of_hugging_face(name: str, samples: int) -> None:
    settings, most = EXTRACTORS[name]
    reference = getattr(transformers, name)(**settings)
    ours = features.find(reference.to_dict())
    recording = voice(samples, RATE, 2)
    answer = reference(
        recording, sampling_rate=RATE, return_tensors="np", return_attention_mask=True
    )
    count = int(np.asarray(answer["attention_mask"]).sum())
    wanted = np.asarray(answer[ours.name])[0, :count]
    found = ours.compute(recording)
    assert found.dtype == np.float32
    assert found.shape == wanted.shape
    assert ours.count(samples) == count
    assert ours.count(ours.samples(count)) == count == ours.count(ours.samples(count) + 1) - 1
    assert np.abs(found - wanted).max() <= most


def test_an_extractor_that_is_not_known_is_refused() -> None:
    with pytest.raises(PackageError, match="'EncodecFeatureExtractor'; expected one of"):
        features.find({"feature_extractor_type": "EncodecFeatureExtractor"})
