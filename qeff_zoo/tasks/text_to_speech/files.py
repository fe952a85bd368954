# SPDX-License-Identifier: Apache-2.0
"""Files of speech: WAV and raw PCM by Python alone; FLAC, MP3 and Opus by soundfile of the extra `media`."""

import struct
from collections.abc import Mapping
from io import BytesIO
from types import MappingProxyType
from typing import Any

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.program import Array
from qeff_zoo.tasks.text_to_speech.speech import Speech

#: Formats of files and their media types.
MEDIA_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "wav": "audio/wav",
        "pcm": "audio/pcm",
        "flac": "audio/flac",
        "mp3": "audio/mpeg",
        "opus": "audio/ogg",
    }
)
#: Formats whose files may follow one another, so that a stream can begin before its end.
STREAMED = ("wav", "pcm", "mp3")
#: Samples per second of raw PCM, as in OpenAI's API.
PCM_RATE = 24_000
_OPUS_RATES = (8_000, 12_000, 16_000, 24_000, 48_000)
#: Format and subtype of soundfile.
_BY_SOUNDFILE = {"flac": ("FLAC", "PCM_16"), "mp3": ("MP3", None), "opus": ("OGG", "OPUS")}
_LARGEST = 32_767
_UNKNOWN = 0xFFFF_FFFF  # length of a file that is not yet complete


def content_of(speech: Speech, name: str) -> bytes:
    """Return the content of a file.

    Args:
        speech: The speech.
        name: One of `MEDIA_TYPES`.

    Raises:
        GenerationError: A library that writes the format is not installed.
    """
    if name == "wav":
        data = _integers(speech.audio).tobytes()
        return wav_header(speech.sampling_rate, len(data)) + data
    if name == "pcm":
        return _integers(_at_rate(speech, PCM_RATE, name)).tobytes()
    soundfile = _library("soundfile", name)
    kind, subtype = _BY_SOUNDFILE[name]
    rate, audio = speech.sampling_rate, speech.audio
    if name == "opus" and rate not in _OPUS_RATES:
        rate = next(one for one in _OPUS_RATES if one >= min(rate, _OPUS_RATES[-1]))
        audio = _at_rate(speech, rate, name)
    file = BytesIO()
    soundfile.write(file, audio, rate, format=kind, subtype=subtype)
    return file.getvalue()


def part_of(speech: Speech, name: str, *, first: bool) -> bytes:
    """Return the bytes of a part of a stream.

    Args:
        speech: Part of the speech.
        name: One of `STREAMED`.
        first: Whether it is the first part.
    """
    if name != "wav":
        return content_of(speech, name)
    header = wav_header(speech.sampling_rate, None) if first else b""
    return header + _integers(speech.audio).tobytes()


def wav_header(rate: int, nbytes: int | None) -> bytes:
    """Return the header of a WAV file of 16 bits and one channel.

    Args:
        rate: Samples per second.
        nbytes: Size of the samples; None if unknown.
    """
    whole, data = (_UNKNOWN, _UNKNOWN) if nbytes is None else (36 + nbytes, nbytes)
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
    return (
        struct.pack("<4sI4s", b"RIFF", whole, b"WAVE") + form + struct.pack("<4sI", b"data", data)
    )


def _integers(audio: Array) -> Array:
    """Return samples of 16 bits, little-endian."""
    integers: Array = np.rint(np.clip(audio, -1, 1) * _LARGEST).astype("<i2")
    return integers


def _at_rate(speech: Speech, rate: int, name: str) -> Array:
    """Return the samples of speech at another rate."""
    if speech.sampling_rate == rate:
        return speech.audio
    soxr = _library("soxr", name)
    samples: Array = soxr.resample(speech.audio, speech.sampling_rate, rate)
    return samples


def _library(library: str, name: str) -> Any:
    """Return a library of the extra `media`."""
    import importlib

    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise GenerationError(
            f"Speech cannot be written as {name!r}, since package {library!r} is not installed; expected it, or 'wav'. "
            "Run `pip install 'qeff-zoo[media]'`."
        ) from error
