# SPDX-License-Identifier: Apache-2.0
"""Recordings, read without trust: a path, bytes or an array in, samples of one channel at one rate out.

WAV files are read here; others by `soundfile`, and other rates are changed by `soxr`, both of the extra `media`.
Several channels become their mean.
"""

import math
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias, Union

import numpy as np
from numpy.typing import NDArray

from qeff_zoo.errors import MediaError

Samples: TypeAlias = NDArray[np.float32]  # (samples,), -1 to 1
Sound: TypeAlias = Union[str, "os.PathLike[str]", bytes, NDArray[Any]]

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_UNKNOWN_SIZE = (0, 0xFFFFFFFF)  # of a file that was written to a pipe
_RATES = range(1000, 768_001)  # a second
_CHANNELS = 64
_LOUDEST = 256.0  # samples above it are not of -1 to 1, and what is heard of them would be wrong
_INSTALL = "pip install 'qeff-zoo[media]'"


@dataclass(frozen=True)
class SoundLimits:
    """How long a recording may be. It is checked before anything is decoded.

    Attributes:
        seconds: Of sound.
        file_bytes: Bytes of the encoded recording.
    """

    seconds: float = 4 * 3600.0
    file_bytes: int = 4_000_000_000


LIMITS = SoundLimits()


def read_sound(
    source: Sound, rate: int, *, given_rate: int | None = None, limits: SoundLimits = LIMITS
) -> Samples:
    """Read one recording.

    Args:
        source: A path, the bytes of a file, or an array: (samples,), or (samples, channels) as soundfile returns them;
            floats from -1 to 1, or integers of 8 to 32 bits, of the whole range of their type.
        rate: Samples a second of what is returned.
        given_rate: Of an array; None where it has `rate` already.
        limits: How long it may be.

    Returns:
        float32, (samples,).

    Raises:
        MediaError: It is no recording, empty, damaged or too long, or what would read it is not installed.
    """
    if isinstance(source, np.ndarray):
        found = _from_array(source)
        has, name = rate if given_rate is None else given_rate, "The array"
        _check(name, found.shape[0], found.shape[1], has, limits)
    else:
        data, name = _bytes_of(source, limits)
        is_wav = data[:4] in (b"RIFF", b"RF64") and data[8:12] == b"WAVE"
        wave = _read_wav(data, name, limits) if is_wav else None
        found, has = wave or _read_by_soundfile(data, name, limits)
    loudest = max(abs(float(found.min())), abs(float(found.max())))
    if not math.isfinite(loudest):
        raise MediaError(
            f"{name} has samples that are no numbers; expected finite ones. Record or convert it again."
        )
    if loudest > _LOUDEST:
        raise MediaError(
            f"{name} has samples of up to {loudest:,.0f}; expected floats from -1 to 1. Divide them by what is loudest "
            "in their scale, as 32,768 of 16 bits, or give integers of such a type."
        )
    mono: Samples = found[:, 0] if found.shape[1] == 1 else found.mean(axis=1)
    return _resampled(np.ascontiguousarray(mono, np.float32), has, rate, name)


def _bytes_of(source: Any, limits: SoundLimits) -> tuple[bytes, str]:
    if isinstance(source, bytes):
        size, name = len(source), "The recording"
    elif not isinstance(source, str | os.PathLike):
        raise MediaError(
            f"A recording is of type {type(source).__name__}; expected a path, the bytes of a file, or a numpy array "
            "of samples. Convert it."
        )
    else:
        path, name = Path(source), repr(os.fspath(source))
        try:
            size = path.stat().st_size
        except OSError as error:
            raise MediaError(
                f"Cannot read {name}: {error.strerror}. Expected a recording, as a WAV file. Correct the path."
            ) from error
    if not size:
        raise MediaError(f"{name} is empty; expected a recording, as a WAV file. Record it again.")
    if size > limits.file_bytes:
        raise MediaError(
            f"{name} has {size:,} bytes, expected at most {limits.file_bytes:,}. Cut it, or compress it."
        )
    if isinstance(source, bytes):
        return source, name
    try:
        return path.read_bytes(), name
    except OSError as error:
        raise MediaError(
            f"Cannot read {name}: {error.strerror}. Expected a file that may be read. Correct the path or its "
            "permissions."
        ) from error


def _from_array(source: NDArray[Any]) -> NDArray[np.float32]:
    if source.ndim not in (1, 2) or source.dtype.kind not in "fiu":
        raise MediaError(
            f"The array has shape {source.shape} and type {source.dtype}; expected (samples,) or (samples, channels) "
            "of numbers. Give it so."
        )
    if source.dtype.kind in "iu" and source.dtype.itemsize > 4:
        raise MediaError(
            "The array has integers of 64 bits, whose range no recording fills; expected those of 8 to 32 bits, or "
            "floats from -1 to 1. Convert it to the type of its samples, as int16."
        )
    floats: NDArray[np.float32]
    if source.dtype.kind == "f":
        with np.errstate(over="ignore"):  # infinity is refused
            floats = source.astype(np.float32)
    elif source.dtype.kind == "u":
        middle = (int(np.iinfo(source.dtype).max) + 1) // 2
        floats = ((source.astype(np.float64) - middle) / middle).astype(np.float32)
    else:
        floats = (source / -float(np.iinfo(source.dtype).min)).astype(np.float32)
    return floats if floats.ndim == 2 else floats[:, None]


def _check(name: str, samples: int, channels: int, rate: int, limits: SoundLimits) -> None:
    """Refuse what is empty, too long, or says what cannot be."""
    if rate not in _RATES:
        shown = f"{rate:,}" if isinstance(rate, int) else repr(rate)
        raise MediaError(
            f"{name} says that it has {shown} samples a second; expected {_RATES[0]:,} to {_RATES[-1]:,}. Convert it."
        )
    if not 0 < channels <= _CHANNELS:
        raise MediaError(
            f"{name} has {channels} channels, expected 1 to {_CHANNELS}. If this is an array (channels, samples), "
            "transpose it."
        )
    if samples == 0:
        raise MediaError(f"{name} has 0 samples, expected at least 1. Record it again.")
    if samples / rate > limits.seconds:
        raise MediaError(
            f"{name} has {samples / rate:,.0f} seconds of sound, expected at most {limits.seconds:,.0f}. Cut it."
        )


# --- WAV ---------------------------------------------------------------------------------------


def _read_wav(
    data: bytes, name: str, limits: SoundLimits
) -> tuple[NDArray[np.float32], int] | None:
    """Read samples of integers or floats, (samples, channels); None of another coding."""
    form: tuple[int, ...] | None = None
    for kind, start, size in _chunks(data):
        whole = start + size <= len(data)
        if kind == b"fmt " and size >= 16 and whole:
            coding, channels, rate, _, frame, bits = form = struct.unpack_from(
                "<HHIIHH", data, start
            )
            if coding == _EXTENSIBLE and size >= 26:
                coding = struct.unpack_from("<H", data, start + 24)[0]
        if kind != b"data":
            continue
        if form is None:
            break
        width = bits // 8
        known = (_PCM, 8), (_PCM, 16), (_PCM, 24), (_PCM, 32), (_FLOAT, 32), (_FLOAT, 64)
        if (coding, bits) not in known or frame != channels * width:
            return None
        there = len(data) - start
        if size in _UNKNOWN_SIZE:
            size = there - there % frame
        if size > there:
            raise MediaError(
                f"{name} says that it has {size:,} bytes of sound, and ends after {there:,}: it was cut off. "
                "Expected all of it. Copy it again."
            )
        samples = size // frame if frame else 0
        _check(name, samples, channels, rate, limits)
        raw = memoryview(data)[start : start + samples * frame]
        return _numbers(raw, coding, width).reshape(samples, channels), rate
    raise MediaError(
        f"{name} is a WAV file without {'sound' if form else 'a format'}: it was cut off or damaged. Expected both. "
        "Copy it again."
    )


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, place and size of each part of a RIFF file."""
    at = 12
    while at + 8 <= len(data):
        kind, size = struct.unpack_from("<4sI", data, at)
        yield kind, at + 8, size
        at += 8 + size + size % 2


def _numbers(raw: memoryview, coding: int, width: int) -> NDArray[Any]:
    if coding == _FLOAT:
        with np.errstate(over="ignore"):  # as of arrays
            return np.frombuffer(raw, f"<f{width}").astype(np.float32)
    if width == 1:
        return (np.frombuffer(raw, np.uint8).astype(np.float32) - 128) / 128
    if width == 3:  # into the upper bytes of 32 bits
        padded = np.zeros((len(raw) // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(raw, np.uint8).reshape(-1, 3)
        return (padded.view("<i4")[:, 0] / 2.0**31).astype(np.float32)
    whole: NDArray[Any] = np.frombuffer(raw, f"<i{width}") / 2.0 ** (8 * width - 1)
    return whole.astype(np.float32)


# --- everything else ---------------------------------------------------------------------------


def _read_by_soundfile(
    data: bytes, name: str, limits: SoundLimits
) -> tuple[NDArray[np.float32], int]:
    try:
        import soundfile
    except ImportError as error:
        raise MediaError(
            f"{name} is no WAV file of plain samples, and soundfile, which reads others, is not installed. Expected "
            f"the extra `media`. Run `{_INSTALL}`, or convert the recording to WAV."
        ) from error
    try:
        with soundfile.SoundFile(BytesIO(data)) as opened:
            _check(name, opened.frames, opened.channels, opened.samplerate, limits)
            found = opened.read(dtype="float32", always_2d=True)
            promised, rate = opened.frames, int(opened.samplerate)
    except soundfile.LibsndfileError as error:
        raise MediaError(
            f"{name} cannot be read: {error.error_string} Expected WAV, FLAC, Ogg, MP3 or another format of "
            "libsndfile, whole. Convert it to WAV."
        ) from error
    if len(found) < promised:
        raise MediaError(
            f"{name} says that it has {promised:,} samples, and ends after {len(found):,}. Expected all of it. Copy it "
            "again."
        )
    return found, rate


def _resampled(samples: Samples, has: int, rate: int, name: str) -> Samples:
    if has == rate:
        return samples
    try:
        import soxr
    except ImportError as error:
        raise MediaError(
            f"{name} has {has:,} samples a second, the model takes {rate:,}, and soxr, which converts, is missing. "
            f"Expected the extra `media`. Run `{_INSTALL}`, or convert the recording."
        ) from error
    found: Samples = soxr.resample(samples, has, rate, quality="HQ")
    if not len(found):
        raise MediaError(
            f"{name} has {len(samples)} samples at {has:,} a second, which is none at {rate:,}; expected at least one. "
            "Record it again."
        )
    return found
